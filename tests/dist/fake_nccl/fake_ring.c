/* fake_ring.c: the sums of fake_nccl.c, between processes that have mapped the same file: fake.h. It works in rounds:
 * every rank copies a part of its data into its slot, all wait for all, every rank takes what it needs, all wait for
 * all. */
#include "fake.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The fields on which ranks must agree; the real NCCL does not check. */
typedef struct {
    uint64_t count, order;
    int32_t kind, type, root, maximum, scaled, spare;
} signature;

/* Parts of messages from one rank to another. */
typedef struct {
    _Alignas(64) _Atomic uint32_t put, taken;
    size_t bytes;
    unsigned char part[FAKE_SLOT];
} mailbox;

typedef struct {
    _Atomic uint32_t arrived[FAKE_RANKS];
    _Atomic int gone[FAKE_RANKS], pid[FAKE_RANKS];
    int device[FAKE_RANKS], told[FAKE_RANKS];
    signature what[FAKE_RANKS];
    _Alignas(64) unsigned char slot[FAKE_RANKS][FAKE_SLOT];
    mailbox box[FAKE_RANKS][FAKE_RANKS]; /* from, to */
} shared;

struct fake_ring {
    shared *all;
    char path[200];
    int rank, size;
    uint64_t order;
    const _Atomic bool *stop;
    unsigned char *sum, *scaled; /* FAKE_SLOT bytes each */
};

/* ---- Waiting for each other -------------------------------------------------------------------------------------- */

/* Whether the process is gone or a zombie: the parent reaps the ranks late. */
static bool is_dead(int pid) {
    char path[64], state = 0;
    if (!pid) return false;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return true;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    fclose(file);
    return state == 'Z' || state == 'X';
}

static fake_end wait_until(fake_ring *ring, int other, const _Atomic uint32_t *number, uint32_t round) {
    shared *all = ring->all;
    for (unsigned tries = 0; *number < round; tries++) {
        if (*ring->stop) return FAKE_STOPPED;
        if (all->gone[other] || (tries % 256 == 255 && is_dead(all->pid[other])))
            return *number < round ? FAKE_PEER_GONE : FAKE_DONE;
        if (tries < 50)
            sched_yield();
        else
            usleep(50);
    }
    return FAKE_DONE;
}

static fake_end barrier(fake_ring *ring) {
    uint32_t round = ++ring->all->arrived[ring->rank];
    for (int r = 0; r < ring->size; r++) {
        fake_end end = wait_until(ring, r, &ring->all->arrived[r], round);
        if (end) return end;
    }
    return FAKE_DONE;
}

fake_ring *fake_ring_open(const char *path, int rank, int size, const _Atomic bool *stop) {
    if (size > FAKE_RANKS) fake_violation("%d ranks; the fake has %d", size, FAKE_RANKS);
    fake_ring *ring = calloc(1, sizeof *ring);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(shared))) fake_violation("no file %s to meet at", path);
    ring->all = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (ring->all == MAP_FAILED) fake_violation("no memory to meet in");
    snprintf(ring->path, sizeof ring->path, "%s", path);
    ring->rank = rank;
    ring->size = size;
    ring->stop = stop;
    ring->sum = malloc(FAKE_SLOT);
    ring->scaled = malloc(FAKE_SLOT);
    return ring;
}

fake_end fake_ring_meet(fake_ring *ring, int device, int same[2]) {
    shared *all = ring->all;
    all->device[ring->rank] = device;
    all->pid[ring->rank] = (int)getpid();
    fake_end end = barrier(ring);
    if (end) return end;
    unlink(ring->path); /* all ranks have opened it */
    for (same[0] = 0; same[0] < ring->size; same[0]++)
        for (same[1] = same[0] + 1; same[1] < ring->size; same[1]++)
            if (all->device[same[0]] == all->device[same[1]]) return FAKE_SAME_GPU;
    return FAKE_DONE;
}

fake_end fake_ring_tell(fake_ring *ring, int mine, int *all) {
    ring->all->told[ring->rank] = mine;
    fake_end end = barrier(ring);
    if (end) return end;
    memcpy(all, ring->all->told, (size_t)ring->size * sizeof *all);
    return barrier(ring);
}

void fake_ring_close(fake_ring *ring) {
    ring->all->gone[ring->rank] = 1;
    unlink(ring->path);
    munmap(ring->all, sizeof(shared));
    free(ring->sum);
    free(ring->scaled);
    free(ring);
}

/* ---- Arithmetic -------------------------------------------------------------------------------------------------- */

size_t fake_type_bytes(ncclDataType_t type) {
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        fake_violation("type %d", (int)type);
    }
}

static float of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Converts halves by scaling floats: 2^112 maps one exponent's zero to the other's. */
static float from_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    return of_bits(sign | bits_of(of_bits(rest << 13) * 0x1p112f));
}
/* To nearest, ties to even: adding and subtracting a power of two keeps as many bits as fit. */
static uint16_t to_half(float x) {
    uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    float size = of_bits(bits_of(x) & 0x7fffffff);
    if (!(size < 65520)) return sign | (size == size ? 0x7c00 : 0x7e00);
    float step = size < 0x1p-14f ? 0x1p-14f : of_bits(bits_of(size) & 0x7f800000);
    volatile float shifted = size + step * 0x1p13f;
    return sign | (uint16_t)(bits_of((shifted - step * 0x1p13f) * 0x1p-112f) >> 13);
}
static float from_bfloat(uint16_t b) { return of_bits((uint32_t)b << 16); }
static uint16_t to_bfloat(float x) {
    uint32_t bits = bits_of(x);
    if (x != x) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define EACH(type, from, to, expression)                                                                               \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        __auto_type x = from(((type *)sum)[i]);                                                                        \
        __auto_type y = from(((const type *)other)[once ? 0 : i]);                                                     \
        ((type *)sum)[i] = to(expression);                                                                             \
    }
#define AS_IT_IS(x) (x)
#define ALL_TYPES(expression)                                                                                          \
    switch (type) {                                                                                                    \
    case ncclFloat32:                                                                                                  \
        EACH(float, AS_IT_IS, AS_IT_IS, expression) break;                                                             \
    case ncclFloat64:                                                                                                  \
        EACH(double, AS_IT_IS, AS_IT_IS, expression) break;                                                            \
    case ncclUint8:                                                                                                    \
        EACH(uint8_t, AS_IT_IS, (uint8_t), expression) break;                                                          \
    case ncclUint32:                                                                                                   \
        EACH(uint32_t, AS_IT_IS, AS_IT_IS, expression) break;                                                          \
    case ncclUint64:                                                                                                   \
        EACH(uint64_t, AS_IT_IS, AS_IT_IS, expression) break;                                                          \
    case ncclFloat16:                                                                                                  \
        EACH(uint16_t, from_half, to_half, expression) break;                                                          \
    default:                                                                                                           \
        EACH(uint16_t, from_bfloat, to_bfloat, expression) break;                                                      \
    }

/* In separate passes, so that nothing is rounded once instead of twice. */
__attribute__((noinline)) static void scale(ncclDataType_t type, void *sum, const void *other, size_t n) {
    const bool once = true;
    ALL_TYPES(x * y)
}
__attribute__((noinline)) static void add(ncclDataType_t type, void *sum, const void *other, size_t n) {
    const bool once = false;
    ALL_TYPES(x + y)
}
__attribute__((noinline)) static void larger(ncclDataType_t type, void *sum, const void *other, size_t n) {
    const bool once = false;
    ALL_TYPES(x > y ? x : y)
}

/* In an order that starts with another rank for every part, as in a ring. */
static const void *reduce(fake_ring *ring, const fake_collective *what, size_t part, size_t n) {
    const size_t bytes = n * fake_type_bytes(what->type);
    for (int i = 0; i < ring->size; i++) {
        const void *from = ring->all->slot[((size_t)i + part) % (size_t)ring->size];
        void *to = i == 0 ? ring->sum : ring->scaled;
        memcpy(to, from, bytes);
        if (what->scaled) scale(what->type, to, what->scale, n);
        if (i > 0) (what->maximum ? larger : add)(what->type, ring->sum, ring->scaled, n);
    }
    return ring->sum;
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

static fake_end compare(fake_ring *ring, const fake_collective *what) {
    signature mine = {.count = what->count,
                      .order = ring->order++,
                      .kind = what->kind,
                      .type = what->type,
                      .root = what->root,
                      .maximum = what->maximum,
                      .scaled = what->scaled};
    ring->all->what[ring->rank] = mine;
    fake_end end = barrier(ring);
    for (int r = 0; !end && r < ring->size; r++)
        if (memcmp(&mine, &ring->all->what[r], sizeof mine))
            fake_violation("ranks %d and %d gave NCCL different collectives, which it cannot see", ring->rank, r);
    return end ? end : barrier(ring);
}

/* Adds up elements at..at+n of the `in` of all ranks (or of the `wanted` ranks), or places them side by side, in
 * `out`. */
static fake_end part(fake_ring *ring, const fake_collective *what, size_t at, size_t n, int row) {
    const size_t width = fake_type_bytes(what->type), size = (size_t)ring->size;
    const char *in = (const char *)what->in + (row > 0 ? (size_t)row * what->count * width : 0);
    char *out = (char *)what->out + at * width;
    if (what->kind != FAKE_BROADCAST || ring->rank == what->root)
        memcpy(ring->all->slot[ring->rank], in + at * width, n * width);
    fake_end end = barrier(ring);
    if (end) return end;
    if (what->kind == FAKE_ALL_REDUCE || (what->kind == FAKE_REDUCE_SCATTER && row == ring->rank))
        memcpy(out, reduce(ring, what, at / n + (size_t)row, n), n * width);
    if (what->kind == FAKE_BROADCAST) memmove(out, ring->all->slot[what->root], n * width);
    for (size_t r = 0; what->kind == FAKE_ALL_GATHER && r < size; r++)
        memcpy(out + r * what->count * width, ring->all->slot[r], n * width);
    return barrier(ring);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static fake_end not_yet(const fake_ring *ring, int other) {
    if (*ring->stop) return FAKE_STOPPED;
    return ring->all->gone[other] || is_dead(ring->all->pid[other]) ? FAKE_PEER_GONE : FAKE_NOT_YET;
}

static size_t size_of_part(size_t left) { return left < FAKE_SLOT ? left : FAKE_SLOT; }

/* Ends when the message has been received: the real NCCL need not buffer it. */
static fake_end send_message(fake_ring *ring, fake_collective *what, size_t bytes) {
    mailbox *box = &ring->all->box[ring->rank][what->root];
    for (; what->at < bytes; what->at += FAKE_SLOT) {
        if (!what->offered) {
            box->bytes = bytes - what->at;
            memcpy(box->part, (const char *)what->in + what->at, size_of_part(bytes - what->at));
            box->put++;
            what->offered = true;
        }
        if (box->taken != box->put) return not_yet(ring, what->root);
        what->offered = false;
    }
    return FAKE_DONE;
}

static fake_end receive_message(fake_ring *ring, fake_collective *what, size_t bytes) {
    mailbox *box = &ring->all->box[what->root][ring->rank];
    for (; what->at < bytes; what->at += FAKE_SLOT) {
        if (box->put == box->taken) return not_yet(ring, what->root);
        if (box->bytes != bytes - what->at)
            fake_violation("rank %d sends other bytes than rank %d receives", what->root, ring->rank);
        memcpy((char *)what->out + what->at, box->part, size_of_part(bytes - what->at));
        box->taken++;
    }
    return FAKE_DONE;
}

fake_end fake_ring_run(fake_ring *ring, fake_collective *what) {
    const size_t width = fake_type_bytes(what->type), most = FAKE_SLOT / width;
    if (what->kind == FAKE_SEND) return send_message(ring, what, what->count * width);
    if (what->kind == FAKE_RECEIVE) return receive_message(ring, what, what->count * width);
    fake_end end = compare(ring, what);
    const int rows = what->kind == FAKE_REDUCE_SCATTER ? ring->size : 1;
    for (int row = 0; row < rows; row++)
        for (size_t at = 0; !end && at < what->count; at += most)
            end = part(ring, what, at, what->count - at < most ? what->count - at : most, row);
    return end;
}

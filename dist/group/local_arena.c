/* local_arena.c: one sparse memfd that all ranks of a host map, and allocation in a rank's region of it. */
#define _GNU_SOURCE
#include "dist/group/local_arena.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dist/group/joining.h"
#include "memory/host.h"

#define MAGIC UINT64_C(0x314c41434f4c4d52) /* "RMLOCAL1" */
#define PAGE UINT64_C(4096)
#define REGION_DEFAULT (UINT64_C(16) << 30)

struct rm_arena_piece {
    uint64_t at, bytes; /* offset and size in the region */
    char *mapped;       /* second mapping of the piece; NULL: none */
    rm_arena_piece *next;
};

static uint64_t whole_pages(uint64_t bytes) { return (bytes + PAGE - 1) & ~(PAGE - 1); }

static void lay_out(rm_local_arena *a, uint64_t region_bytes) {
    uint64_t ranks = (uint64_t)a->size;
    a->slots_at = whole_pages(sizeof *a->head);
    a->eager_at = a->slots_at + ranks * PAGE;
    a->stage_at = a->eager_at + ranks * 2 * RM_EAGER_BYTES;
    a->sums_at = a->stage_at + ranks * RM_STAGE_BYTES;
    a->rings_at = a->sums_at + RM_STAGE_BYTES;
    a->regions_at = a->rings_at + ranks * ranks * (PAGE + RM_RING_BYTES); /* untouched rings take no memory */
    a->region_bytes = whole_pages(region_bytes ? region_bytes : REGION_DEFAULT);
    a->bytes = a->regions_at + ranks * a->region_bytes;
}

static remat_status map(rm_local_arena *a) {
    a->base = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, a->fd, 0);
    if (a->base == MAP_FAILED) {
        a->base = NULL;
        FAIL(MEMORY,
             "cannot map %.1f GiB of address space for %d ranks' buffers (%s); check for a limit on virtual memory "
             "(ulimit -v)",
             (double)a->bytes / (1 << 30), a->size, strerror(errno));
    }
    (void)madvise(a->base + a->regions_at, a->bytes - a->regions_at,
                  MADV_DONTDUMP); /* gradients are not worth dumping to a core file */
    (void)madvise(a->base + a->regions_at, a->bytes - a->regions_at, MADV_HUGEPAGE);
    a->head = (rm_arena_head *)a->base;
    return REMAT_OK;
}

/* The memory through which copies pass. It is allocated now, by the rank that writes it (which decides the NUMA node),
 * so that a lack of memory is an error, as for buffers. */
static remat_status take_own_part(const rm_local_arena *a) {
    uint64_t stage = a->stage_at + (uint64_t)a->rank * RM_STAGE_BYTES;
    bool fine = !fallocate(a->fd, 0, (off_t)stage, RM_STAGE_BYTES);
    if (fine && a->rank == 0)
        fine = !fallocate(a->fd, 0, 0, (off_t)a->stage_at) && !fallocate(a->fd, 0, (off_t)a->sums_at, RM_STAGE_BYTES);
    REQUIRE(fine, MEMORY, "out of memory that %d ranks can share: %s", a->size, strerror(errno));
    return REMAT_OK;
}

remat_status rm_local_take_ring(const rm_local_arena *a, int32_t from, int32_t to) {
    uint64_t at = (uint64_t)((char *)rm_local_ring(a, from, to) - a->base);
    REQUIRE(!fallocate(a->fd, 0, (off_t)at, PAGE + RM_RING_BYTES), MEMORY,
            "out of memory for messages from rank %d to rank %d: %s", from, to, strerror(errno));
    return REMAT_OK;
}

static remat_status make(rm_local_arena *a) {
    a->fd = memfd_create("remat", MFD_CLOEXEC);
    REQUIRE(a->fd >= 0, IO, "cannot create shared memory: %s", strerror(errno));
    REQUIRE(!ftruncate(a->fd, (off_t)a->bytes), MEMORY, "cannot create shared memory of %" PRIu64 " bytes: %s",
            a->bytes, strerror(errno));
    TRY(map(a));
    a->head->size = a->size;
    a->head->bytes = a->bytes;
    a->head->region_bytes = a->region_bytes;
    a->head->magic = MAGIC;
    return REMAT_OK;
}

static remat_status tell_where(const rm_group_config *config, const rm_local_arena *a) {
    char key[RM_KV_KEY_BYTES], where[96];
    if (a->size == 1) return REMAT_OK;
    snprintf(key, sizeof key, "%s/arena", config->name);
    int length = snprintf(where, sizeof where, "%d %d %" PRIu64, (int)getpid(), a->fd, a->region_bytes);
    return rm_kv_set(config->store, key, where, (uint32_t)length);
}

static remat_status find(const rm_group_config *config, rm_local_arena *a) {
    char key[RM_KV_KEY_BYTES], where[96] = "", path[64];
    int pid, fd;
    uint32_t bytes;
    uint64_t region_bytes;
    snprintf(key, sizeof key, "%s/arena", config->name);
    TRY(rm_joining_get(config->joining, key, where, sizeof where - 1, &bytes));
    REQUIRE(sscanf(where, "%d %d %" SCNu64, &pid, &fd, &region_bytes) == 3, INTERNAL, "rank 0's arena is '%s'", where);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    a->fd = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(a->fd >= 0, IO,
            "cannot open the memory of rank 0, %s: %s. Ranks that share memory must run as one user, on one host and "
            "in one container; otherwise use {backend}=mpi or gloo",
            path, strerror(errno));
    lay_out(a, region_bytes);
    TRY(map(a));
    REQUIRE(lseek(a->fd, 0, SEEK_END) == (off_t)a->bytes && a->head->magic == MAGIC && a->head->size == a->size, IO,
            "%s is not the memory of a group of %d ranks; run the same Remat on all ranks", path, a->size);
    return REMAT_OK;
}

remat_status rm_local_arena_open(const rm_group_config *config, rm_local_arena *out) {
    *out = (rm_local_arena){.fd = -1, .rank = config->rank, .size = config->size};
    pthread_mutex_init(&out->lock, NULL);
    if (config->rank > 0) {
        TRY(find(config, out));
        return take_own_part(out);
    }
    lay_out(out, config->arena_bytes);
    TRY(make(out));
    TRY(take_own_part(out));
    return tell_where(config, out);
}

void rm_local_arena_close(rm_local_arena *a) {
    for (rm_arena_piece *piece = a->pieces, *next; piece; piece = next) {
        next = piece->next;
        rm_free(piece);
    }
    if (a->base) munmap(a->base, a->bytes);
    if (a->fd >= 0) close(a->fd);
    pthread_mutex_destroy(&a->lock);
    *a = (rm_local_arena){.fd = -1};
}

void rm_local_wake(rm_slot *slot) { syscall(SYS_futex, &slot->arrived, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

/* ---- Buffers in this rank's region --------------------------------------------------------------------------- */

static uint64_t region_at(const rm_local_arena *a) { return a->regions_at + (uint64_t)a->rank * a->region_bytes; }

static bool within(const void *buffer, uint64_t bytes, const void *block, uint64_t block_bytes) {
    uintptr_t at = (uintptr_t)buffer - (uintptr_t)block;
    return (uintptr_t)buffer >= (uintptr_t)block && at <= block_bytes && bytes <= block_bytes - at;
}

int64_t rm_local_offset(rm_local_arena *a, const void *buffer, uint64_t bytes) {
    int64_t offset = -1;
    if (within(buffer, bytes, a->base + region_at(a), a->region_bytes)) return (const char *)buffer - a->base;
    pthread_mutex_lock(&a->lock);
    for (const rm_arena_piece *piece = a->pieces; piece && offset < 0; piece = piece->next)
        if (piece->mapped && within(buffer, bytes, piece->mapped, piece->bytes))
            offset = (int64_t)(region_at(a) + piece->at) + ((const char *)buffer - piece->mapped);
    pthread_mutex_unlock(&a->lock);
    return offset;
}

/* First fit. Returns the link at which to insert the new piece; *at is its offset. */
static rm_arena_piece **find_gap(rm_local_arena *a, uint64_t bytes, uint64_t *at) {
    rm_arena_piece **link = &a->pieces;
    for (*at = 0; *link && (*link)->at - *at < bytes; link = &(*link)->next) *at = (*link)->at + (*link)->bytes;
    return link;
}

/* Punches a hole in the file: returns the memory to the system, and the next buffer there is zero-filled. */
static void punch(rm_local_arena *a, uint64_t at, uint64_t bytes) {
    (void)fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(region_at(a) + at), (off_t)bytes);
}

static remat_status take_piece(rm_local_arena *a, uint64_t bytes, char *mapped, uint64_t *at) {
    uint64_t whole = bytes > a->region_bytes ? bytes : whole_pages(bytes ? bytes : 1);
    rm_arena_piece **link = find_gap(a, whole, at), *piece;
    REQUIRE(whole <= a->region_bytes - *at, MEMORY,
            "%" PRIu64 " bytes do not fit into this rank's %" PRIu64 " bytes of shared address space", bytes,
            a->region_bytes);
    REQUIRE(!fallocate(a->fd, 0, (off_t)(region_at(a) + *at), (off_t)whole), MEMORY,
            "out of memory for a shared buffer of %" PRIu64 " bytes: %s", bytes, strerror(errno));
    if (!(piece = rm_malloc(sizeof *piece))) {
        punch(a, *at, whole);
        FAIL(MEMORY, "out of memory for the record of a shared buffer");
    }
    *piece = (rm_arena_piece){.at = *at, .bytes = whole, .mapped = mapped, .next = *link};
    *link = piece;
    return REMAT_OK;
}

/* Frees the piece at `at` or, if that is UINT64_MAX, the one mapped at `mapped`. */
static void give_piece(rm_local_arena *a, uint64_t at, const char *mapped) {
    for (rm_arena_piece **link = &a->pieces; *link; link = &(*link)->next) {
        rm_arena_piece *piece = *link;
        if (at == UINT64_MAX ? piece->mapped != mapped : piece->at != at || piece->mapped) continue;
        punch(a, piece->at, piece->bytes);
        *link = piece->next;
        rm_free(piece);
        return;
    }
}

void *rm_local_alloc(rm_local_arena *a, uint64_t bytes) {
    uint64_t at;
    pthread_mutex_lock(&a->lock);
    remat_status status = take_piece(a, bytes, NULL, &at);
    pthread_mutex_unlock(&a->lock);
    return status ? NULL : a->base + region_at(a) + at;
}

void rm_local_free(rm_local_arena *a, void *buffer) {
    pthread_mutex_lock(&a->lock);
    give_piece(a, (uint64_t)((char *)buffer - a->base) - region_at(a), NULL);
    pthread_mutex_unlock(&a->lock);
}

/* ---- Pieces mapped over other memory --------------------------------------------------------------------------- */

static bool put_anonymous(void *address, uint64_t bytes) {
    return mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* If the system refuses (for example, too many mappings), it may already have removed the old pages; new ones replace
 * them. */
static remat_status put_piece(rm_local_arena *a, void *address, uint64_t bytes, uint64_t at) {
    off_t offset = (off_t)(region_at(a) + at);
    if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->fd, offset) != MAP_FAILED)
        return REMAT_OK;
    remat_status status = rm_fail(REMAT_MEMORY, "cannot map %" PRIu64 " bytes of shared memory over existing pages: %s",
                                  bytes, strerror(errno));
    (void)put_anonymous(address, bytes);
    give_piece(a, UINT64_MAX, address);
    return status;
}

remat_status rm_local_map(rm_local_arena *a, void *address, uint64_t bytes) {
    uint64_t at;
    pthread_mutex_lock(&a->lock);
    remat_status status = take_piece(a, bytes, address, &at);
    if (!status) status = put_piece(a, address, bytes, at);
    pthread_mutex_unlock(&a->lock);
    return status;
}

void rm_local_unmap(rm_local_arena *a, void *address) {
    pthread_mutex_lock(&a->lock);
    for (rm_arena_piece *piece = a->pieces; piece; piece = piece->next)
        if (piece->mapped == address) {
            (void)put_anonymous(address, piece->bytes);
            give_piece(a, UINT64_MAX, address);
            break;
        }
    pthread_mutex_unlock(&a->lock);
}

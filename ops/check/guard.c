/* guard.c: buffers with redzones (guard.h).
 *
 *   block |.. shift ..|-- redzone --|== data, `bytes` long ==|-- redzone, to the byte --|
 */
#include "ops/check/guard.h"

#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"

enum { ZONE = 512, MOVES = 8 };

struct rm_guard_buffer {
    const char *what;
    unsigned char *block, *data;
    size_t bytes, total;   /* total: of the block */
    unsigned char *sealed; /* a copy of the bytes to keep, or NULL */
};

enum { ZONE_BYTE = 0xFF };

/* Both words are NaN in either precision; as integers they are -1 and the maximum. By copies, since a sanitizer makes
 * loops over bytes slow. */
static void poison(unsigned char *data, size_t bytes, int variant) {
    uint32_t word = variant % 2 ? 0xFFFFFFFFu : 0x7FFFFFFFu;
    size_t done = bytes < sizeof word ? bytes : sizeof word;
    memcpy(data, &word, done);
    for (size_t more; done < bytes; done += more) {
        more = bytes - done < done ? bytes - done : done;
        memcpy(data + done, data, more);
    }
}

void *rm_guard_alloc(rm_guard_set *set, size_t bytes, const char *what) {
    size_t shift = (size_t)((set->variant * 5 + set->count * 3) % MOVES) * RM_ALIGN;
    size_t total = rm_align_up(shift + ZONE + bytes + ZONE);
    rm_guard_buffer b = {.what = what, .bytes = bytes, .total = total};
    bool fits = bytes <= SIZE_MAX / 2; /* `total` has not wrapped */
    if (fits && rm_grow(&set->buffer, &set->capacity, set->count + 1, sizeof *set->buffer))
        b.block = rm_block_alloc(total, RM_ALIGN);
    if (!b.block) {
        set->starved = true;
        return NULL;
    }
    b.data = b.block + shift + ZONE;
    memset(b.block, ZONE_BYTE, total);
    poison(b.data, bytes, set->variant);
    set->buffer[set->count++] = b;
    return b.data;
}

static rm_guard_buffer *find(const rm_guard_set *set, const void *data) {
    for (int64_t i = set->count - 1; i >= 0; i--)
        if (set->buffer[i].data == data) return &set->buffer[i];
    return NULL;
}

void rm_guard_seal(rm_guard_set *set, const void *data) {
    rm_guard_buffer *b = find(set, data);
    if (!b) return;
    rm_free(b->sealed);
    b->sealed = rm_malloc(b->bytes);
    if (b->sealed)
        memcpy(b->sealed, b->data, b->bytes);
    else
        set->starved = true;
}

void rm_guard_unseal(rm_guard_set *set, const void *data) {
    rm_guard_buffer *b = find(set, data);
    if (!b) return;
    rm_free(b->sealed);
    b->sealed = NULL;
}

static bool zones_intact(const rm_guard_buffer *b) {
    unsigned char zone[ZONE];
    memset(zone, ZONE_BYTE, ZONE);
    return !memcmp(b->data - ZONE, zone, ZONE) && !memcmp(b->data + b->bytes, zone, ZONE);
}

const char *rm_guard_complaint(const rm_guard_set *set, bool *overrun) {
    for (int64_t i = 0; i < set->count; i++) {
        const rm_guard_buffer *b = &set->buffer[i];
        *overrun = !zones_intact(b);
        if (*overrun || (b->sealed && memcmp(b->sealed, b->data, b->bytes))) return b->what;
    }
    return NULL;
}

void rm_guard_free(rm_guard_set *set) {
    for (int64_t i = 0; i < set->count; i++) {
        rm_block_free(set->buffer[i].block, set->buffer[i].total);
        rm_free(set->buffer[i].sealed);
    }
    rm_free(set->buffer);
    *set = (rm_guard_set){.variant = set->variant};
}

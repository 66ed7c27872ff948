/* guard.c: buffers with redzones (guard.h).
 *
 *   block |.. shift ..|-- redzone --|== data, `bytes` long ==|-- redzone, to the byte --|
 */
#include "tests/ops/guard.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, ZONE = 512, MOVES = 8 };

struct guard_buffer {
    const char *what;
    unsigned char *block, *data;
    size_t bytes;
    unsigned char *sealed; /* a copy of the bytes to keep, or NULL */
};

enum { ZONE_BYTE = 0xFF };

/* Both words are NaN in either precision; as integers they are -1 and the largest. */
static void poison(unsigned char *data, size_t bytes, int variant) {
    uint32_t word = variant % 2 ? 0xFFFFFFFFu : 0x7FFFFFFFu;
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)(word >> 8 * (i % 4));
}

void *guard_alloc(guard_set *set, size_t bytes, const char *what) {
    if (set->count == set->capacity) {
        set->capacity = set->capacity ? 2 * set->capacity : 64;
        set->buffer = realloc(set->buffer, (size_t)set->capacity * sizeof *set->buffer);
        if (!set->buffer) abort();
    }
    size_t shift = (size_t)((set->variant * 5 + set->count * 3) % MOVES) * ALIGN;
    size_t total = (shift + ZONE + bytes + ZONE + ALIGN - 1) / ALIGN * ALIGN;
    guard_buffer b = {.what = what, .block = aligned_alloc(ALIGN, total), .bytes = bytes};
    if (!b.block) abort();
    b.data = b.block + shift + ZONE;
    memset(b.block, ZONE_BYTE, total);
    poison(b.data, bytes, set->variant);
    set->buffer[set->count++] = b;
    return b.data;
}

static guard_buffer *find(const guard_set *set, const void *data) {
    for (int i = set->count - 1; i >= 0; i--)
        if (set->buffer[i].data == data) return &set->buffer[i];
    return NULL;
}

void guard_seal(guard_set *set, const void *data) {
    guard_buffer *b = find(set, data);
    if (!b) return;
    free(b->sealed);
    b->sealed = malloc(b->bytes + 1);
    if (!b->sealed) abort();
    memcpy(b->sealed, b->data, b->bytes);
}

void guard_unseal(guard_set *set, const void *data) {
    guard_buffer *b = find(set, data);
    if (!b) return;
    free(b->sealed);
    b->sealed = NULL;
}

static bool zones_intact(const guard_buffer *b) {
    for (int i = 0; i < ZONE; i++)
        if (b->data[-1 - i] != ZONE_BYTE || b->data[b->bytes + (size_t)i] != ZONE_BYTE) return false;
    return true;
}

const char *guard_complaint(const guard_set *set, bool *overrun) {
    for (int i = 0; i < set->count; i++) {
        const guard_buffer *b = &set->buffer[i];
        *overrun = !zones_intact(b);
        if (*overrun || (b->sealed && memcmp(b->sealed, b->data, b->bytes))) return b->what;
    }
    return NULL;
}

void guard_free(guard_set *set) {
    for (int i = 0; i < set->count; i++) {
        free(set->buffer[i].block);
        free(set->buffer[i].sealed);
    }
    free(set->buffer);
    *set = (guard_set){.variant = set->variant};
}

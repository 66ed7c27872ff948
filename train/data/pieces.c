/* pieces.c: see pieces.h. */
#include "train/data/pieces.h"

#include "memory/host.h"

#include <string.h>

/* FNV-1a (Fowler, Noll and Vo). */
static uint64_t hash(const uint8_t *text, size_t size) {
    uint64_t h = 0xCBF29CE484222325;
    for (size_t i = 0; i < size; i++) h = (h ^ text[i]) * 0x100000001B3;
    return h ^ h >> 32;
}

/* The slot of the text, or the free one where it would be. */
static int32_t *slot_of(const rm_pieces *p, const uint8_t *text, size_t size) {
    for (uint64_t i = hash(text, size);; i++) {
        int32_t *slot = &p->slot[i & (uint64_t)(p->slots - 1)];
        if (*slot < 0) return slot;
        const rm_piece *piece = &p->piece[*slot];
        if ((size_t)piece->length == size && !memcmp(p->bytes + piece->at, text, size)) return slot;
    }
}

int64_t rm_pieces_find(const rm_pieces *p, const uint8_t *text, size_t size) {
    return p->slots ? *slot_of(p, text, size) : -1;
}

static remat_status make_room(rm_pieces *p, size_t size) {
    bool room = rm_grow(&p->bytes, &p->bytes_capacity, p->n_bytes + (int64_t)size, 1) &&
                rm_grow(&p->piece, &p->capacity, p->count + 1, sizeof *p->piece);
    REQUIRE(room && p->count < INT32_MAX, MEMORY, "no memory for %lld different words", (long long)p->count + 1);
    if (2 * (p->count + 1) <= p->slots) return REMAT_OK;
    int64_t slots = p->slots ? 2 * p->slots : 1024;
    int32_t *slot = rm_malloc((size_t)slots * sizeof *slot);
    REQUIRE(slot, MEMORY, "no memory to find %lld different words", (long long)p->count + 1);
    memset(slot, 0xFF, (size_t)slots * sizeof *slot);
    rm_free(p->slot);
    p->slot = slot;
    p->slots = slots;
    for (int64_t i = 0; i < p->count; i++)
        *slot_of(p, p->bytes + p->piece[i].at, (size_t)p->piece[i].length) = (int32_t)i;
    return REMAT_OK;
}

remat_status rm_pieces_add(rm_pieces *p, const uint8_t *text, size_t size) {
    if (rm_pieces_find(p, text, size) >= 0) return REMAT_OK;
    TRY(make_room(p, size));
    *slot_of(p, text, size) = (int32_t)p->count;
    p->piece[p->count++] = (rm_piece){p->n_bytes, (int64_t)size};
    memcpy(p->bytes + p->n_bytes, text, size);
    p->n_bytes += (int64_t)size;
    return REMAT_OK;
}

void rm_pieces_free(rm_pieces *p) {
    rm_free(p->bytes);
    rm_free(p->piece);
    rm_free(p->slot);
    *p = (rm_pieces){0};
}

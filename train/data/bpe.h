/* bpe.h: byte pair encoding of one word: its bytes are its first tokens; of all pairs of neighbours that may be merged the one of
 * the lowest rank is, the leftmost of equals, until none may. With a heap, so that a long word takes n log n. */
#ifndef RM_BPE_H
#define RM_BPE_H

#include "engine/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int32_t left, right, rank, merged; /* merged -1: a slot that is free */
} rm_bpe_merge;

typedef struct {
    int32_t of_byte[256]; /* -1: the vocabulary has no token for it */
    rm_bpe_merge *slot;   /* by a hash of left and right; at least half of them are free */
    uint64_t slots;       /* a power of two */
} rm_bpe;

remat_status rm_bpe_create(int64_t merges, rm_bpe *out); /* room for so many; free in any case */
void rm_bpe_add(rm_bpe *bpe, rm_bpe_merge merge);        /* of a pair that is there already, the last counts */
void rm_bpe_free(rm_bpe *bpe);

typedef struct {
    int32_t *id;
    int64_t count, capacity;
} rm_tokens;

remat_status rm_tokens_add(rm_tokens *tokens, int32_t id);

/* What encoding works in, from word to word; all zero at first. */
typedef struct {
    struct rm_bpe_symbol *symbol;
    struct rm_bpe_candidate *heap;
    int64_t symbols, candidates, in_heap;
} rm_bpe_room;

void rm_bpe_room_free(rm_bpe_room *room);

/* Adds the tokens of a word of n > 0 bytes. INVALID: there is none for one of them. */
remat_status rm_bpe_encode(const rm_bpe *bpe, const uint8_t *word, size_t n, rm_bpe_room *room, rm_tokens *tokens);

#endif

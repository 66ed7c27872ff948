/* bpe.h: byte pair encoding of one word. Encoding starts from one token per byte and repeatedly merges the adjacent pair of
 * lowest rank, the leftmost of equals, until no pair can be merged. A heap makes this O(n log n). */
#ifndef RM_BPE_H
#define RM_BPE_H

#include "engine/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int32_t left, right, rank, merged; /* merged -1: the slot is free */
} rm_bpe_merge;

typedef struct {
    int32_t of_byte[256]; /* -1: the vocabulary has no token for it */
    rm_bpe_merge *slot;   /* hash table keyed by left and right; at least half empty */
    uint64_t slots;       /* a power of two */
} rm_bpe;

remat_status rm_bpe_create(int64_t merges, rm_bpe *out); /* capacity `merges`; free even after an error */
void rm_bpe_add(rm_bpe *bpe, rm_bpe_merge merge);        /* replaces an earlier merge of the same pair */
void rm_bpe_free(rm_bpe *bpe);

typedef struct {
    int32_t *id;
    int64_t count, capacity;
} rm_tokens;

remat_status rm_tokens_add(rm_tokens *tokens, int32_t id);

/* Scratch buffers that encoding reuses from word to word; initialise to zero. */
typedef struct {
    struct rm_bpe_symbol *symbol;
    struct rm_bpe_candidate *heap;
    int64_t symbols, candidates, in_heap;
} rm_bpe_room;

void rm_bpe_room_free(rm_bpe_room *room);

/* Appends the tokens of a word of n > 0 bytes. INVALID: the vocabulary has no token for one of the bytes. */
remat_status rm_bpe_encode(const rm_bpe *bpe, const uint8_t *word, size_t n, rm_bpe_room *room, rm_tokens *tokens);

#endif

/* pieces.h: a set of texts, words for example, numbered in the order in which they were added; finds a text's number. */
#ifndef RM_PIECES_H
#define RM_PIECES_H

#include "engine/status.h"

#include <stddef.h>
#include <stdint.h>

/* A range of bytes. */
typedef struct {
    int64_t at; /* -1: no text has this number */
    int64_t length;
} rm_piece;

typedef struct {
    uint8_t *bytes; /* of all texts */
    int64_t n_bytes, bytes_capacity;
    rm_piece *piece; /* by number */
    int64_t count, capacity;
    int32_t *slot; /* hash table of numbers; -1: free; at least half of it is free */
    int64_t slots; /* a power of two */
} rm_pieces;     /* begins as zeros */

int64_t rm_pieces_find(const rm_pieces *pieces, const uint8_t *text, size_t size); /* -1: it is not there */
/* Adds the text unless the set contains it. MEMORY. */
remat_status rm_pieces_add(rm_pieces *pieces, const uint8_t *text, size_t size);
void rm_pieces_free(rm_pieces *pieces);

#endif

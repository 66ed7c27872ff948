/* holes.h: the free space of a block while buffers come and go: a set of holes, ordered by address. Taking from either
 * end of a hole and giving back cost O(log holes). Used only by pack_greedy.c. The addresses are numbers; no memory is
 * allocated for them. */
#ifndef RM_HOLES_H
#define RM_HOLES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t offset, bytes;
    uint64_t largest; /* the largest hole in the subtree */
    uint32_t priority;
    int32_t left, right; /* nodes; 0: none */
} rm_hole;

typedef struct {
    rm_hole *node;                         /* [0] is unused */
    int32_t root, unused, count; /* unused: a linked list of free nodes, through `left` */
    int64_t capacity;
    uint32_t seed;
    uint64_t size; /* of the block */
} rm_holes;

/* Starts with a block of `size` free bytes. *holes is zeroed or was used before (its memory is then reused). Returns
 * false if out of host memory. */
bool rm_holes_begin(rm_holes *holes, uint64_t size);
void rm_holes_free(rm_holes *holes);

/* Takes the lowest (highest) place with enough room, at the low (high) end of its hole. Returns false if no hole is
 * large enough. */
bool rm_holes_take_low(rm_holes *holes, uint64_t bytes, uint64_t *offset);
bool rm_holes_take_high(rm_holes *holes, uint64_t bytes, uint64_t *offset);

/* Gives taken bytes back and joins them with the holes on either side. Returns false if out of host memory. */
bool rm_holes_give(rm_holes *holes, uint64_t offset, uint64_t bytes);

#endif

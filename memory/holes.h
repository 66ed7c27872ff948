/* holes.h: the free space of a block while buffers come and go: the holes between them, in order of address. Taking from
 * either end and giving back cost O(log holes). Used by pack_greedy.c alone; no memory is behind the addresses. */
#ifndef RM_HOLES_H
#define RM_HOLES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t offset, bytes;
    uint64_t largest; /* hole in the subtree */
    uint32_t priority;
    int32_t left, right; /* nodes; 0: none */
} rm_hole;

typedef struct {
    rm_hole *node;                         /* [0] is nobody */
    int32_t root, unused, count; /* unused: a list of nodes, through `left` */
    int64_t capacity;
    uint32_t seed;
    uint64_t size; /* of the block */
} rm_holes;

/* A block of `size` free bytes. *holes is zeroed, or was begun before (its memory is used again). false: out of host
 * memory. */
bool rm_holes_begin(rm_holes *holes, uint64_t size);
void rm_holes_free(rm_holes *holes);

/* The lowest (highest) place with room for so many bytes, at the low (high) end of its hole. false: no hole is large
 * enough. */
bool rm_holes_take_low(rm_holes *holes, uint64_t bytes, uint64_t *offset);
bool rm_holes_take_high(rm_holes *holes, uint64_t bytes, uint64_t *offset);

/* Gives taken bytes back; joins the holes on either side. false: out of host memory. */
bool rm_holes_give(rm_holes *holes, uint64_t offset, uint64_t bytes);

#endif

/* pack_greedy.h: fast placements that are mostly good. Used only by pack_smallest.c. */
#ifndef RM_PACK_GREEDY_H
#define RM_PACK_GREEDY_H

#include "memory/pack.h"

/* All improve *out if they can, until out->bytes <= goal_bytes. Before the call, out->offset is allocated, out->bytes
 * is UINT64_MAX if *out holds no placement yet, and out->floor_bytes is right. They return false if out of host
 * memory. */

/* Sweeps through time, into a block of any size (which always works), then into one of exactly the floor. O(n log n)
 * each, at most seven sweeps. */
bool rm_pack_sweep_floor(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, rm_pack_limit *limit,
                         rm_packing *out);

/* The same in blocks between the floor and the best so far: up to about forty sweeps. */
bool rm_pack_sweep_above(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, rm_pack_limit *limit,
                         rm_packing *out);

/* Fits in three other orders, with so many rounds of repair each. O(n^2) for each round. */
bool rm_pack_fits(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, int64_t rounds, rm_pack_limit *limit,
                  rm_packing *out);

#endif

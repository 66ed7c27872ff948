/* pack_greedy.h: placements that are made in one go, and are mostly good. Used by pack_smallest.c alone. */
#ifndef RM_PACK_GREEDY_H
#define RM_PACK_GREEDY_H

#include "memory/pack.h"

/* All make *out better if they can, until out->bytes <= goal_bytes. out->offset is there; out->bytes is UINT64_MAX if there
 * is no placement in it yet; out->floor_bytes is right. false: out of host memory. */

/* Through time, into a block of any size (which always works), then into one of exactly the floor. O(n log n) each; seven
 * at most. */
bool rm_pack_sweep_floor(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, rm_pack_limit *limit,
                         rm_packing *out);

/* The same in blocks between the floor and the best so far: up to about forty. */
bool rm_pack_sweep_above(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, rm_pack_limit *limit,
                         rm_packing *out);

/* In three orders that are not time's, and so many rounds of mending each. O(n^2) for each round. */
bool rm_pack_fits(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, int64_t rounds, rm_pack_limit *limit,
                  rm_packing *out);

#endif

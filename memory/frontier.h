/* frontier.h: what one interval of a chain can be solved for (footprint.h): points that no other point beats in both
 * bytes and time, ascending in bytes and descending in time. Two frontiers combine in one pass over both. */
#ifndef RM_FRONTIER_H
#define RM_FRONTIER_H

#include "memory/footprint.h"

typedef struct {
    uint64_t peak_bytes, time_ns;
    int16_t move;         /* how it was made: the caller's business ...  */
    uint16_t right, left; /* ... and the points of the parts that it is made of: never more than 2^16 in a frontier */
} rm_point;

/* Of a point, what matters to those that it is a part of. */
typedef struct {
    uint64_t peak_bytes, time_ns;
} remat_cost;

/* Forward over the left part, dropping; the right part beside a held state; the left part. */
typedef struct {
    uint64_t sweep_bytes; /* the most alive in the sweep */
    uint64_t beside_bytes;
    uint64_t time_ns;
} rm_sweep;

/* Each writes points to `out` (room for n_right + n_left, for n_right, for n_a + n_b) and answers how many. */
int rm_frontier_split(const remat_cost *right, int n_right, const remat_cost *left, int n_left, rm_sweep sweep,
                      int move, rm_point *out);
int rm_frontier_first(rm_kept kept, uint64_t dstate_bytes, const remat_cost *right, int n_right, int move,
                      rm_point *out);
int rm_frontier_merge(const rm_point *a, int n_a, const rm_point *b, int n_b, rm_point *out);

/* In place: the ends, and of the others at most most-2, evenly spaced along the curve where both axes are logarithmic and
 * as long as each other. */
int rm_frontier_thin(rm_point *point, int n, int most);

/* Times of many runs may pass 2^64. */
static inline uint64_t rm_saturate(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

#endif

/* frontier.h: the Pareto frontier of one interval of a chain (footprint.h): solutions that no other beats in both bytes
 * and time, sorted by ascending bytes and descending time. Two frontiers combine in one pass over both. */
#ifndef RM_FRONTIER_H
#define RM_FRONTIER_H

#include "memory/footprint.h"

typedef struct {
    uint64_t peak_bytes, time_ns;
    int16_t move;         /* how the point was made, defined by the caller */
    uint16_t right, left; /* the points of the two parts that it combines; a frontier has at most 2^16 points */
} rm_point;

/* The numbers of a point that matter to larger intervals. */
typedef struct {
    uint64_t peak_bytes, time_ns;
} rm_point_cost;

/* Runs the left part forward, dropping; solves the right part while a state is held; then solves the left part. */
typedef struct {
    uint64_t sweep_bytes; /* the most bytes alive in the forward runs */
    uint64_t beside_bytes;
    uint64_t time_ns;
} rm_split_cost;

/* Each writes points to `out` (capacity: n_right + n_left, n_right, n_a + n_b) and returns their number. */
int rm_frontier_split(const rm_point_cost *right, int n_right, const rm_point_cost *left, int n_left, rm_split_cost sweep, int move,
                      rm_point *out);
int rm_frontier_first(rm_kept kept, uint64_t dstate_bytes, const rm_point_cost *right, int n_right, int move, rm_point *out);
int rm_frontier_merge(const rm_point *a, int n_a, const rm_point *b, int n_b, rm_point *out);

/* Thins the frontier in place. Keeps both ends and at most most-2 other points, evenly spaced along the curve in
 * logarithmic axes of equal length. */
int rm_frontier_thin(rm_point *point, int n, int most);

/* Saturating sum: the time of many runs may exceed 2^64. */
static inline uint64_t rm_saturate(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

#endif

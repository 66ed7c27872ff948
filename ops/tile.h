/* tile.h: the position of a call's tile in time. Apart from shape.h, because CUDA files need this but none of its
 * checks. */
#ifndef RM_TILE_H
#define RM_TILE_H

#include "ops/op.h"

/* Timesteps in this call's tile, for an operand x: its first dim if that is time, else 1. No flag is needed: a tile
 * has at most t_total - t0 steps, t_total is 1 without a time axis, and a first dim of 1 means the same either way. */
static inline int64_t rm_call_steps(const remat_call *call, const remat_desc *x) {
    return x->rank > 0 && x->dim[0] <= call->t_total - call->t0 ? x->dim[0] : 1;
}

/* Scales a count of rows or elements of x in this tile, `part`, to the whole sequence. */
static inline double rm_call_total(const remat_call *call, const remat_desc *x, int64_t part) {
    return (double)(part / rm_call_steps(call, x)) * (double)call->t_total;
}

#endif

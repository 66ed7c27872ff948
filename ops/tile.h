/* tile.h: where a call stands in time. Beside shape.h, because CUDA files need this and none of its refusals. */
#ifndef RM_TILE_H
#define RM_TILE_H

#include "ops/op.h"

/* Timesteps in this call's tile, for an operand x: its first dim where that is time, else 1. Needs no flag: a tile has
 * at most t_total - t0 steps, t_total is 1 where there is no time, and a first dim of 1 means the same either way. */
static inline int64_t rm_call_steps(const remat_call *call, const remat_desc *x) {
    return x->rank > 0 && x->dim[0] <= call->t_total - call->t0 ? x->dim[0] : 1;
}

/* `part` counts things of x in this tile (rows, elements); the result, those of the whole sequence. */
static inline double rm_call_total(const remat_call *call, const remat_desc *x, int64_t part) {
    return (double)(part / rm_call_steps(call, x)) * (double)call->t_total;
}

#endif

/* norm.h: how layer_norm and rms_norm add up the gradients of gains and biases on CUDA, while they compute dx. A warp adds up
 * its rows' in registers, a block those of its warps, and writes them to scratch (blocks,vectors,columns). So this is
 * done up to as many columns as a warp holds in registers. */
#ifndef RM_NORM_H
#define RM_NORM_H

#include "ops/op.h"

enum { RM_NORM_COLUMNS = 1024, RM_NORM_WARPS = 4, RM_NORM_BLOCKS = 384 /* about as many as run at once */ };

static inline int64_t rm_norm_blocks(int64_t rows) {
    const int64_t blocks = (rows + RM_NORM_WARPS - 1) / RM_NORM_WARPS;
    return blocks < RM_NORM_BLOCKS ? blocks : (int64_t)RM_NORM_BLOCKS;
}

/* vectors: 1 with gains alone, 2 with biases. */
static inline uint64_t rm_norm_scratch_bytes(int64_t rows, int64_t columns, int vectors, remat_pass pass) {
    if (pass != REMAT_BACKWARD || columns > RM_NORM_COLUMNS) return 0;
    return (uint64_t)(rm_norm_blocks(rows) * vectors * columns) * sizeof(float);
}

#endif

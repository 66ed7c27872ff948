/* norm.h: how layer_norm and rms_norm add up the gradients of gains and biases on CUDA, while they compute dx. A warp, or for
 * longer rows a block, adds up its rows' in registers; a block writes its sums, or those of its warps, to scratch
 * (blocks,vectors,columns). So this is done up to as many columns as a block holds in registers. */
#ifndef RM_NORM_H
#define RM_NORM_H

#include "ops/op.h"

enum {
    RM_NORM_COLUMNS = 4096,
    RM_NORM_WARP_COLUMNS = 1024, /* up to these a warp handles a row, of four in a block */
    RM_NORM_WARPS = 4,
    RM_NORM_BLOCKS = 384, /* about as many as run at once */
    RM_NORM_WIDE_BLOCKS = 256
};

static inline int64_t rm_norm_blocks(int64_t rows, int64_t columns) {
    const bool wide = columns > RM_NORM_WARP_COLUMNS;
    const int64_t blocks = wide ? rows : (rows + RM_NORM_WARPS - 1) / RM_NORM_WARPS;
    const int64_t most = wide ? RM_NORM_WIDE_BLOCKS : RM_NORM_BLOCKS;
    return blocks < most ? blocks : most;
}

/* vectors: 1 with gains alone, 2 with biases. */
static inline uint64_t rm_norm_scratch_bytes(int64_t rows, int64_t columns, int vectors, remat_pass pass) {
    if (pass != REMAT_BACKWARD || columns > RM_NORM_COLUMNS) return 0;
    return (uint64_t)(rm_norm_blocks(rows, columns) * vectors * columns) * sizeof(float);
}

#endif

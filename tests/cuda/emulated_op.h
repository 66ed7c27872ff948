/* emulated_op.h: an op with its CUDA kernels in the CPU's column, the only one that the harness of tests/ops reads. */
#ifndef RM_EMULATED_OP_H
#define RM_EMULATED_OP_H

#include "ops/op.h"

static inline remat_op emulated(const remat_op *op) {
    remat_op other = *op;
    other.on[REMAT_ON_CPU] = op->on[REMAT_ON_CUDA];
    return other;
}

#endif

/* emulated_op.h: an op with its CUDA column where the harness of tests/ops looks, which knows of the CPU's alone. */
#ifndef RM_EMULATED_OP_H
#define RM_EMULATED_OP_H

#include "ops/op.h"

static inline remat_op emulated(const remat_op *op) {
    remat_op other = *op;
    other.on[REMAT_ON_CPU] = op->on[REMAT_ON_CUDA];
    return other;
}

#endif

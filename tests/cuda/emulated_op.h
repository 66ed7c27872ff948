/* emulated_op.h: an op with its CUDA column where the harness of tests/ops looks, which knows of the CPU's alone. */
#ifndef RM_EMULATED_OP_H
#define RM_EMULATED_OP_H

#include "ops/op.h"

static inline rm_op emulated(const rm_op *op) {
    rm_op other = *op;
    other.on[RM_DEVICE_CPU] = op->on[RM_DEVICE_CUDA];
    return other;
}

#endif

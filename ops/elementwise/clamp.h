/* clamp.h: the formulas of the op `clamp`, for the CPU and CUDA. */
#ifndef RM_CLAMP_H
#define RM_CLAMP_H

#include "ops/real.h"

#include "engine/host_device.h"
#include "ops/op.h"

typedef struct {
    real low, high;
    bool open;
} rm_clamp_bounds;

static inline rm_clamp_bounds rm_clamp_bounds_of(const void *attr) {
    const rm_clamp_attr *a = (const rm_clamp_attr *)attr;
    rm_clamp_bounds bounds = {(real)a->low, (real)a->high, a->open != 0};
    return bounds;
}

/* NaN is passed through. */
RM_HD real rm_clamp(real x, rm_clamp_bounds b) { return x < b.low ? b.low : x > b.high ? b.high : x; }
RM_HD real rm_clamp_backward(real dy, real x, rm_clamp_bounds b) {
    bool inside = b.open ? x > b.low && x < b.high : x >= b.low && x <= b.high;
    return inside ? dy : 0;
}

#endif

/* activation.h: the mathematics of the element-wise ops, for their definitions in C and their CUDA kernels alike. What goes
 * into a recurrent cell is in cell_math.h. */
#ifndef RM_ACTIVATION_H
#define RM_ACTIVATION_H

#include "ops/real.h"

#include <stdint.h>

#include "engine/host_device.h"

/* Phi(x), the normal distribution, by erfc so that it keeps its digits for x far below 0; and its derivative. */
RM_HD real rm_normal_below(real x) { return (real)0.5 * real_erfc(-x * (real)0.70710678118654752440); }
RM_HD real rm_normal_density(real x) { return (real)0.39894228040143267794 * real_exp((real)-0.5 * x * x); }

/* rm_tanh(x) and rm_tanh_backward(dy, y), and so on: the formulas of activations.def. */
#define ACTIVATION(op, formula, reads, derivative, ...)                                                                \
    RM_HD real rm_##op(real x) { return formula; }                                                                     \
    RM_HD real rm_##op##_backward(real dy, real reads) { return derivative; }
#include "ops/elementwise/activations.def"
#undef ACTIVATION

/* out = x / (1 - p) where the draw, of 24 bits, is at least p, else 0: `word` is rm_random's. */
static inline uint32_t rm_dropout_threshold(double p) { return (uint32_t)ceil(p * 0x1p24); }
static inline real rm_dropout_scale(double p) { return (real)(1 / (1 - p)); }
RM_HD real rm_dropout(real x, uint32_t word, uint32_t threshold, real scale) {
    real kept = x * scale; /* always computed: a choice, not a branch */
    return word >> 8 >= threshold ? kept : 0;
}

#endif

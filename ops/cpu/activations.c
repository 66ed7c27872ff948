/* cpu/activations.c: the loops of the activations, once per instruction set; the compiler vectorises activation.h.
 * Without contraction an element has the same bits in a vector and in the remainder, wherever a tile starts. */
#include "ops/elementwise/activation.h"

#include "ops/cpu/isa.h"

#define ACTIVATION(op, formula, reads, derivative, ...)                                                                \
    static void forward_##op(const float *restrict x, float *restrict y, int64_t n) {                                  \
        for (int64_t i = 0; i < n; i++) y[i] = rm_##op(x[i]);                                                          \
    }                                                                                                                  \
    static void backward_##op(const float *restrict dy, const float *restrict kept, float *restrict dx, int64_t n) {   \
        for (int64_t i = 0; i < n; i++) dx[i] = rm_##op##_backward(dy[i], kept[i]);                                    \
    }
#include "ops/elementwise/activations.def"
#undef ACTIVATION

const rm_activation_loops rm_activations[] = {
#define ACTIVATION(op, ...) {forward_##op, backward_##op},
#include "ops/elementwise/activations.def"
#undef ACTIVATION
};

/* cpu/rnn_relu.c: rnn_relu in vectors (plain_rnn.h), by the formulas of elementwise/activations.def. Compiled once per
 * instruction set. */
#include "ops/cpu/plain_rnn.h"

/* NaN is passed through. */
RM_INLINE rm_vec relu(rm_vec x) { return rm_most(rm_splat(0), x); }
RM_INLINE rm_vec relu_backward(rm_vec dh, rm_vec h) { return (rm_vec)((h > rm_splat(0)) & (rm_ivec)dh); }

PLAIN_RNN(rnn_relu, relu, relu_backward)

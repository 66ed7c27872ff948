/* cpu/rnn_tanh.c: rnn_tanh in vectors (plain_rnn.h). Compiled once per instruction set. */
#include "ops/cpu/plain_rnn.h"

RM_INLINE rm_vec tanh_backward(rm_vec dh, rm_vec h) { return dh * rm_fma(-h, h, rm_splat(1)); }

PLAIN_RNN(rnn_tanh, rm_vec_tanh, tanh_backward)

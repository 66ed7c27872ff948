/* cell_math.h: the mathematics of one unit of the recurrent cells, shared by their definitions in C (lstm.c, gru.c)
 * and their CUDA kernels (NAME.cu). The fast CPU kernels compute the same in vectors (ops/cpu). A plain RNN only needs
 * an activation and its derivative (activation.h).
 *
 * Forward and rebuild must give the same bits (remat_op.h, rules). A compiler may fuse a product and a sum in one
 * function but not in another, which rounds differently. Expressions that both compute therefore use real_fma
 * explicitly, and contain no other sum of products. */
#ifndef RM_CELL_MATH_H
#define RM_CELL_MATH_H

#include "ops/real.h"

#include "ops/elementwise/activation.h"

/* ---- lstm --------------------------------------------------------------------------------------------------------- */

/* The pre-activations of one unit, its gates, or the gradients of the pre-activations. */
typedef struct {
    real i, f, g, o;
} rm_lstm_gates;

RM_HD rm_lstm_gates rm_lstm_activate(rm_lstm_gates pre) {
    rm_lstm_gates a = {rm_sigmoid(pre.i), rm_sigmoid(pre.f), rm_tanh(pre.g), rm_sigmoid(pre.o)};
    return a;
}

/* c' = f c + i g */
RM_HD real rm_lstm_c(rm_lstm_gates a, real c) { return real_fma(a.f, c, a.i * a.g); }
/* h' = o tanh(c') */
RM_HD real rm_lstm_h(real o, real c_next) { return o * rm_tanh(c_next); }

/* dh and *dc: the gradients of h' and, from later timesteps, of c'. *dc becomes that of c. */
RM_HD rm_lstm_gates rm_lstm_backward_of(rm_lstm_gates a, real tanh_c, real c, real dh, real *dc) {
    rm_lstm_gates d;
    real dc_next = *dc + dh * a.o * (1 - tanh_c * tanh_c); /* h' = o tanh(c') */
    d.o = dh * tanh_c * a.o * (1 - a.o);                                             /* o = sigmoid(..) */
    d.i = dc_next * a.g * a.i * (1 - a.i);                                           /* c' = f c + i g  */
    d.f = dc_next * c * a.f * (1 - a.f);
    d.g = dc_next * a.i * (1 - a.g * a.g);
    *dc = dc_next * a.f;
    return d;
}
RM_HD rm_lstm_gates rm_lstm_backward(rm_lstm_gates a, real c_next, real c, real dh, real *dc) {
    return rm_lstm_backward_of(a, rm_tanh(c_next), c, dh, dc);
}

/* ---- gru ---------------------------------------------------------------------------------------------------------- */

/* As above. q, the part of the n gate that comes from h, is a separate pre-activation; pre.n is the part of x only. */
typedef struct {
    real n, r, z, q;
} rm_gru_gates;

/* n = tanh(x W_in^T + b_in + r q), where n is still x's part of it. */
RM_HD real rm_gru_n(rm_gru_gates a) { return rm_tanh(real_fma(a.r, a.q, a.n)); }
RM_HD rm_gru_gates rm_gru_activate(rm_gru_gates pre) {
    rm_gru_gates a = {pre.n, rm_sigmoid(pre.r), rm_sigmoid(pre.z), pre.q};
    a.n = rm_gru_n(a);
    return a;
}

/* h' = (1 - z) n + z h */
RM_HD real rm_gru_h(rm_gru_gates a, real h) { return real_fma(a.z, h, (1 - a.z) * a.n); }

/* dh: the gradient of h'. *dh_direct: its part that reaches h through z only. */
RM_HD rm_gru_gates rm_gru_backward(rm_gru_gates a, real h, real dh, real *dh_direct) {
    rm_gru_gates d;
    d.n = dh * (1 - a.z) * (1 - a.n * a.n); /* h' = (1 - z) n + z h; n = tanh(.. + r q) */
    d.z = dh * (h - a.n) * a.z * (1 - a.z);
    d.r = d.n * a.q * a.r * (1 - a.r);
    d.q = d.n * a.r;
    *dh_direct = dh * a.z;
    return d;
}

#endif

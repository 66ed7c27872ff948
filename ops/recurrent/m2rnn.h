/* m2rnn.h: one timestep of a head of the op `m2rnn`, for its fast loops (ops/cpu/m2rnn.c). The products with W are not
 * among them. And the scratch of the CUDA kernels. */
#ifndef RM_M2RNN_H
#define RM_M2RNN_H

#include <stdint.h>

#include "engine/host_device.h"

/* The precision of the op file that includes this (ops/real.h, which kernels need not include). */
#ifdef RM_REAL_DOUBLE
typedef double rm_m2rnn_real;
#else
typedef float rm_m2rnn_real;
#endif

typedef struct {
    int64_t keys, values;
    const rm_m2rnn_real *q, *k, *v; /* (K), (K), (V) */
    rm_m2rnn_real f;
    const rm_m2rnn_real *before, *after, *z, *dy; /* backward: H, NULL: zeros; H'; Z, (K,V) each; (V) */
    rm_m2rnn_real *dq, *dk, *dv, *df;             /* backward: NULL: not wanted */
} rm_m2rnn_step;

typedef struct {
    /* z = k v^T */
    void (*outer)(const rm_m2rnn_step *s, rm_m2rnn_real *z);
    /* z = tanh z; to = f from + (1 - f) z. from NULL: zeros; it may be `to`. */
    void (*mix)(const rm_m2rnn_step *s, const rm_m2rnn_real *from, rm_m2rnn_real *z, rm_m2rnn_real *to);
    /* out = matrix^T by */
    void (*answer)(const rm_m2rnn_step *s, const rm_m2rnn_real *by, const rm_m2rnn_real *matrix, rm_m2rnn_real *out);
    /* G: the gradient of H', then what H gets of it without W; dp: that of tanh's argument. */
    void (*back)(const rm_m2rnn_step *s, rm_m2rnn_real *G, rm_m2rnn_real *dp);
} rm_m2rnn_rows;

/* Floats of backward's scratch on CUDA, for a head of a row of the batch (m2rnn.cu). */
RM_HD int64_t rm_m2rnn_cuda_floats(int64_t tau, int64_t keys, int64_t values) {
    return (2 * tau + 3) * keys * values + values * values;
}

#endif

/* base.h: a small correct op, y[t,c] = x[t,c]^2 w[c] + (t0 + t)/8. Each file in this folder redefines one of the macros
 * below, which gives an op with one mistake; unbroken.c has none. The harness for ops must accept unbroken.c and reject
 * all others (tests/ops/test_mutants.c). */
#include "ops/real.h"

#include <stdint.h>

#include "ops/op.h"
#include "ops/shape.h"

enum { X, W };

#ifndef SAVED_INPUTS
#define SAVED_INPUTS (1u << X | 1u << W)
#endif
#ifndef SAVES_OUTPUT
#define SAVES_OUTPUT false
#endif
#ifndef FIRST_FOR
#define FIRST_FOR 0
#endif
#ifndef Y_STEPS /* the timesteps that infer gives y, for those of x */
#define Y_STEPS x[X].dim[0]
#endif
#ifndef WRITTEN_ROWS /* of the output */
#define WRITTEN_ROWS steps
#endif
#ifndef TIMESTEP
#define TIMESTEP (call->t0 + t)
#endif
#ifndef VALUE
#define VALUE(i) (x[i] * x[i] * w[j])
#endif
#ifndef SCRATCH_USED /* used elements of scratch; the op declares c */
#define SCRATCH_USED c
#endif
#ifndef SET_DX /* scratch[j] is 2 w[j] */
#define SET_DX(i) dx[i] = dy[i] * x[i] * scratch[j]
#endif
#ifndef SET_DW
#define SET_DW(i) dw[j] += dy[i] * x[i] * x[i]
#endif
#ifndef FLOPS
#define FLOPS 3
#endif

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("mutant", "x", &x[X]));
    TRY(rm_want_rank("mutant", "x", &x[X], 2, 2));
    TRY(rm_want_vector("mutant", "w", &x[W], x[X].dim[1]));
    *y = x[X];
    y->dim[0] = Y_STEPS;
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_cost_streaming(y, FLOPS, 2);
    if (pass == REMAT_BACKWARD) out->scratch_bytes = (uint64_t)x[X].dim[1] * sizeof(real);
}

static void forward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data;
    real *y = call->y.data;
    int64_t steps = call->y.desc.dim[0], c = call->y.desc.dim[1];
    for (int64_t t = 0; t < WRITTEN_ROWS; t++)
        for (int64_t j = 0; j < c; j++) y[t * c + j] = VALUE(t * c + j) + (real)0.125 * (real)TIMESTEP;
}

static void backward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data, *y = call->y.data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data, *scratch = call->scratch;
    int64_t steps = call->dy.desc.dim[0], c = call->dy.desc.dim[1];
    (void)y;
    for (int64_t j = 0; j < SCRATCH_USED; j++) scratch[j] = 2 * w[j < c ? j : 0];
    for (int64_t t = 0; t < steps; t++)
        for (int64_t j = 0; j < c; j++) {
            if (dx) SET_DX(t * c + j);
            if (dw) SET_DW(t * c + j);
        }
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 7, 5), RM_SHAPE1(RM_REAL, 5)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 9), RM_SHAPE1(RM_REAL, 9)}},
};

#define MUTANT(title)                                                                                                  \
    const remat_op RM_OP(title) = {                                                                                    \
        .struct_bytes = sizeof(remat_op),                                                                              \
        .name = "mutant",                                                                                              \
        .doc = #title,                                                                                                 \
        .n_in = 2,                                                                                                     \
        .shared = 1u << W,                                                                                             \
        .time = REMAT_TIME_POINTWISE,                                                                                  \
        .saves = {.in = SAVED_INPUTS, .out = SAVES_OUTPUT},                                                            \
        .infer = infer,                                                                                                \
        .cost = cost,                                                                                                  \
        .define_forward = forward,                                                                                     \
        .define_backward = backward,                                                                                   \
        .on[REMAT_ON_CPU].forward = forward,                                                                           \
        .on[REMAT_ON_CPU].backward = backward,                                                                         \
        .samples = samples,                                                                                            \
        .n_samples = 2,                                                                                                \
        .first_for = FIRST_FOR,                                                                                        \
    }

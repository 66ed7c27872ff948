/* lean_base.h: like base.h, for ops that can be saved lean: y[t,c] = x[t,c]^2 w[c]. Forward saves aux[t,c] = 2 x[t,c]
 * w[c] for backward, and rebuild computes it again from x and w. Each file in this folder redefines one of the macros
 * below, which gives an op with one mistake; rebuild_unbroken.c and cheap_unbroken.c have none. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

enum { X, W };

#ifndef KEPT /* the values that forward saves in aux */
#define KEPT(i) (2 * x[i] * w[j])
#endif
#ifndef REBUILT
#define REBUILT(i) (2 * x[i] * w[j])
#endif
#ifndef REBUILT_ROWS
#define REBUILT_ROWS steps
#endif
#ifndef REBUILD_ALSO /* an additional last statement of rebuild */
#define REBUILD_ALSO (void)0
#endif
#ifndef BACKWARD_ALSO
#define BACKWARD_ALSO (void)0
#endif
#ifndef REBUILD_FLOPS
#define REBUILD_FLOPS 2
#endif
#ifndef REBUILDS
#define REBUILDS NULL
#endif
#ifndef LEAN
#define LEAN .define_rebuild = rebuild, .on[REMAT_ON_CPU].rebuild = rebuild
#endif

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("mutant", "x", &x[X]));
    TRY(rm_want_rank("mutant", "x", &x[X], 2, 2));
    TRY(rm_want_vector("mutant", "w", &x[W], x[X].dim[1]));
    *y = x[X];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_cost_streaming(y, pass == REMAT_REBUILD ? REBUILD_FLOPS : 3, 2);
    if (pass == REMAT_REBUILD) out->scratch_bytes = (uint64_t)x[X].dim[1] * sizeof(real);
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    return rm_desc_bytes(&x[X]);
}

static void forward(const remat_call *call) {
    const real *x = call->x[X].data, *w = call->x[W].data;
    real *y = call->y.data, *aux = call->aux;
    int64_t steps = call->y.desc.dim[0], c = call->y.desc.dim[1];
    for (int64_t t = 0; t < steps; t++)
        for (int64_t j = 0; j < c; j++) {
            y[t * c + j] = x[t * c + j] * x[t * c + j] * w[j];
            if (aux) aux[t * c + j] = KEPT(t * c + j);
        }
}

__attribute__((unused)) static void rebuild(const remat_call *call) {
    real *x = call->x[X].data, *w = call->x[W].data, *y = call->y.data, *aux = call->aux, *scratch = call->scratch;
    int64_t steps = call->x[X].desc.dim[0], c = call->x[X].desc.dim[1];
    (void)y, (void)scratch;
    for (int64_t t = 0; t < REBUILT_ROWS; t++)
        for (int64_t j = 0; j < c; j++) aux[t * c + j] = REBUILT(t * c + j);
    REBUILD_ALSO;
}

static void backward(const remat_call *call) {
    const real *x = call->x[X].data, *aux = call->aux, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data;
    int64_t steps = call->dy.desc.dim[0], c = call->dy.desc.dim[1];
    for (int64_t t = 0; t < steps; t++)
        for (int64_t j = 0; j < c; j++) {
            int64_t i = t * c + j;
            if (dx) dx[i] = dy[i] * aux[i];
            if (dw) dw[j] += dy[i] * x[i] * x[i];
        }
    BACKWARD_ALSO;
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
        .saves = {.in = 1u << X},                                                                                      \
        .infer = infer,                                                                                                \
        .cost = cost,                                                                                                  \
        .aux_bytes = aux_bytes,                                                                                        \
        .define_forward = forward,                                                                                     \
        .define_backward = backward,                                                                                   \
        .on[REMAT_ON_CPU].forward = forward,                                                                           \
        .on[REMAT_ON_CPU].backward = backward,                                                                         \
        LEAN,                                                                                                          \
        .rebuilds = REBUILDS,                                                                                          \
        .samples = samples,                                                                                            \
        .n_samples = 2,                                                                                                \
    }

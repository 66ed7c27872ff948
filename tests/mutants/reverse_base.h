/* reverse_base.h: x with time reversed. As with base.h, each file that includes it redefines one of the macros
 * below. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

#ifndef TIME
#define TIME REMAT_TIME_REVERSE
#endif
#ifndef PLACE /* of timestep t */
#define PLACE(t) (steps - 1 - (t))
#endif
#ifndef PLACE_BACK
#define PLACE_BACK(t) (steps - 1 - (t))
#endif

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("mutant", "x", &x[0]));
    TRY(rm_want_rank("mutant", "x", &x[0], 2, 2));
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 0, 2);
}

static void forward(const remat_call *call) {
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t steps = call->y.desc.dim[0], c = call->y.desc.dim[1];
    for (int64_t i = 0; i < steps * c; i++) y[PLACE(i / c) * c + i % c] = x[i];
}

static void backward(const remat_call *call) {
    const real *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t steps = call->dy.desc.dim[0], c = call->dy.desc.dim[1];
    for (int64_t i = 0; dx && i < steps * c; i++) dx[PLACE_BACK(i / c) * c + i % c] = dy[i];
}

static const remat_sample samples[] = {{.name = "sequence", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 7, 5)}}};

#define MUTANT(title)                                                                                                  \
    const remat_op RM_OP(title) = {                                                                                    \
        .struct_bytes = sizeof(remat_op),                                                                              \
        .name = "mutant",                                                                                              \
        .doc = #title,                                                                                                 \
        .n_in = 1,                                                                                                     \
        .time = TIME,                                                                                                  \
        .infer = infer,                                                                                                \
        .cost = cost,                                                                                                  \
        .on[REMAT_ON_CPU].forward = forward,                                                                           \
        .on[REMAT_ON_CPU].backward = backward,                                                                         \
        .samples = samples,                                                                                            \
        .n_samples = 1,                                                                                                \
    }

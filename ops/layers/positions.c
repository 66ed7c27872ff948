/* positions.c: learned positions: adds to every timestep its row of a table. */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

enum { X, W };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    char x_text[REMAT_DESC_TEXT], w_text[REMAT_DESC_TEXT];
    TRY(rm_want_real("positions", "x", &x[X]));
    TRY(rm_want_rank("positions", "x", &x[X], 3, 3));
    TRY(rm_want_real("positions", "w", &x[W]));
    TRY(rm_want_rank("positions", "w", &x[W], 2, 2));
    REQUIRE(x[W].dim[0] >= x[X].dim[0] && x[W].dim[1] == x[X].dim[2], INVALID,
            "positions: x is %s and w is %s; w must be (P,%lld), with P at least the timesteps of x",
            rm_desc_text(&x[X], x_text), rm_desc_text(&x[W], w_text), (long long)x[X].dim[2]);
    *y = x[X];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 1, 3);
}

static void forward(const remat_call *call) {
    const real *x = call->x[X].data, *w = (const real *)call->x[W].data + call->t0 * call->x[W].desc.dim[1];
    real *y = call->y.data;
    int64_t steps = call->y.desc.dim[0], batch = call->y.desc.dim[1], c = call->y.desc.dim[2];
    RM_PARALLEL_FOR(
        call->threads, steps * batch * c > RM_PARALLEL_MIN,
        for (int64_t t = 0; t < steps; t++) for (int64_t b = 0; b < batch; b++) for (int64_t i = 0; i < c; i++)
            y[(t * batch + b) * c + i] = x[(t * batch + b) * c + i] + w[t * c + i];);
}

static void backward(const remat_call *call) {
    const real *dy = call->dy.data;
    real *dx = call->dx[X].data, *dw = call->dx[W].data;
    int64_t steps = call->dy.desc.dim[0], batch = call->dy.desc.dim[1], c = call->dy.desc.dim[2];
    if (dx) memcpy(dx, dy, rm_desc_bytes(&call->dy.desc));
    if (!dw) return;
    dw += call->t0 * c;
    RM_PARALLEL_FOR(call->threads, steps * batch * c > RM_PARALLEL_MIN,
                    for (int64_t t = 0; t < steps; t++) for (int64_t b = 0; b < batch; b++) for (int64_t i = 0; i < c;
                                                                                                 i++) dw[t * c + i] +=
                    dy[(t * batch + b) * c + i];);
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE2(RM_REAL, 60, 7)}},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 9, 81, 93), RM_SHAPE2(RM_REAL, 90, 93)}},
};

const remat_op RM_OP(positions) = {
    .struct_bytes = sizeof(remat_op),
    .name = "positions",
    .doc = "y (T,B,C) = x (T,B,C) + row t of w (P,C) at every timestep t",
    .n_in = 2,
    .shared = 1u << W,
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(positions)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

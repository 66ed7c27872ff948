/* relu.c: the op `relu`. Backward reads y, which the next layer usually keeps anyway, not x: where one is above 0, so
 * is the other. */
#include "ops/real.h"

#include "ops/activation.h"
#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("relu", "x", &x[0]));
    *y = x[0];
    return REMAT_OK;
}

static void cost(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 1, 2);
    if (pass == RM_BACKWARD) *out = rm_cost_streaming(y, 1, 3);
}

static void forward(const rm_call *call) {
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t n = rm_desc_count(&call->y.desc);
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) y[i] = rm_relu(x[i]););
}

static void backward(const rm_call *call) {
    const real *y = call->y.data, *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t n = rm_desc_count(&call->dy.desc);
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t i = 0; i < n; i++) dx[i] = rm_relu_backward(dy[i], y[i]););
}

static const rm_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11)}},
    {.name = "one element", .x = {RM_SHAPE1(RM_REAL, 1)}},
};

const rm_op RM_OP(relu) = {
    .name = "relu",
    .doc = "y = max(x, 0); the gradient at 0 is 0; any shape",
    .n_in = 1,
    .time = RM_TIME_POINTWISE,
    .saves = {.out = true},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .forward = {forward, RM_CUDA(relu, forward)},
    .backward = {backward, RM_CUDA(relu, backward)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

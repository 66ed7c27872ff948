/* gelu.c: the op `gelu`, the exact one, x Phi(x), which is PyTorch's default; the tanh approximation would be another
 * op. Not `cheap`: erfc takes six times as long as saving y and reading it (bench/pointwise.c). A good file to copy for a
 * new element-wise op (ops/README.md). */
#include "ops/real.h"

#include "ops/activation.h"
#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("gelu", "x", &x[0]));
    *y = x[0];
    return REMAT_OK;
}

static void cost(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 30, 2);
    if (pass == RM_BACKWARD) *out = rm_cost_streaming(y, 40, 3);
}

static void forward(const rm_call *call) {
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t n = rm_desc_count(&call->y.desc);
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) y[i] = rm_gelu(x[i]););
}

static void backward(const rm_call *call) {
    const real *x = call->x[0].data, *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t n = rm_desc_count(&call->dy.desc);
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t i = 0; i < n; i++) dx[i] = rm_gelu_backward(dy[i], x[i]););
}

static const rm_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11)}},
    {.name = "one element", .x = {RM_SHAPE1(RM_REAL, 1)}},
};

const rm_op RM_OP(gelu) = {
    .name = "gelu",
    .doc = "y = x Phi(x), Phi the standard normal distribution; any shape",
    .n_in = 1,
    .time = RM_TIME_POINTWISE,
    .saves = {.in = 1u << 0},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .forward = {forward, RM_CUDA(gelu, forward)},
    .backward = {backward, RM_CUDA(gelu, backward)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

/* add.c: the op `add`: the sum of two values of one shape. (If a value is used twice, the engine itself adds its
 * gradients.) */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("add", "a", &x[0]));
    TRY(rm_want_same("add", "a", &x[0], "b", &x[1]));
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 1, 3);
    if (pass == REMAT_BACKWARD) *out = rm_cost_streaming(y, 2, 3);
}

static void forward(const remat_call *call) {
    const real *a = call->x[0].data, *b = call->x[1].data;
    real *y = call->y.data;
    int64_t n = rm_desc_count(&call->y.desc);
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];);
}

/* y = a + b: both gradients are dy. */
static void backward(const remat_call *call) {
    size_t bytes = rm_desc_bytes(&call->dy.desc);
    for (int i = 0; i < 2; i++)
        if (call->dx[i].data) memcpy(call->dx[i].data, call->dy.data, bytes);
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11), RM_SHAPE2(RM_REAL, 3, 11)}},
    {.name = "one element", .x = {RM_SHAPE1(RM_REAL, 1), RM_SHAPE1(RM_REAL, 1)}},
};

const remat_op RM_OP(add) = {
    .struct_bytes = sizeof(remat_op),
    .name = "add",
    .doc = "y = a + b; same shape",
    .n_in = 2,
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(add)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

/* add_relu.c: the op `add_relu`: relu of a sum of two values of one shape, in one pass over them. It has no builder: fold.c
 * makes it of `add` and `relu`, whose bits it has. */
#include "ops/real.h"

#include "ops/elementwise/activation.h"
#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("add_relu", "a", &x[0]));
    TRY(rm_want_same("add_relu", "a", &x[0], "b", &x[1]));
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = pass == REMAT_BACKWARD ? rm_cost_streaming(y, 1, 4) : rm_cost_streaming(y, 2, 3);
}

static void forward(const remat_call *call) {
    const real *a = call->x[0].data, *b = call->x[1].data;
    real *y = call->y.data;
    int64_t n = rm_desc_count(&call->y.desc);
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) y[i] = rm_relu(a[i] + b[i]););
}

/* y = relu(a + b): both gradients are that of the sum. */
static void backward(const remat_call *call) {
    const real *y = call->y.data, *dy = call->dy.data;
    int64_t n = rm_desc_count(&call->dy.desc);
    real *da = call->dx[0].data, *db = call->dx[1].data;
    if (!da) da = db, db = NULL;
    if (!da) return;
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) {
        const real d = rm_relu_backward(dy[i], y[i]);
        da[i] = d;
        if (db) db[i] = d;
    });
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11), RM_SHAPE2(RM_REAL, 3, 11)}},
    {.name = "large enough for threads", .x = {RM_SHAPE2(RM_REAL, 301, 73), RM_SHAPE2(RM_REAL, 301, 73)}},
};

const remat_op RM_OP(add_relu) = {
    .struct_bytes = sizeof(remat_op),
    .name = "add_relu",
    .doc = "y = max(a + b, 0), for values of one shape",
    .n_in = 2,
    .time = REMAT_TIME_POINTWISE,
    .saves = {.out = true},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(add_relu)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

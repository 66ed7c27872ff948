/* scale.c: the op `scale`: multiplication by a constant of the graph, and addition of another. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    TRY(rm_want_real("scale", "x", &x[0]));
    const rm_scale_attr *a = attr;
    REQUIRE(a && isfinite(a->factor), INVALID, "scale: the factor is %g; it must be finite", a ? a->factor : NAN);
    REQUIRE(isfinite(a->shift), INVALID, "shift: the amount is %g; it must be finite", a->shift);
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 1, 2);
    if (pass == REMAT_BACKWARD) *out = rm_cost_streaming(y, 1, 2);
}

static void forward(const remat_call *call) {
    const real *x = call->x[0].data;
    real *y = call->y.data;
    const rm_scale_attr *a = call->attr;
    real factor = (real)a->factor, shift = (real)a->shift;
    int64_t n = rm_desc_count(&call->y.desc);
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor + shift;);
}

static void backward(const remat_call *call) {
    const real *dy = call->dy.data;
    real *dx = call->dx[0].data;
    real factor = (real)((const rm_scale_attr *)call->attr)->factor;
    int64_t n = rm_desc_count(&call->dy.desc);
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * factor;); /* y = factor x + shift */
}

static const remat_sample samples[] = {
    {.name = "sequence",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)},
     .attr = &(rm_scale_attr){.factor = -1.5}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11)}, .attr = &(rm_scale_attr){.factor = 0.1}},
    {.name = "a shift", .x = {RM_SHAPE2(RM_REAL, 3, 11)}, .attr = &(rm_scale_attr){1, 0.75}},
};

const remat_op RM_OP(scale) = {
    .struct_bytes = sizeof(remat_op),
    .name = "scale",
    .doc = "y = factor x + shift; any shape",
    .n_in = 1,
    .attr_bytes = sizeof(rm_scale_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(scale)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

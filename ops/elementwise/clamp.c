/* clamp.c: the op `clamp`: x between two bounds, PyTorch's clamp and hardtanh. */
#include "ops/elementwise/clamp.h"

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_clamp_attr *a = attr;
    TRY(rm_want_real("clamp", "x", &x[0]));
    REQUIRE(a && a->low <= a->high, INVALID, "clamp: the bounds are %g and %g; give the lower one first",
            a ? a->low : NAN, a ? a->high : NAN);
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 2, pass == REMAT_BACKWARD ? 3 : 2);
}

static void forward(const remat_call *call) {
    const real *x = call->x[0].data;
    real *y = call->y.data;
    const rm_clamp_bounds b = rm_clamp_bounds_of(call->attr);
    int64_t n = rm_desc_count(&call->y.desc);
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) y[i] = rm_clamp(x[i], b););
}

static void backward(const remat_call *call) {
    const real *x = call->x[0].data, *dy = call->dy.data;
    real *dx = call->dx[0].data;
    const rm_clamp_bounds b = rm_clamp_bounds_of(call->attr);
    int64_t n = rm_desc_count(&call->dy.desc);
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t i = 0; i < n; i++) dx[i] = rm_clamp_backward(dy[i], x[i], b););
}

static const rm_clamp_attr between = {-0.3, 0.4, 0}, above = {0.1, INFINITY, 1};
static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}, .attr = &between},
    {.name = "one bound", .x = {RM_SHAPE2(RM_REAL, 3, 11)}, .attr = &above},
};

const remat_op RM_OP(clamp) = {
    .struct_bytes = sizeof(remat_op),
    .name = "clamp",
    .doc = "y = min(max(x, low), high); any shape",
    .n_in = 1,
    .attr_bytes = sizeof(rm_clamp_attr),
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << 0},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(clamp)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

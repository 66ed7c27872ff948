/* Says that its result is a sum divided by a count, and divides by the count's square: y = (sum of x) / count^2. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("mutant", "x", &x[0]));
    *y = (rm_desc)RM_SCALAR(RM_REAL);
    return REMAT_OK;
}

static void cost(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out) {
    (void)y, (void)attr, (void)pass;
    *out = rm_cost_streaming(&x[0], 1, 1);
}

static double sum_of(const rm_call *call) {
    const real *x = call->x[0].data;
    double sum = 0;
    for (int64_t i = 0; i < rm_desc_count(&call->x[0].desc); i++) sum += x[i];
    return sum;
}

static void forward(const rm_call *call) {
    double count = *(const real *)call->x[1].data;
    *(real *)call->y.data = (real)(sum_of(call) / (count * count));
}

static void backward(const rm_call *call) {
    double count = *(const real *)call->x[1].data, dy = *(const real *)call->dy.data;
    real *dx = call->dx[0].data, *dcount = call->dx[1].data;
    for (int64_t i = 0; dx && i < rm_desc_count(&call->x[0].desc); i++) dx[i] = (real)(dy / (count * count));
    if (dcount) *dcount -= (real)(2 * dy * sum_of(call) / (count * count * count));
}

static const rm_sample samples[] = {{.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 4), RM_SCALAR(RM_REAL)}}};

const rm_op RM_OP(denominator_squared) = {
    .struct_bytes = sizeof(rm_op),
    .name = "mutant",
    .doc = "denominator_squared",
    .n_in = 2,
    .weights = 1u << 1,
    .denominator = 1u << 1,
    .time = RM_TIME_SUM,
    .saves = {.in = 3},
    .infer = infer,
    .cost = cost,
    .on[RM_DEVICE_CPU].forward = forward,
    .on[RM_DEVICE_CPU].backward = backward,
    .samples = samples,
    .n_samples = 1,
};

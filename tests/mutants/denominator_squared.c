/* Declares its result as a sum divided by a count, but divides by the square of the count: y = (sum of x) / count^2. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("mutant", "x", &x[0]));
    *y = (remat_desc)RM_SCALAR(RM_REAL);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)y, (void)attr, (void)pass;
    *out = rm_cost_streaming(&x[0], 1, 1);
}

static double sum_of(const remat_call *call) {
    const real *x = call->x[0].data;
    double sum = 0;
    for (int64_t i = 0; i < rm_desc_count(&call->x[0].desc); i++) sum += x[i];
    return sum;
}

static void forward(const remat_call *call) {
    double count = *(const real *)call->x[1].data;
    *(real *)call->y.data = (real)(sum_of(call) / (count * count));
}

static void backward(const remat_call *call) {
    double count = *(const real *)call->x[1].data, dy = *(const real *)call->dy.data;
    real *dx = call->dx[0].data, *dcount = call->dx[1].data;
    for (int64_t i = 0; dx && i < rm_desc_count(&call->x[0].desc); i++) dx[i] = (real)(dy / (count * count));
    if (dcount) *dcount -= (real)(2 * dy * sum_of(call) / (count * count * count));
}

static const remat_sample samples[] = {{.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 4), RM_SCALAR(RM_REAL)}}};

const remat_op RM_OP(denominator_squared) = {
    .struct_bytes = sizeof(remat_op),
    .name = "mutant",
    .doc = "denominator_squared",
    .n_in = 2,
    .shared = 1u << 1,
    .denominator = 1u << 1,
    .time = REMAT_TIME_SUM,
    .saves = {.in = 3},
    .infer = infer,
    .cost = cost,
    .on[REMAT_ON_CPU].forward = forward,
    .on[REMAT_ON_CPU].backward = backward,
    .samples = samples,
    .n_samples = 1,
};

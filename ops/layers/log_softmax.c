/* log_softmax.c: x minus the logarithm of the sum of e^x along the last axis. softmax.h has the loops. */
#include "ops/layers/softmax.h"

static void make_row(const real *x, int64_t c, real *y) {
    const real largest = rm_row_largest(x, c);
    double sum = 0;
    for (int64_t i = 0; i < c; i++) sum += real_exp(x[i] - largest);
    const real log_sum = (real)log(sum);
    for (int64_t i = 0; i < c; i++) y[i] = x[i] - largest - log_sum;
}

/* dx = dy - e^y sum of dy */
static void slope_row(const real *y, const real *dy, int64_t c, real *dx) {
    double sum = 0;
    for (int64_t i = 0; i < c; i++) sum += dy[i];
    for (int64_t i = 0; i < c; i++) dx[i] = dy[i] - real_exp(y[i]) * (real)sum;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    return infer_rows("log_softmax", x, y);
}

const remat_op RM_OP(log_softmax) = {
    RM_SOFTMAX_OP(log_softmax),
    .doc = "y = x - log of the sum of e^x, along the last axis",
};

/* softmax.c: e^x over the sum of e^x along the last axis. softmax.h has the loops. */
#include "ops/layers/softmax.h"

static void make_row(const real *x, int64_t c, real *y) {
    const real largest = rm_row_largest(x, c);
    double sum = 0;
    for (int64_t i = 0; i < c; i++) sum += y[i] = real_exp(x[i] - largest);
    for (int64_t i = 0; i < c; i++) y[i] = (real)(y[i] / sum);
}

/* dx = y (dy - sum of dy y) */
static void slope_row(const real *y, const real *dy, int64_t c, real *dx) {
    double sum = 0;
    for (int64_t i = 0; i < c; i++) sum += (double)dy[i] * (double)y[i];
    for (int64_t i = 0; i < c; i++) dx[i] = y[i] * (dy[i] - (real)sum);
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    return infer_rows("softmax", x, y);
}

const remat_op RM_OP(softmax) = {
    RM_SOFTMAX_OP(softmax),
    .doc = "y = e^x / sum of e^x, along the last axis",
};

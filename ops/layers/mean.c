/* mean.c: the mean or sum over the last axes; over (H,W) a mean is a global average pool. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_mean_attr *a = attr;
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real("mean", "x", x));
    REQUIRE(a && a->axes > 0 && a->axes <= x->rank, INVALID,
            "mean: x is %s and axes is %lld; axes must be from 1 to the rank of x", rm_desc_text(x, text),
            a ? (long long)a->axes : 0);
    *y = *x;
    for (y->rank -= (int32_t)a->axes; y->rank < x->rank; y->rank++) y->dim[y->rank] = 1;
    y->rank -= (int32_t)a->axes;
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)y, (void)attr, (void)pass;
    *out = rm_cost_streaming(x, 1, 1);
}

/* The number that sums of n numbers are divided by. */
static double divisor(const void *attr, int64_t n) { return ((const rm_mean_attr *)attr)->sum ? 1 : (double)n; }

static void forward(const remat_call *call) {
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t rows = rm_desc_count(&call->y.desc), n = rm_desc_count(&call->x[0].desc) / rows;
    const double by = divisor(call->attr, n);
    RM_PARALLEL_FOR(
        call->threads, rows * n > RM_PARALLEL_MIN, for (int64_t r = 0; r < rows; r++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += x[r * n + i];
            y[r] = (real)(sum / by);
        });
}

static void backward(const remat_call *call) {
    const real *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t rows = rm_desc_count(&call->dy.desc), n = rm_desc_count(&call->x[0].desc) / rows;
    const real by = (real)divisor(call->attr, n);
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, rows * n > RM_PARALLEL_MIN,
                    for (int64_t r = 0; r < rows; r++) for (int64_t i = 0; i < n; i++) dx[r * n + i] = dy[r] / by;);
}

static const rm_mean_attr one = {1, 0}, two = {2, 0}, sum_of_two = {2, 1};
static const remat_sample samples[] = {
    {.name = "planes", .attr = &two, .x = {RM_SHAPE4(RM_REAL, 2, 3, 4, 5)}},
    {.name = "sums", .sequence = true, .attr = &sum_of_two, .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 5)}},
    {.name = "rows", .attr = &one, .x = {RM_SHAPE2(RM_REAL, 3, 7)}},
    {.name = "sequence", .sequence = true, .attr = &two, .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 5)}},
    {.name = "large enough for threads", .attr = &two, .x = {RM_SHAPE4(RM_REAL, 3, 7, 61, 57)}},
};

const remat_op RM_OP(mean) = {
    .struct_bytes = sizeof(remat_op),
    .name = "mean",
    .doc = "the mean or sum over the last axes: (..,H,W) -> (..)",
    .n_in = 1,
    .attr_bytes = sizeof(rm_mean_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(mean)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

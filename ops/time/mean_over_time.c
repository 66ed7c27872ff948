/* mean_over_time.c: the op `mean_over_time`: a mean or a sum. Each tile computes its share; the engine adds the shares. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("mean_over_time", "x", &x[0]));
    TRY(rm_want_rank("mean_over_time", "x", &x[0], 2, REMAT_MAX_RANK));
    *y = rm_desc_make(RM_REAL, x[0].rank - 1, x[0].dim + 1);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr, (void)pass;
    *out = rm_cost_streaming(&x[0], 1, 1);
    out->moved_bytes += (double)rm_desc_bytes(y);
}

static double divisor(const remat_call *call) {
    const rm_over_time_attr *a = call->attr;
    return a && a->sum ? 1 : (double)call->t_total;
}

/* Threads divide the columns; each column is summed in the order of time, in double, since it may be a loss. */
static void forward(const remat_call *call) {
    enum { WIDTH = 64 };
    const real *x = call->x[0].data; /* (tau,width) */
    real *y = call->y.data;          /* (width)     */
    int64_t steps = call->x[0].desc.dim[0], width = rm_desc_count(&call->y.desc);
    const double by = divisor(call);
    RM_PARALLEL_FOR(
        call->threads, steps * width > RM_PARALLEL_MIN, for (int64_t from = 0; from < width; from += WIDTH) {
            int64_t n = width - from < WIDTH ? width - from : WIDTH;
            double sum[WIDTH] = {0};
            for (int64_t t = 0; t < steps; t++)
                for (int64_t i = 0; i < n; i++) sum[i] += x[t * width + from + i];
            for (int64_t i = 0; i < n; i++) y[from + i] = (real)(sum[i] / by);
        });
}

static void backward(const remat_call *call) {
    const real *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t steps = call->x[0].desc.dim[0], width = rm_desc_count(&call->dy.desc);
    const real by = (real)divisor(call);
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, steps * width > RM_PARALLEL_MIN,
                    for (int64_t t = 0; t < steps; t++) /* y = sum over t of x[t] / T */
                    for (int64_t i = 0; i < width; i++) dx[t * width + i] = dy[i] / by;);
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "sums", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}, .attr = &(rm_over_time_attr){1}},
    {.name = "one timestep", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 1, 3, 2)}},
    {.name = "no features", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 9, 70)}},
};

const remat_op RM_OP(mean_over_time) = {
    .struct_bytes = sizeof(remat_op),
    .name = "mean_over_time",
    .doc = "y (B,..) = mean or sum over t of x[t], x (T,B,..)",
    .n_in = 1,
    .attr_bytes = sizeof(rm_over_time_attr),
    .time = REMAT_TIME_SUM,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(mean_over_time)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

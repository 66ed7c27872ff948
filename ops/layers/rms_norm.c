/* rms_norm.c: divides every row by the root of its mean square, then scales it. It saves x and one number per
 * row. */
#include "ops/real.h"

#include "ops/layers/norm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, GAIN, INPUTS };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_rms_norm_attr *a = attr;
    TRY(rm_want_real("rms_norm", "x", &x[X]));
    TRY(rm_want_rank("rms_norm", "x", &x[X], 1, REMAT_MAX_RANK));
    TRY(rm_want_vector("rms_norm", "gain", &x[GAIN], rm_desc_last(&x[X])));
    REQUIRE(a && a->epsilon > 0 && isfinite(a->epsilon), INVALID,
            "rms_norm: epsilon is %g; it must be above 0, such as 1e-6", a ? a->epsilon : 0.0);
    *y = x[X];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 4, 2);
    if (pass == REMAT_BACKWARD) *out = rm_cost_streaming(y, 10, 3);
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    return (uint64_t)rm_desc_rows(&x[X]) * sizeof(real);
}

/* Dot product in double, in four independent sums. */
static double dot(int64_t c, const real *a, const real *b) {
    double part[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= c; i += 4)
        for (int k = 0; k < 4; k++) part[k] += (double)a[i + k] * (double)b[i + k];
    for (; i < c; i++) part[0] += (double)a[i] * (double)b[i];
    return (part[0] + part[1]) + (part[2] + part[3]);
}

static void forward(const remat_call *call) {
    const remat_desc *shape = &call->x[X].desc;
    const real *gain = call->x[GAIN].data;
    real *rstd = call->aux; /* (rows), or NULL */
    double epsilon = ((const rm_rms_norm_attr *)call->attr)->epsilon;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    RM_PARALLEL_FOR(
        call->threads, rows * c > RM_PARALLEL_MIN_HEAVY, for (int64_t r = 0; r < rows; r++) {
            const real *x = (const real *)call->x[X].data + r * c;
            real *y = (real *)call->y.data + r * c;
            real factor = (real)(1 / sqrt(dot(c, x, x) / (double)c + epsilon));
            for (int64_t i = 0; i < c; i++) y[i] = x[i] * factor * gain[i];
            if (rstd) rstd[r] = factor;
        });
}

/* With g = dy gain and xhat = x rstd, dx = rstd (g - xhat mean(g xhat)). dx temporarily holds g. */
static void backward_row(int64_t c, const real *x, const real *gain, const real *dy, real rstd, real *dx) {
    for (int64_t i = 0; i < c; i++) dx[i] = dy[i] * gain[i];
    real mean = (real)(dot(c, dx, x) * rstd / (double)c);
    for (int64_t i = 0; i < c; i++) dx[i] = rstd * (dx[i] - x[i] * rstd * mean);
}

/* dgain += sum of dy xhat, for columns [from, to), over the rows in order. */
static void backward_columns(const remat_call *call, int64_t rows, int64_t c, int64_t from, int64_t to) {
    const real *x = call->x[X].data, *dy = call->dy.data, *rstd = call->aux;
    real *dgain = call->dx[GAIN].data;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = from; i < to; i++) dgain[i] += dy[r * c + i] * (x[r * c + i] * rstd[r]);
}

static void backward(const remat_call *call) {
    enum { WIDTH = 64 };
    const remat_desc *shape = &call->dy.desc;
    const real *x = call->x[X].data, *gain = call->x[GAIN].data, *dy = call->dy.data, *rstd = call->aux;
    real *dx = call->dx[X].data;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    bool large = rows * c > RM_PARALLEL_MIN_HEAVY;
    RM_PARALLEL_FOR(call->threads, large,
                    for (int64_t r = 0; r < (dx ? rows : 0); r++)
                        backward_row(c, x + r * c, gain, dy + r * c, rstd[r], dx + r * c););
    RM_PARALLEL_FOR(call->threads, large,
                    for (int64_t from = 0; from < (call->dx[GAIN].data ? c : 0); from += WIDTH)
                        backward_columns(call, rows, c, from, from + WIDTH < c ? from + WIDTH : c););
}

static uint64_t cuda_scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    (void)attr, (void)aux, (void)threads;
    return rm_norm_scratch_bytes(rm_desc_rows(&x[X]), rm_desc_last(&x[X]), 1, pass);
}

static const rm_rms_norm_attr usual = {1e-6};
static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .attr = &usual, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE1(RM_REAL, 7)}},
    {.name = "whole", .attr = &usual, .x = {RM_SHAPE2(RM_REAL, 3, 70), RM_SHAPE1(RM_REAL, 70)}},
    {.name = "large enough for threads",
     .sequence = true,
     .attr = &usual,
     .x = {RM_SHAPE3(RM_REAL, 3, 25, 240), RM_SHAPE1(RM_REAL, 240)}},
};

const remat_op RM_OP(rms_norm) = {
    .struct_bytes = sizeof(remat_op),
    .name = "rms_norm",
    .doc = "y = x / sqrt(mean(x^2) + epsilon) gain over the last axis; gain (C)",
    .n_in = INPUTS,
    .attr_bytes = sizeof(rm_rms_norm_attr),
    .shared = 1u << GAIN,
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << GAIN},
    .infer = infer,
    .cost = cost,
    .aux_bytes = aux_bytes,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward},
           {.forward = RM_CUDA(rms_norm, forward),
            .backward = RM_CUDA(rms_norm, backward),
            .scratch_bytes = cuda_scratch_bytes}},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

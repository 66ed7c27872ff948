/* layer_norm.c: normalises every row to mean 0 and variance 1, then scales and shifts it. It saves x and two numbers
 * per row. */
#include "ops/real.h"

#include "ops/layers/norm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, GAIN, BIAS };

/* Statistics of a row, in aux: xhat[i] = (x[i] - mean) rstd. */
typedef struct {
    real mean, rstd;
} row_facts;

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_layer_norm_attr *a = attr;
    TRY(rm_want_real("layer_norm", "x", &x[X]));
    TRY(rm_want_rank("layer_norm", "x", &x[X], 1, REMAT_MAX_RANK));
    TRY(rm_want_vector("layer_norm", "gain", &x[GAIN], rm_desc_last(&x[X])));
    if (x[BIAS].rank >= 0) TRY(rm_want_vector("layer_norm", "bias", &x[BIAS], rm_desc_last(&x[X])));
    REQUIRE(a && a->epsilon > 0 && isfinite(a->epsilon), INVALID,
            "layer_norm: epsilon is %g; it must be above 0, such as 1e-5", a ? a->epsilon : 0.0);
    *y = x[X];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 7, 2);
    if (pass == REMAT_BACKWARD) *out = rm_cost_streaming(y, 14, 3);
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    return (uint64_t)rm_desc_rows(&x[X]) * sizeof(row_facts);
}

/* Two passes, in double, because the difference of two large sums would lose the variance of a row whose mean is far
 * from 0. */
static row_facts measure(const real *x, int64_t c, double epsilon) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < c; i++) mean += x[i];
    mean /= (double)c;
    for (int64_t i = 0; i < c; i++) variance += (x[i] - mean) * (x[i] - mean);
    return (row_facts){(real)mean, (real)(1 / sqrt(variance / (double)c + epsilon))};
}

static void forward(const remat_call *call) {
    const remat_desc *shape = &call->x[X].desc;
    const real *gain = call->x[GAIN].data, *bias = call->x[BIAS].data; /* (C); bias: or NULL */
    row_facts *facts = call->aux;                                      /* (rows), or NULL */
    double epsilon = ((const rm_layer_norm_attr *)call->attr)->epsilon;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    RM_PARALLEL_FOR(
        call->threads, rows * c > RM_PARALLEL_MIN_HEAVY, for (int64_t r = 0; r < rows; r++) {
            const real *x = (const real *)call->x[X].data + r * c;
            real *y = (real *)call->y.data + r * c;
            row_facts f = measure(x, c, epsilon);
            for (int64_t i = 0; i < c; i++) y[i] = (x[i] - f.mean) * f.rstd * gain[i] + (bias ? bias[i] : 0);
            if (facts) facts[r] = f;
        });
}

/* xhat depends on x also through the row's mean and rstd; with g = dy gain,
 * dx = rstd (g - mean(g) - xhat mean(g xhat)). */
static void backward_row(const real *x, const real *gain, const real *dy, row_facts f, int64_t c, real *dx) {
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < c; i++) {
        double g = dy[i] * gain[i];
        mean_g += g;
        mean_gx += g * ((x[i] - f.mean) * f.rstd);
    }
    mean_g /= (double)c, mean_gx /= (double)c;
    for (int64_t i = 0; i < c; i++) {
        real xhat = (x[i] - f.mean) * f.rstd;
        dx[i] = f.rstd * (dy[i] * gain[i] - (real)mean_g - xhat * (real)mean_gx);
    }
}

/* y = xhat gain + bias:  dgain += sum of dy xhat,  dbias += sum of dy, over columns [from, to), rows in order. */
static void backward_columns(const remat_call *call, int64_t rows, int64_t c, int64_t from, int64_t to) {
    const real *x = call->x[X].data, *dy = call->dy.data;
    const row_facts *facts = call->aux;
    real *dgain = call->dx[GAIN].data, *dbias = call->dx[BIAS].data;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = from; i < to; i++) {
            real d = dy[r * c + i];
            if (dgain) dgain[i] += d * ((x[r * c + i] - facts[r].mean) * facts[r].rstd);
            if (dbias) dbias[i] += d;
        }
}

static void backward(const remat_call *call) {
    enum { WIDTH = 64 };
    const remat_desc *shape = &call->dy.desc;
    const real *x = call->x[X].data, *gain = call->x[GAIN].data, *dy = call->dy.data;
    const row_facts *facts = call->aux;
    real *dx = call->dx[X].data;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    bool large = rows * c > RM_PARALLEL_MIN_HEAVY;
    RM_PARALLEL_FOR(call->threads, large,
                    for (int64_t r = 0; r < (dx ? rows : 0); r++)
                        backward_row(x + r * c, gain, dy + r * c, facts[r], c, dx + r * c););
    RM_PARALLEL_FOR(call->threads, large,
                    for (int64_t from = 0; from < c; from += WIDTH)
                        backward_columns(call, rows, c, from, from + WIDTH < c ? from + WIDTH : c););
}

static uint64_t cuda_scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    (void)attr, (void)aux, (void)threads;
    return rm_norm_scratch_bytes(rm_desc_rows(&x[X]), rm_desc_last(&x[X]), 2, pass);
}

static const rm_layer_norm_attr usual = {1e-5};
static const remat_sample samples[] = {
    {.name = "sequence",
     .sequence = true,
     .attr = &usual,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE1(RM_REAL, 7), RM_SHAPE1(RM_REAL, 7)}},
    {.name = "whole", .attr = &usual, .x = {RM_SHAPE2(RM_REAL, 3, 70), RM_SHAPE1(RM_REAL, 70), RM_SHAPE1(RM_REAL, 70)}},
    {.name = "without bias", .attr = &usual, .x = {RM_SHAPE2(RM_REAL, 3, 70), RM_SHAPE1(RM_REAL, 70), RM_ABSENT}},
    {.name = "large enough for threads",
     .sequence = true,
     .attr = &usual,
     .x = {RM_SHAPE3(RM_REAL, 13, 6, 240), RM_SHAPE1(RM_REAL, 240), RM_SHAPE1(RM_REAL, 240)}},
};

const remat_op RM_OP(layer_norm) = {
    .struct_bytes = sizeof(remat_op),
    .name = "layer_norm",
    .doc = "y = (x - mean) / sqrt(variance + epsilon) gain + bias over the last axis; gain, bias (C)",
    .n_in = 3,
    .optional = 1u << BIAS,
    .attr_bytes = sizeof(rm_layer_norm_attr),
    .shared = 1u << GAIN | 1u << BIAS,
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << GAIN},
    .infer = infer,
    .cost = cost,
    .aux_bytes = aux_bytes,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward},
           {.forward = RM_CUDA(layer_norm, forward),
            .backward = RM_CUDA(layer_norm, backward),
            .scratch_bytes = cuda_scratch_bytes}},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

/* group_norm.c: normalises each group of channels of a sample to mean 0 and variance 1, then scales and shifts each
 * channel (Wu, He 2018; PyTorch's GroupNorm). Statistics are per sample: they do not depend on the batch, and there are
 * no running statistics. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

enum { X, GAIN, BIAS };

/* Statistics of a group of a sample, in aux: xhat[i] = (x[i] - mean) rstd. */
typedef struct {
    real mean, rstd;
} group_statistics;

/* x is (samples,channels,inner), split into samples * groups rows of `each` channels. */
typedef struct {
    int64_t samples, channels, inner, groups, each;
} shape;

static shape shape_of(const remat_desc *x, const void *attr) {
    const rm_group_norm_attr *a = attr;
    shape s = {1, x->dim[a->axis], 1, a->groups, x->dim[a->axis] / a->groups};
    for (int d = 0; d < x->rank; d++)
        if (d != a->axis) *(d < a->axis ? &s.samples : &s.inner) *= x->dim[d];
    return s;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_group_norm_attr *a = attr;
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real("group_norm", "x", &x[X]));
    TRY(rm_want_rank("group_norm", "x", &x[X], a ? (int)a->axis + 1 : 1, REMAT_MAX_RANK));
    REQUIRE(a && a->epsilon > 0 && isfinite(a->epsilon), INVALID,
            "group_norm: epsilon is %g; it must be above 0, such as 1e-5", a ? a->epsilon : 0.0);
    REQUIRE(a->groups > 0 && x[X].dim[a->axis] % a->groups == 0, INVALID,
            "group_norm: x is %s, whose %lld channels cannot be split into %lld groups", rm_desc_text(&x[X], text),
            (long long)x[X].dim[a->axis], (long long)a->groups);
    TRY(rm_want_vector("group_norm", "gain", &x[GAIN], x[X].dim[a->axis]));
    TRY(rm_want_vector("group_norm", "bias", &x[BIAS], x[X].dim[a->axis]));
    *y = x[X];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 7, 2);
    if (pass == REMAT_BACKWARD) *out = rm_cost_streaming(y, 14, 3);
}

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    shape s = shape_of(&x[X], attr);
    return (uint64_t)(s.samples * s.groups) * sizeof(group_statistics);
}

/* Two passes, in double, because the difference of two large sums would lose the variance of a group whose mean is far
 * from 0. */
static group_statistics measure(const real *x, int64_t n, double epsilon) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
    return (group_statistics){(real)mean, (real)(1 / sqrt(variance / (double)n + epsilon))};
}

/* Row r, channel by channel. */
static void forward_row(const remat_call *call, const shape *s, int64_t r) {
    const int64_t n = s->each * s->inner, first = r % s->groups * s->each;
    const real *x = (const real *)call->x[X].data + r * n, *gain = call->x[GAIN].data, *bias = call->x[BIAS].data;
    real *y = (real *)call->y.data + r * n;
    group_statistics f = measure(x, n, ((const rm_group_norm_attr *)call->attr)->epsilon);
    for (int64_t c = 0; c < s->each; c++)
        for (int64_t i = c * s->inner; i < (c + 1) * s->inner; i++)
            y[i] = (x[i] - f.mean) * f.rstd * gain[first + c] + bias[first + c];
    if (call->aux) ((group_statistics *)call->aux)[r] = f;
}

static void forward(const remat_call *call) {
    shape s = shape_of(&call->x[X].desc, call->attr);
    RM_PARALLEL_FOR(call->threads, rm_desc_count(&call->y.desc) > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t r = 0; r < s.samples * s.groups; r++) forward_row(call, &s, r););
}

/* xhat depends on x also through the group's mean and rstd; with g = dy gain,
 * dx = rstd (g - mean(g) - xhat mean(g xhat)). */
static void backward_row(const remat_call *call, const shape *s, int64_t r) {
    const int64_t n = s->each * s->inner, first = r % s->groups * s->each;
    const real *x = (const real *)call->x[X].data + r * n, *gain = call->x[GAIN].data;
    const real *dy = (const real *)call->dy.data + r * n;
    real *dx = (real *)call->dx[X].data + r * n;
    group_statistics f = ((const group_statistics *)call->aux)[r];
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < n; i++) {
        double g = dy[i] * gain[first + i / s->inner];
        mean_g += g;
        mean_gx += g * ((x[i] - f.mean) * f.rstd);
    }
    mean_g /= (double)n, mean_gx /= (double)n;
    for (int64_t i = 0; i < n; i++)
        dx[i] = f.rstd * (dy[i] * gain[first + i / s->inner] - (real)mean_g - (x[i] - f.mean) * f.rstd * (real)mean_gx);
}

/* y = xhat gain + bias:  dgain += sum of dy xhat,  dbias += sum of dy, over the samples in order. */
static void backward_channel(const remat_call *call, const shape *s, int64_t c) {
    real *dgain = call->dx[GAIN].data, *dbias = call->dx[BIAS].data;
    double of_gain = 0, of_bias = 0;
    for (int64_t n = 0; n < s->samples; n++) {
        const int64_t at = (n * s->channels + c) * s->inner;
        const real *x = (const real *)call->x[X].data + at, *dy = (const real *)call->dy.data + at;
        group_statistics f = ((const group_statistics *)call->aux)[n * s->groups + c / s->each];
        for (int64_t i = 0; i < s->inner; i++) of_gain += dy[i] * ((x[i] - f.mean) * f.rstd), of_bias += dy[i];
    }
    if (dgain) dgain[c] += (real)of_gain;
    if (dbias) dbias[c] += (real)of_bias;
}

static void backward(const remat_call *call) {
    shape s = shape_of(&call->x[X].desc, call->attr);
    bool large = rm_desc_count(&call->dy.desc) > RM_PARALLEL_MIN_HEAVY,
         weights = call->dx[GAIN].data || call->dx[BIAS].data;
    RM_PARALLEL_FOR(call->threads, large,
                    for (int64_t r = 0; r < (call->dx[X].data ? s.samples * s.groups : 0); r++)
                        backward_row(call, &s, r););
    RM_PARALLEL_FOR(call->threads, large,
                    for (int64_t c = 0; c < (weights ? s.channels : 0); c++) backward_channel(call, &s, c););
}

static const rm_group_norm_attr two = {1e-5, 2, 1}, timed = {1e-5, 3, 2}, all = {1e-3, 1, 1};
static const remat_sample samples[] = {
    {.name = "images",
     .attr = &two,
     .x = {RM_SHAPE4(RM_REAL, 3, 4, 2, 5), RM_SHAPE1(RM_REAL, 4), RM_SHAPE1(RM_REAL, 4)}},
    {.name = "no planes", .attr = &all, .x = {RM_SHAPE2(RM_REAL, 3, 8), RM_SHAPE1(RM_REAL, 8), RM_SHAPE1(RM_REAL, 8)}},
    {.name = "sequence",
     .sequence = true,
     .attr = &timed,
     .x = {RM_SHAPE4(RM_REAL, 4, 2, 6, 3), RM_SHAPE1(RM_REAL, 6), RM_SHAPE1(RM_REAL, 6)}},
    {.name = "large enough for threads",
     .attr = &two,
     .x = {RM_SHAPE4(RM_REAL, 3, 6, 31, 43), RM_SHAPE1(RM_REAL, 6), RM_SHAPE1(RM_REAL, 6)}},
};

const remat_op RM_OP(group_norm) = {
    .struct_bytes = sizeof(remat_op),
    .name = "group_norm",
    .doc =
        "y = (x - mean) / sqrt(variance + epsilon) gain + bias, over groups of channels of (..,C,..); gain, bias (C)",
    .n_in = 3,
    .attr_bytes = sizeof(rm_group_norm_attr),
    .shared = 1u << GAIN | 1u << BIAS,
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << X | 1u << GAIN},
    .infer = infer,
    .cost = cost,
    .aux_bytes = aux_bytes,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(group_norm)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

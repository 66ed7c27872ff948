/* batch_norm.c: normalises every channel of x to mean 0 and variance 1 over all other axes, then scales and shifts it;
 * with `sync` over the batches of all ranks, with `relu` followed by max(y, 0). The statistics are a once result
 * (remat_op.h): however often a plan runs a stage again, they are made once a step, and so are the running ones; runs
 * after that only scale and shift.
 *
 * In memory x is (outer, channels, inner): (N,C,H,W) has outer N and inner H W; a sequence (T,B,C) has outer T B and
 * inner 1. */
#include "ops/real.h"

#include "ops/elementwise/activation.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, RUNNING_MEAN, RUNNING_VAR, GAIN, BIAS };

/* The statistics that normalise x: xhat = (x - mean) rstd. Followed by `channels` means and as many rstds. */
typedef struct {
    double
        count; /* elements per channel in the statistics, over all ranks if sync; 0: these are the running statistics */
} head;
static real *means(void *once) { return (real *)((head *)once + 1); }

typedef struct {
    int64_t outer, channels, inner;
} layout;

static layout layout_of(const remat_desc *x, const rm_batch_norm_attr *a) {
    layout l = {1, x->dim[a->axis], 1};
    for (int64_t d = 0; d < a->axis; d++) l.outer *= x->dim[d];
    for (int64_t d = a->axis + 1; d < x->rank; d++) l.inner *= x->dim[d];
    return l;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    static const char *const vector[] = {
        [RUNNING_MEAN] = "running_mean", [RUNNING_VAR] = "running_var", [GAIN] = "gain", [BIAS] = "bias"};
    const rm_batch_norm_attr *a = attr;
    TRY(rm_want_real("batch_norm", "x", &x[X]));
    REQUIRE(a && a->epsilon > 0 && isfinite(a->epsilon), INVALID,
            "batch_norm: epsilon is %g; it must be above 0, such as 1e-5", a ? a->epsilon : 0.0);
    REQUIRE(a->momentum >= 0 && a->momentum <= 1, INVALID,
            "batch_norm: momentum is %g; it must be from 0 to 1, such as 0.1", a->momentum);
    TRY(rm_want_rank("batch_norm", "x", &x[X], (int)a->axis + 1, REMAT_MAX_RANK));
    for (int i = RUNNING_MEAN; i <= BIAS; i++)
        if (x[i].rank >= 0) TRY(rm_want_vector("batch_norm", vector[i], &x[i], x[X].dim[a->axis]));
    *y = x[X];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const int64_t relu = ((const rm_batch_norm_attr *)attr)->relu;
    *out = rm_cost_streaming(y, relu ? 4 : 3, 2);
    if (pass == REMAT_BACKWARD) *out = rm_cost_streaming(y, relu ? 20 : 12, 5);
    if (pass == REMAT_ONCE) *out = rm_cost_streaming(y, 5, 2);
    out->scratch_bytes =
        pass == REMAT_FORWARD ? 0 : (uint64_t)(2 * layout_of(&x[X], attr).channels + 1) * sizeof(double);
}

#ifndef RM_REAL_DOUBLE
/* Besides the sums, each rank's own means: ranks join their statistics after one pass over x. */
static uint64_t scratch_bytes_cuda(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    const uint64_t channels = (uint64_t)layout_of(&x[X], attr).channels;
    (void)aux, (void)threads;
    return pass == REMAT_FORWARD ? 0 : ((pass == REMAT_ONCE ? 3 : 2) * channels + 1) * sizeof(double);
}
#endif

static uint64_t once_bytes(const remat_desc *x, const void *attr) {
    return sizeof(head) + 2 * (uint64_t)layout_of(&x[X], attr).channels * sizeof(real);
}

static bool has_relu(const void *attr) { return ((const rm_batch_norm_attr *)attr)->relu; }
static bool collective(const void *attr) { return ((const rm_batch_norm_attr *)attr)->sync; }

static void sum_over_ranks(const remat_call *call, double *values, int64_t count) {
    if (collective(call->attr)) remat_sum_over_ranks(call, values, count);
}

/* ---- Sums of a channel, in double, in an order that does not depend on the number of threads --------------------- */

enum { LANES = 8 };

static double in_order(const double part[LANES]) {
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

static void add(double part[LANES], const real *x, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) part[k] += x[i + k];
    for (; i < n; i++) part[0] += x[i];
}

static double sum(const real *x, int64_t n) {
    double part[LANES] = {0};
    add(part, x, n);
    return in_order(part);
}

static double sum_of_squares(const real *x, double mean, int64_t n) {
    double part[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) part[k] += (x[i + k] - mean) * (x[i + k] - mean);
    for (; i < n; i++) part[0] += (x[i] - mean) * (x[i] - mean);
    return in_order(part);
}

static void add_products(double part[LANES], const real *x, real mean, real rstd, const real *dy, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) part[k] += (double)dy[i + k] * ((x[i + k] - mean) * rstd);
    for (; i < n; i++) part[0] += (double)dy[i] * ((x[i] - mean) * rstd);
}

/* Operands of a loop over all rows of `inner` elements, and the sums per channel that it computes or reads. */
typedef struct {
    const remat_call *call;
    layout l;
    const real *x, *dy, *gain, *bias, *mean, *rstd;
    real *y, *dx;
    double *sum, *other, share; /* 1/n */
} loop;

/* Channels [from, to). */
typedef struct {
    int64_t from, to;
} channels;

/* Channels that a thread handles at a time: many if rows are short, because these are adjacent in memory. */
static int64_t width_of(layout l) { return l.inner < 16 ? 64 : 1; }

/* Calls `row` for every row; `at` is the index of its first element. One thread handles all rows of a channel, in
 * order. */
static void each_row(const loop *p, channels these, void (*row)(const loop *p, int64_t c, int64_t at)) {
    const layout l = p->l;
    const int64_t width = width_of(l);
    RM_PARALLEL_FOR(p->call->threads, l.outer * (these.to - these.from) * l.inner > RM_PARALLEL_MIN,
                    for (int64_t from = these.from; from < these.to;
                         from += width) for (int64_t o = 0; o < l.outer;
                                             o++) for (int64_t c = from; c < from + width && c < these.to; c++)
                        row(p, c, (o * l.channels + c) * l.inner););
}

/* The next channels for two passes: as many as stay in the cache between the passes, or all if ranks communicate
 * between them. */
static bool next_channels(const remat_call *call, layout l, channels *these) {
    enum { FLOATS = 1 << 16 };
    const int64_t width = width_of(l), each = l.outer * l.inner * width;
    int64_t together = call->threads * (1 + FLOATS / (each + 1)) * width;
    if (collective(call->attr) || together > l.channels - these->to) together = l.channels - these->to;
    *these = (channels){these->to, these->to + together};
    return together > 0;
}

/* ---- Once -------------------------------------------------------------------------------------------------------- */

static void from_running(const remat_call *call, layout l) {
    const real *mean = call->x[RUNNING_MEAN].data, *var = call->x[RUNNING_VAR].data;
    double epsilon = ((const rm_batch_norm_attr *)call->attr)->epsilon;
    real *m = means(call->once), *rstd = m + l.channels;
    *(head *)call->once = (head){0};
    for (int64_t c = 0; c < l.channels; c++) m[c] = mean[c], rstd[c] = (real)(1 / sqrt(var[c] + epsilon));
}

static void add_sum(const loop *p, int64_t c, int64_t at) { p->sum[c] += sum(p->x + at, p->l.inner); }
static void add_squares(const loop *p, int64_t c, int64_t at) {
    p->other[c] += sum_of_squares(p->x + at, p->sum[c], p->l.inner);
}

/* Two passes, because the difference of two large sums would lose the variance of a channel whose mean is far from
 * 0. */
static void from_batch(const remat_call *call, layout l) {
    const rm_batch_norm_attr *a = call->attr;
    double *sums = call->scratch, *count = sums + l.channels, *squares = count + 1;
    loop p = {.call = call, .l = l, .x = call->x[X].data, .sum = sums, .other = squares};
    real *running_mean = call->x[RUNNING_MEAN].data, *running_var = call->x[RUNNING_VAR].data;
    real *mean = means(call->once), *rstd = mean + l.channels;
    for (int64_t c = 0; c < l.channels; c++) sums[c] = squares[c] = 0;
    *count = (double)(l.outer * l.inner);
    for (channels these = {0}; next_channels(call, l, &these);) {
        each_row(&p, these, add_sum);
        sum_over_ranks(call, sums, l.channels + 1);
        for (int64_t c = these.from; c < these.to; c++) sums[c] /= *count;
        each_row(&p, these, add_squares);
        sum_over_ranks(call, squares, l.channels);
    }
    const double n = ((head *)call->once)->count = *count;
    for (int64_t c = 0; c < l.channels; c++) {
        double unbiased = squares[c] / (n > 1 ? n - 1 : 1);
        mean[c] = (real)sums[c];
        rstd[c] = (real)(1 / sqrt(squares[c] / n + a->epsilon));
        running_mean[c] = (real)((1 - a->momentum) * running_mean[c] + a->momentum * sums[c]);
        running_var[c] = (real)((1 - a->momentum) * running_var[c] + a->momentum * unbiased);
    }
}

static void once(const remat_call *call) {
    layout l = layout_of(&call->x[X].desc, call->attr);
    if (call->training)
        from_batch(call, l);
    else
        from_running(call, l);
}

/* ---- Forward and backward ---------------------------------------------------------------------------------------- */

static loop loop_of(const remat_call *call, const remat_desc *shape) {
    layout l = layout_of(shape, call->attr);
    const real *mean = means(call->once);
    return (loop){.call = call,
                  .l = l,
                  .x = call->x[X].data,
                  .gain = call->x[GAIN].data,
                  .bias = call->x[BIAS].data,
                  .mean = mean,
                  .rstd = mean + l.channels};
}

/* What a row needs of its channel: y = (x - mean) scale + shift. */
typedef struct {
    real mean, rstd, scale, shift;
} normal;
static inline normal normal_of(const loop *p, int64_t c) {
    return (normal){p->mean[c], p->rstd[c], p->rstd[c] * (p->gain ? p->gain[c] : 1), p->bias ? p->bias[c] : 0};
}
static inline real apply(normal f, real x) { return (x - f.mean) * f.scale + f.shift; }

static void normalise(const loop *p, int64_t c, int64_t at) {
    const normal f = normal_of(p, c);
    const real *x = p->x + at;
    real *y = p->y + at;
    for (int64_t i = 0; i < p->l.inner; i++) y[i] = apply(f, x[i]);
}

static void normalise_relu(const loop *p, int64_t c, int64_t at) {
    const normal f = normal_of(p, c);
    const real *x = p->x + at;
    real *y = p->y + at;
    for (int64_t i = 0; i < p->l.inner; i++) y[i] = rm_relu(apply(f, x[i]));
}

static void forward(const remat_call *call) {
    loop p = loop_of(call, &call->x[X].desc);
    p.y = call->y.data;
    each_row(&p, (channels){0, p.l.channels}, has_relu(call->attr) ? normalise_relu : normalise);
}

static void add_gradients(const loop *p, int64_t c, int64_t at) {
    double part[LANES] = {0}, products[LANES] = {0};
    add(part, p->dy + at, p->l.inner);
    add_products(products, p->x + at, p->mean[c], p->rstd[c], p->dy + at, p->l.inner);
    p->sum[c] += in_order(part), p->other[c] += in_order(products);
}

/* Which elements relu passes is computed again from x, as in the forward pass. The gradients of the normalised values
 * exist for a few elements at a time. */
static void add_gradients_relu(const loop *p, int64_t c, int64_t at) {
    enum { CHUNK = 64 * LANES };
    const normal f = normal_of(p, c);
    const int64_t n = p->l.inner;
    double part[LANES] = {0}, products[LANES] = {0};
    real passed[CHUNK];
    for (int64_t from = 0; from < n; from += CHUNK) {
        const int64_t m = n - from < CHUNK ? n - from : CHUNK;
        const real *x = p->x + at + from, *dy = p->dy + at + from;
        for (int64_t i = 0; i < m; i++) passed[i] = rm_relu_backward(dy[i], apply(f, x[i]));
        add(part, passed, m);
        add_products(products, x, f.mean, f.rstd, passed, m);
    }
    p->sum[c] += in_order(part), p->other[c] += in_order(products);
}

static inline real slope(const normal *f, real x, real dy, real mean_dy, real mean_products) {
    return f->scale * (dy - mean_dy - (x - f->mean) * f->rstd * mean_products);
}

static void differentiate(const loop *p, int64_t c, int64_t at) {
    const normal f = normal_of(p, c);
    const real mean_dy = (real)(p->sum[c] * p->share), mean_products = (real)(p->other[c] * p->share);
    const real *x = p->x + at, *dy = p->dy + at;
    real *dx = p->dx + at;
    for (int64_t i = 0; i < p->l.inner; i++) dx[i] = slope(&f, x[i], dy[i], mean_dy, mean_products);
}

static void differentiate_relu(const loop *p, int64_t c, int64_t at) {
    const normal f = normal_of(p, c);
    const real mean_dy = (real)(p->sum[c] * p->share), mean_products = (real)(p->other[c] * p->share);
    const real *x = p->x + at, *dy = p->dy + at;
    real *dx = p->dx + at;
    for (int64_t i = 0; i < p->l.inner; i++)
        dx[i] = slope(&f, x[i], rm_relu_backward(dy[i], apply(f, x[i])), mean_dy, mean_products);
}

/* y = xhat gain + bias:  dgain += sum of dy xhat,  dbias += sum of dy, over this rank's batch. xhat depends on x also
 * through the statistics: dx = gain rstd (dy - sum(dy)/n - xhat sum(dy xhat)/n), with sums and n over all ranks.
 * Running statistics do not depend on x. */
static void backward(const remat_call *call) {
    loop p = loop_of(call, &call->dy.desc);
    real *dgain = call->dx[GAIN].data, *dbias = call->dx[BIAS].data;
    double n = ((const head *)call->once)->count;
    const bool relu = has_relu(call->attr);
    p.dy = call->dy.data, p.dx = call->dx[X].data, p.share = n > 0 ? 1 / n : 0;
    p.sum = call->scratch, p.other = p.sum + p.l.channels;
    for (int64_t c = 0; c < 2 * p.l.channels; c++) p.sum[c] = 0;
    for (channels these = {0}; next_channels(call, p.l, &these);) {
        each_row(&p, these, relu ? add_gradients_relu : add_gradients);
        for (int64_t c = these.from; c < these.to; c++) {
            if (dgain) dgain[c] += (real)p.other[c];
            if (dbias) dbias[c] += (real)p.sum[c];
        }
        sum_over_ranks(call, p.sum, 2 * p.l.channels); /* even if dx is not wanted, because other ranks wait for it */
        if (p.dx) each_row(&p, these, relu ? differentiate_relu : differentiate);
    }
}

static const rm_batch_norm_attr usual = {0.1, 1e-5, 1, 0, 0}, of_sequence = {0.3, 1e-3, 2, 1, 0},
                                with_relu = {0.1, 1e-5, 1, 0, 1};
#define VECTORS(c) RM_SHAPE1(RM_REAL, c), RM_SHAPE1(RM_REAL, c)
static const remat_sample samples[] = {
    {.name = "images", .attr = &usual, .x = {RM_SHAPE4(RM_REAL, 3, 5, 4, 3), VECTORS(5), VECTORS(5)}},
    {.name = "rows, neither gain nor bias",
     .attr = &usual,
     .x = {RM_SHAPE2(RM_REAL, 6, 70), VECTORS(70), RM_ABSENT, RM_ABSENT}},
    {.name = "sequence",
     .sequence = true,
     .attr = &of_sequence,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), VECTORS(7), RM_SHAPE1(RM_REAL, 7), RM_ABSENT}},
    {.name = "images, then relu", .attr = &with_relu, .x = {RM_SHAPE4(RM_REAL, 3, 5, 4, 3), VECTORS(5), VECTORS(5)}},
    {.name = "rows of a bias, then relu",
     .attr = &with_relu,
     .x = {RM_SHAPE2(RM_REAL, 6, 70), VECTORS(70), RM_ABSENT, RM_SHAPE1(RM_REAL, 70)}},
    {.name = "large enough for threads",
     .attr = &usual,
     .x = {RM_SHAPE4(RM_REAL, 5, 9, 40, 41), VECTORS(9), VECTORS(9)}},
};

const remat_op RM_OP(batch_norm) = {
    .struct_bytes = sizeof(remat_op),
    .name = "batch_norm",
    .doc = "x (..,C,..) normalised to mean 0 and variance 1 per channel, scaled and shifted; gain, bias, running_mean, "
           "running_var (C)",
    .n_in = 5,
    .optional = 1u << GAIN | 1u << BIAS,
    .shared = 1u << GAIN | 1u << BIAS,
    .buffers = 1u << RUNNING_MEAN | 1u << RUNNING_VAR,
    .attr_bytes = sizeof(rm_batch_norm_attr),
    .time = REMAT_TIME_FULL,
    .saves = {.in = 1u << X | 1u << GAIN | 1u << BIAS},
    .infer = infer,
    .cost = cost,
    .once_bytes = once_bytes,
    .collective = collective,
    .define_forward = forward,
    .define_backward = backward,
    .define_once = once,
    .on = {{.forward = forward, .backward = backward, .once = once},
           {.forward = RM_CUDA(batch_norm, forward),
            .backward = RM_CUDA(batch_norm, backward),
            .once = RM_CUDA(batch_norm, once),
            .scratch_bytes = RM_FAST(scratch_bytes_cuda, NULL)}},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

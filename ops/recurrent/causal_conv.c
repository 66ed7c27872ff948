/* causal_conv.c: the op `causal_conv`: a depthwise convolution over time that reads only earlier timesteps:
 *
 *   y[t,b,c] = bias[c] + sum over j < k of w[c,j] x[t - (k-1) + j, b, c],   x before the start: 0
 *
 * PyTorch's Conv1d(C, C, k, groups=C) after a padding of k-1 on the left. The carried state (B,k-1,C) has the last k-1
 * timesteps of the previous tile.
 *
 * Where reset[t,b] > 0, timesteps before t count as zeros from there on.
 *
 * Below, "row r" is row r of the state followed by x: x[t] is row k-1+t, and y[t] reads rows t to t+k-1, from its first tap on.
 */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

enum { X, W, BIAS, RESET, INPUTS };
enum { SPAN = 64 /* features that a thread takes through the tile together */, MOST = 16 /* k */ };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real("causal_conv", "x", &x[X]));
    TRY(rm_want_rank("causal_conv", "x", &x[X], 3, 3));
    TRY(rm_want_real("causal_conv", "w", &x[W]));
    int64_t c = x[X].dim[2], k = x[W].dim[2];
    REQUIRE(x[W].rank == 3 && x[W].dim[0] == c && x[W].dim[1] == 1 && k >= 2 && k <= MOST, INVALID,
            "causal_conv: w is %s; it must be (C,1,k) = (%lld,1,2..%d), for each feature of x a filter",
            rm_desc_text(&x[W], text), (long long)c, MOST);
    if (x[BIAS].rank >= 0) TRY(rm_want_vector("causal_conv", "bias", &x[BIAS], c));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("causal_conv", &x[RESET], &x[X]));
    *y = x[X];
    *state = rm_desc_make(RM_REAL, 3, (int64_t[]){x[X].dim[1], k - 1, c});
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    double k = (double)x[W].dim[2];
    *out = rm_cost_streaming(y, 2 * k, 2);
    if (pass == REMAT_BACKWARD) *out = rm_cost_streaming(y, 4 * k, 3);
}

/* Computes features [from, from + n) of a tile; w[j] has tap j of all features. */
typedef struct {
    int64_t tau, batch, channels, k, from, n;
    const real *reset;
    real w[MOST][SPAN];
} span;

static span span_of(const remat_call *call, int64_t from) {
    const remat_desc *x = &call->x[X].desc;
    int64_t c = x->dim[2], k = call->x[W].desc.dim[2];
    span s = {.tau = x->dim[0], .batch = x->dim[1], .channels = c, .k = k, .from = from};
    s.reset = call->x[RESET].data;
    s.n = c - from < SPAN ? c - from : SPAN;
    const real *w = call->x[W].data;
    for (int64_t j = 0; w && j < k; j++)
        for (int64_t i = 0; i < s.n; i++) s.w[j][i] = w[(from + i) * k + j];
    return s;
}

/* Row r of batch b, from the span's first feature on; NULL: zeros. */
static const real *row_of(const span *s, const void *state, const void *x, int64_t r, int64_t b) {
    int64_t halo = s->k - 1;
    if (r >= halo) return (const real *)x + ((r - halo) * s->batch + b) * s->channels + s->from;
    return state ? (const real *)state + (b * halo + r) * s->channels + s->from : NULL;
}

/* The first tap of y[t] that counts: earlier taps would read timesteps before a reset. */
static int64_t first_tap(const span *s, int64_t t, int64_t b) {
    int64_t halo = s->k - 1;
    for (int64_t back = 0; s->reset && back < halo && back <= t; back++)
        if (s->reset[(t - back) * s->batch + b] > 0) return halo - back;
    return 0;
}

static void copy_row(int64_t n, const real *from, real *to) {
    for (int64_t i = 0; i < n; i++) to[i] = from ? from[i] : 0;
}

static void add_product(int64_t n, const real *a, const real *b, real *sum) {
    for (int64_t i = 0; i < n; i++) sum[i] += a[i] * b[i];
}

/* Whether row r of the outgoing state is kept: the last y reads it one tap later. */
static bool is_handed_on(const span *s, int64_t r, int64_t b) { return r + 1 >= first_tap(s, s->tau - 1, b); }

static void forward_span(const remat_call *call, int64_t from) {
    span s = span_of(call, from);
    const real *bias = call->x[BIAS].data;
    for (int64_t t = 0; t < s.tau; t++)
        for (int64_t b = 0; b < s.batch; b++) {
            real sum[SPAN];
            copy_row(s.n, bias ? bias + from : NULL, sum);
            for (int64_t j = first_tap(&s, t, b); j < s.k; j++) {
                const real *x = row_of(&s, call->state_in[0].data, call->x[X].data, t + j, b);
                if (x) add_product(s.n, s.w[j], x, sum);
            }
            copy_row(s.n, sum, (real *)call->y.data + (t * s.batch + b) * s.channels + from);
        }
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t r = 0; r < s.k - 1; r++)
            copy_row(s.n,
                     is_handed_on(&s, r, b) ? row_of(&s, call->state_in[0].data, call->x[X].data, s.tau + r, b) : NULL,
                     (real *)call->state_out[0].data + (b * (s.k - 1) + r) * s.channels + from);
}

/* The gradient of row r: first the gradient that later tiles have passed back, then the terms of this tile's y from
 * the last to the first. The order is therefore the same wherever time is cut. */
static void row_gradient(const remat_call *call, const span *s, int64_t r, int64_t b, real *sum) {
    const real *dy = call->dy.data, *later = call->dstate_out[0].data;
    bool handed = later && r >= s->tau && is_handed_on(s, r - s->tau, b);
    copy_row(s->n, handed ? later + (b * (s->k - 1) + r - s->tau) * s->channels + s->from : NULL, sum);
    for (int64_t j = 0; j < s->k; j++)
        if (r - j >= 0 && r - j < s->tau && j >= first_tap(s, r - j, b))
            add_product(s->n, s->w[j], dy + ((r - j) * s->batch + b) * s->channels + s->from, sum);
}

static void backward_rows(const remat_call *call, const span *s) {
    int64_t halo = s->k - 1;
    real *dx = call->dx[X].data, *dstate = call->dstate_in[0].data, sum[SPAN];
    for (int64_t r = dstate ? 0 : halo; r < (dx ? s->tau + halo : halo); r++)
        for (int64_t b = 0; b < s->batch; b++) {
            row_gradient(call, s, r, b, sum);
            copy_row(s->n, sum,
                     r < halo ? dstate + (b * halo + r) * s->channels + s->from
                              : dx + ((r - halo) * s->batch + b) * s->channels + s->from);
        }
}

/* dw[c,j] += sum of dy[t] row[t+j], dbias += sum of dy: timesteps in order, one by one. */
static void backward_weights(const remat_call *call, const span *s) {
    real *dw = call->dx[W].data, *dbias = call->dx[BIAS].data, sum[MOST][SPAN], ones[SPAN];
    for (int64_t i = 0; i < SPAN; i++) ones[i] = 1;
    for (int64_t j = 0; dw && j < s->k; j++)
        for (int64_t i = 0; i < s->n; i++) sum[j][i] = dw[(s->from + i) * s->k + j];
    for (int64_t t = 0; t < s->tau; t++)
        for (int64_t b = 0; b < s->batch; b++) {
            const real *dy = (const real *)call->dy.data + (t * s->batch + b) * s->channels + s->from;
            for (int64_t j = first_tap(s, t, b); dw && j < s->k; j++) {
                const real *x = row_of(s, call->state_in[0].data, call->x[X].data, t + j, b);
                if (x) add_product(s->n, dy, x, sum[j]);
            }
            if (dbias) add_product(s->n, dy, ones, dbias + s->from);
        }
    for (int64_t j = 0; dw && j < s->k; j++)
        for (int64_t i = 0; i < s->n; i++) dw[(s->from + i) * s->k + j] = sum[j][i];
}

static void backward_span(const remat_call *call, int64_t from) {
    span s = span_of(call, from);
    backward_rows(call, &s);
    backward_weights(call, &s);
}

static void forward(const remat_call *call) {
    int64_t c = call->x[X].desc.dim[2];
    RM_PARALLEL_FOR(call->threads, rm_desc_count(&call->x[X].desc) > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t from = 0; from < c; from += SPAN) forward_span(call, from););
}

static void backward(const remat_call *call) {
    int64_t c = call->dy.desc.dim[2];
    real *dreset = call->dx[RESET].data;
    for (int64_t i = 0; dreset && i < call->dy.desc.dim[0] * call->dy.desc.dim[1]; i++) dreset[i] = 0;
    RM_PARALLEL_FOR(call->threads, rm_desc_count(&call->dy.desc) > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t from = 0; from < c; from += SPAN) backward_span(call, from););
}

static const remat_sample samples[] = {
    {.name = "bias",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 6, 2, 5), RM_SHAPE3(RM_REAL, 5, 1, 3), RM_SHAPE1(RM_REAL, 5), RM_ABSENT}},
    {.name = "shorter than the filter",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 3, 2, 4), RM_SHAPE3(RM_REAL, 4, 1, 6), RM_ABSENT, RM_ABSENT}},
    {.name = "resets",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 7, 3, 4), RM_SHAPE3(RM_REAL, 4, 1, 4), RM_SHAPE1(RM_REAL, 4), RM_SHAPE2(RM_REAL, 7, 3)}},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 4, 25, 200), RM_SHAPE3(RM_REAL, 200, 1, 3), RM_SHAPE1(RM_REAL, 200), RM_ABSENT}},
};

const remat_op RM_OP(causal_conv) = {
    .struct_bytes = sizeof(remat_op),
    .name = "causal_conv",
    .doc =
        "y (T,B,C) = x convolved over time, each feature by itself: w (C,1,k), bias (C); y[t] reads x[t-k+1] to x[t]",
    .n_in = INPUTS,
    .n_state = 1,
    .optional = 1u << BIAS | 1u << RESET,
    .resets = 1u << RESET,
    .shared = 1u << W | 1u << BIAS,
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = 1u << X | 1u << W | 1u << RESET, .state = true},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(causal_conv)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

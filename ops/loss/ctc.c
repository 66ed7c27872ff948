/* ctc.c: the op `ctc`: connectionist temporal classification (Graves et al. 2006), the loss for transcripts that are
 * shorter than the sequence and not aligned with it. Each timestep emits a label or a blank. A path is decoded by
 * merging repeated labels and then removing blanks; the loss is -log of the probability of all paths that decode to the
 * targets.
 *
 *   alpha[t,s] = log of the probability of all paths to position s at timestep t     (position: ctc_math.h)
 *              = log_softmax(logits[t])[class of s] + log of the sum over s, s-1 and, where labels differ, s-2 of
 *              e^alpha[t-1]
 *
 * It is a recurrence, so only one tile of logits is needed at a time: alpha and the logarithm of its scale are the
 * carried states. At each timestep the largest alpha is subtracted from all, and added to the scale, which is a
 * compensated sum of two numbers. Timesteps after the input length of a sample change nothing. y (tau,B) is 0 except
 * at the last timestep of the sequence, where it is each sample's loss divided by its number of labels. In backward,
 * the gradient of the state corresponds to beta in textbooks: the gradient of the logits is the softmax minus the
 * posteriors of the positions. aux holds the largest logit and the log of the sum for each row, and alpha. */
#include "ops/real.h"

#include <string.h>

#include "ops/loss/ctc_math.h"
#include "ops/math/row.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { LOGITS = RM_CTC_LOGITS, TARGETS = RM_CTC_TARGETS };

static remat_status want_lengths(const char *input, const remat_desc *x, int64_t batch) {
    char text[REMAT_DESC_TEXT];
    if (x->rank < 0) return REMAT_OK;
    TRY(rm_want_integer("ctc", input, x));
    REQUIRE(x->rank == 1 && x->dim[0] == batch, INVALID,
            "ctc: %s is %s; it must be one integer for each of %lld samples", input, rm_desc_text(x, text),
            (long long)batch);
    return REMAT_OK;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    const rm_ctc_attr *a = attr;
    char logits[REMAT_DESC_TEXT], targets[REMAT_DESC_TEXT];
    TRY(rm_want_real("ctc", "logits", &x[LOGITS]));
    TRY(rm_want_rank("ctc", "logits", &x[LOGITS], 3, 3));
    TRY(rm_want_integer("ctc", "targets", &x[TARGETS]));
    int64_t batch = x[LOGITS].dim[1], classes = x[LOGITS].dim[2], blank = a ? a->blank : 0;
    REQUIRE(x[TARGETS].rank == 2 && x[TARGETS].dim[0] == batch, INVALID,
            "ctc: logits is %s and targets is %s; targets must be (B,S), a row of labels per sample",
            rm_desc_text(&x[LOGITS], logits), rm_desc_text(&x[TARGETS], targets));
    REQUIRE(blank >= 0 && blank < classes, INVALID,
            "ctc: the blank is %lld; it must be one of the %lld classes, counted from 0", (long long)blank,
            (long long)classes);
    TRY(want_lengths("input_lengths", &x[RM_CTC_INPUT_LENGTHS], batch));
    TRY(want_lengths("target_lengths", &x[RM_CTC_TARGET_LENGTHS], batch));
    *y = rm_desc_make(RM_REAL, 2, x[LOGITS].dim);
    *state = rm_desc_make(RM_REAL, 2, (int64_t[]){batch, rm_ctc_width(x) + 2});
    return REMAT_OK;
}

static int64_t rows_of(const remat_desc *x) { return x[LOGITS].dim[0] * x[LOGITS].dim[1]; }

/* Rows, then alpha (tau+1,B,width): at the start of the tile and after each of its timesteps. */
static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    uint64_t rows = (uint64_t)rows_of(x), batch = (uint64_t)x[LOGITS].dim[1];
    return rows * sizeof(rm_ctc_row) + (rows + batch) * (uint64_t)rm_ctc_width(x) * sizeof(real);
}

/* Forward-only calls use scratch in place of aux. Backward needs two numbers per position and one per sample. */
static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    (void)threads;
    if (pass == REMAT_BACKWARD) return (uint64_t)(x[LOGITS].dim[1] * (2 * rm_ctc_width(x) + 1)) * sizeof(real);
    return aux ? 0 : aux_bytes(x, attr);
}

/* An exp or a logarithm is about 16 operations. A position takes three exps and one logarithm, in forward and in
 * backward. */
static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)y;
    double positions = (double)(rows_of(x) * rm_ctc_width(x));
    *out = rm_cost_streaming(&x[LOGITS], 20, pass == REMAT_BACKWARD ? 2 : 1);
    out->flops += positions * (pass == REMAT_BACKWARD ? 130 : 70);
    out->moved_bytes += positions * sizeof(real) * (pass == REMAT_BACKWARD ? 3 : 2);
    out->scratch_bytes = scratch_bytes(x, attr, pass, false, 1);
}

static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)attr;
    return input == TARGETS                ? x[LOGITS].dim[2]
           : input == RM_CTC_INPUT_LENGTHS ? x[LOGITS].dim[0] + 1
                                           : x[TARGETS].dim[1] + 1;
}

static int64_t ignored(const void *attr, int input) {
    (void)attr;
    return input == TARGETS ? -1 : 0;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static rm_ctc_row row_of(const real *x, int64_t v) {
    real largest = rm_row_largest(x, v), lane[RM_ROW_LANES] = {0};
    double sum = 0;
    int64_t whole = v / RM_ROW_LANES * RM_ROW_LANES;
    for (int64_t from = 0; from < whole; from += RM_ROW_LANES)
        for (int i = 0; i < RM_ROW_LANES; i++) lane[i] += rm_exp_nonpositive(x[from + i] - largest);
    for (int64_t i = whole; i < v; i++) sum += rm_exp_nonpositive(x[i] - largest);
    for (int i = 0; i < RM_ROW_LANES; i++) sum += lane[i];
    return (rm_ctc_row){largest, (real)log(sum)};
}

/* One timestep of a sample. Returns the largest alpha, which was subtracted. */
static real step(const rm_ctc *c, const int32_t *target, int64_t ends, const real *x, rm_ctc_row row,
                 const real *before, real *alpha) {
    real most = -INFINITY;
    for (int64_t s = 0; s < ends; s++) {
        alpha[s] = rm_ctc_arrive(target, before, s) + rm_ctc_log_p(x, row, rm_ctc_class(c, target, s));
        most = alpha[s] > most ? alpha[s] : most;
    }
    if (most == -INFINITY) return 0;
    for (int64_t s = 0; s < ends; s++) alpha[s] -= most;
    return most;
}

static void forward_sample(const remat_call *call, const rm_ctc *c, const rm_ctc_row *row, real *alpha, int64_t b) {
    const int32_t *target = c->target + b * c->labels;
    const real *state = call->state_in[0].data;
    int64_t labels = rm_ctc_labels(c, b), ends = 2 * labels + 1, steps = rm_ctc_steps(c, b), ld = c->batch * c->width;
    rm_ctc_scale scale = {0, 0};
    if (state) state += b * (c->width + 2);
    alpha += b * c->width;
    for (int64_t s = 0; s < c->width; s++) alpha[s] = s < ends ? rm_ctc_begin(c, state, s) : -INFINITY;
    if (c->t0) scale = (rm_ctc_scale){state[c->width], state[c->width + 1]};
    for (int64_t t = 0; t < c->tau; t++, alpha += ld) {
        int64_t r = t * c->batch + b;
        memcpy(alpha + ld, alpha, (size_t)c->width * sizeof *alpha);
        if (t < steps)
            scale =
                rm_ctc_scale_add(scale, step(c, target, ends, c->logits + r * c->classes, row[r], alpha, alpha + ld));
        ((real *)call->y.data)[r] = c->t0 + t + 1 == c->t_total ? rm_ctc_loss(c, alpha + ld, scale, labels) : 0;
    }
    real *out = (real *)call->state_out[0].data + b * (c->width + 2);
    for (int64_t s = 0; s < c->width; s++) out[s] = rm_ctc_to_state(alpha[s]);
    out[c->width] = scale.sum, out[c->width + 1] = scale.rest;
}

/* Positions cost an exp or more four times. */
static bool large(const rm_ctc *c) { return 4 * c->tau * c->batch * c->width > RM_PARALLEL_MIN_HEAVY; }

static void forward(const remat_call *call) {
    const rm_ctc c = rm_ctc_of(call);
    int64_t rows = c.tau * c.batch;
    rm_ctc_row *row = call->aux ? call->aux : call->scratch;
    real *alpha = (real *)(row + rows);
    RM_PARALLEL_FOR(call->threads, rows * c.classes > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t r = 0; r < rows; r++) row[r] = row_of(c.logits + r * c.classes, c.classes););
    RM_PARALLEL_FOR(call->threads, large(&c),
                    for (int64_t b = 0; b < c.batch; b++) forward_sample(call, &c, row, alpha, b););
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* Adds the gradient of the loss by alpha to d (width); returns the gradient by the scale. If no path exists these are 0
 * or NaN. */
static real begin_backward(const rm_ctc *c, const real *alpha, int64_t labels, real dy, real *d) {
    real end = rm_ctc_end(alpha, labels), share = dy / (real)(labels ? labels : 1);
    if (end == -INFINITY) return c->zero_infinity ? 0 : NAN;
    d[2 * labels] -= share * rm_exp_nonpositive(alpha[2 * labels] - end);
    if (labels) d[2 * labels - 1] -= share * rm_exp_nonpositive(alpha[2 * labels - 1] - end);
    return -share;
}

/* Turns d (ends), the gradient by alpha, into the gradient by alpha before the maximum was subtracted and added to the
 * scale. */
static void unscale(const real *alpha, int64_t ends, real d_scale, real *d) {
    double sum = 0;
    int64_t first = -1;
    for (int64_t s = 0; s < ends; s++) {
        if (alpha[s] == -INFINITY) d[s] = 0;
        if (alpha[s] == 0 && first < 0) first = s;
        sum += d[s];
    }
    if (first >= 0) d[first] += (real)(d_scale - sum);
}

/* Replaces each alpha of the tile by its gradient; returns the gradient by the scale. d and arrived: scratch,
 * (width). */
static real backward_sample(const remat_call *call, const rm_ctc *c, real *alpha, real *d, real *arrived, int64_t b) {
    const int32_t *target = c->target + b * c->labels;
    const real *d_out = call->dstate_out[0].data;
    real *d_in = call->dstate_in[0].data, d_scale = 0;
    int64_t labels = rm_ctc_labels(c, b), ends = 2 * labels + 1, ld = c->batch * c->width, wide = c->width + 2;
    for (int64_t s = 0; s < c->width; s++) d[s] = d_out ? d_out[b * wide + s] : 0;
    if (d_out) d_scale = d_out[b * wide + c->width];
    alpha += b * c->width + c->tau * ld;
    if (c->t0 + c->tau == c->t_total)
        d_scale += begin_backward(c, alpha, labels, ((const real *)call->dy.data)[(c->tau - 1) * c->batch + b], d);
    for (int64_t t = rm_ctc_steps(c, b) - 1; t >= 0; t--) {
        real *now = alpha - (c->tau - 1 - t) * ld, *before = now - ld;
        unscale(now, ends, d_scale, d);
        memcpy(now, d, (size_t)ends * sizeof *d);
        for (int64_t s = 0; s < ends; s++) arrived[s] = rm_ctc_arrive(target, before, s);
        for (int64_t s = 0; s < ends; s++) d[s] = rm_ctc_leave(target, before, arrived, now, s, ends);
    }
    for (int64_t s = 0; d_in && s < wide; s++)
        d_in[b * wide + s] = c->t0 == 0 || (s >= ends && s < c->width) ? 0 : s < ends ? d[s] : d_scale;
    return d_scale;
}

/* The gradient of a row: the posteriors d of its positions, minus p, both times -d_scale. */
static void row_backward(const rm_ctc *c, int64_t r, rm_ctc_row row, const real *d, real d_scale, real *dx) {
    int64_t b = r % c->batch, ends = 2 * rm_ctc_labels(c, b) + 1;
    const int32_t *target = c->target + b * c->labels;
    const real *x = c->logits + r * c->classes;
    for (int64_t v = 0; v < c->classes; v++) dx[v] = -d_scale * rm_exp_nonpositive(rm_ctc_log_p(x, row, v));
    for (int64_t s = 0; s < ends; s++) dx[rm_ctc_class(c, target, s)] += d[s];
}

static void backward(const remat_call *call) {
    const rm_ctc c = rm_ctc_of(call);
    int64_t rows = c.tau * c.batch;
    const rm_ctc_row *row = call->aux;
    real *alpha = (real *)((rm_ctc_row *)call->aux + rows), *dx = call->dx[LOGITS].data;
    real *d = call->scratch, *arrived = d + c.batch * c.width, *d_scale = arrived + c.batch * c.width;
    RM_PARALLEL_FOR(call->threads, large(&c),
                    for (int64_t b = 0; b < c.batch; b++) d_scale[b] =
                        backward_sample(call, &c, alpha, d + b * c.width, arrived + b * c.width, b););
    if (!dx) return;
    RM_PARALLEL_FOR(
        call->threads, rows * c.classes > RM_PARALLEL_MIN_HEAVY, for (int64_t r = 0; r < rows; r++) {
            real *out = dx + r * c.classes;
            if (r / c.batch < rm_ctc_steps(&c, r % c.batch))
                row_backward(&c, r, row[r], alpha + (r + c.batch) * c.width, d_scale[r % c.batch], out);
            else
                memset(out, 0, (size_t)c.classes * sizeof *out);
        });
}

static const rm_ctc_attr zero_infinity = {.zero_infinity = 1}, last_is_blank = {.blank = 4};
static const remat_sample samples[] = {
    {.name = "all labels",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 9, 3, 5), RM_SHAPE2(REMAT_I32, 3, 4), RM_ABSENT, RM_ABSENT}},
    {.name = "lengths, some too short",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 7, 9, 3), RM_SHAPE2(REMAT_I32, 9, 3), RM_SHAPE1(REMAT_I32, 9), RM_SHAPE1(REMAT_I32, 9)},
     .attr = &zero_infinity},
    {.name = "fewer labels, another blank",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 6, 2, 5), RM_SHAPE2(REMAT_I32, 2, 3), RM_ABSENT, RM_SHAPE1(REMAT_I32, 2)},
     .attr = &last_is_blank},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 31, 6, 89), RM_SHAPE2(REMAT_I32, 6, 11), RM_ABSENT, RM_ABSENT}},
};

const remat_op RM_OP(ctc) = {
    .struct_bytes = sizeof(remat_op),
    .name = "ctc",
    .doc = "y (T,B) = 0, except at the last timestep: each sample's -log of the probability of its labels over all "
           "alignments, divided by their number; logits (T,B,V), targets (B,S), input lengths (B), target lengths (B)",
    .n_in = RM_CTC_INPUTS,
    .n_state = 1,
    .state_name = {"alpha"},
    .optional = 1u << RM_CTC_INPUT_LENGTHS | 1u << RM_CTC_TARGET_LENGTHS,
    .shared = 1u << TARGETS | 1u << RM_CTC_INPUT_LENGTHS | 1u << RM_CTC_TARGET_LENGTHS,
    .discrete = 1u << TARGETS | 1u << RM_CTC_INPUT_LENGTHS | 1u << RM_CTC_TARGET_LENGTHS,
    .attr_bytes = sizeof(rm_ctc_attr),
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = 1u << LOGITS | 1u << TARGETS | 1u << RM_CTC_INPUT_LENGTHS | 1u << RM_CTC_TARGET_LENGTHS},
    .infer = infer,
    .cost = cost,
    .aux_bytes = aux_bytes,
    .bound = bound,
    .ignored = ignored,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward, .scratch_bytes = scratch_bytes},
           {.forward = RM_CUDA(ctc, forward), .backward = RM_CUDA(ctc, backward), .scratch_bytes = scratch_bytes}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

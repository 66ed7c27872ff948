/* ctc_math.h: code shared by ctc.c and ctc.cu: the call, its labels, and sums of probabilities in log space. */
#ifndef RM_CTC_MATH_H
#define RM_CTC_MATH_H

#include "engine/host_device.h"
#include "ops/math/exp.h"
#include "ops/op.h"
#include "ops/real.h"

#include <math.h>

enum { RM_CTC_LOGITS, RM_CTC_TARGETS, RM_CTC_INPUT_LENGTHS, RM_CTC_TARGET_LENGTHS, RM_CTC_INPUTS };

/* Normalisation of a row of logits: log p[v] = (x[v] - largest) - log_sum. */
typedef struct {
    real largest, log_sum;
} rm_ctc_row;

/* A tile. Positions 0 .. width - 1 are the labels with blanks between and around them: blank, label, blank, ..,
 * blank. */
typedef struct {
    int64_t t0, t_total, tau, batch, classes, labels, width, blank;
    bool zero_infinity;
    const real *logits;                                   /* (tau,B,V) */
    const int32_t *target, *input_length, *target_length; /* (B,S), (B), (B); the lengths may be NULL */
} rm_ctc;

static inline int64_t rm_ctc_width(const remat_desc *x) { return 2 * x[RM_CTC_TARGETS].dim[1] + 1; }

static inline rm_ctc rm_ctc_of(const remat_call *call) {
    const remat_desc *x = &call->x[RM_CTC_LOGITS].desc;
    const rm_ctc_attr *a = (const rm_ctc_attr *)call->attr;
    rm_ctc c;
    c.t0 = call->t0, c.t_total = call->t_total;
    c.tau = x->dim[0], c.batch = x->dim[1], c.classes = x->dim[2];
    c.labels = call->x[RM_CTC_TARGETS].desc.dim[1], c.width = 2 * c.labels + 1;
    c.blank = a ? a->blank : 0, c.zero_infinity = a && a->zero_infinity;
    c.logits = (const real *)call->x[RM_CTC_LOGITS].data;
    c.target = (const int32_t *)call->x[RM_CTC_TARGETS].data;
    c.input_length = (const int32_t *)call->x[RM_CTC_INPUT_LENGTHS].data;
    c.target_length = (const int32_t *)call->x[RM_CTC_TARGET_LENGTHS].data;
    return c;
}

/* The number of labels of sample b: target_length, or fewer if a negative label ends them. */
RM_HD int64_t rm_ctc_labels(const rm_ctc *c, int64_t b) {
    int64_t most = c->target_length ? c->target_length[b] : c->labels, n = 0;
    while (n < most && c->target[b * c->labels + n] >= 0) n++;
    return n;
}

/* Timesteps of the tile that belong to sample b. */
RM_HD int64_t rm_ctc_steps(const rm_ctc *c, int64_t b) {
    int64_t left = c->input_length ? c->input_length[b] - c->t0 : c->tau;
    return left < 0 ? 0 : left < c->tau ? left : c->tau;
}

RM_HD int64_t rm_ctc_class(const rm_ctc *c, const int32_t *target, int64_t s) {
    return s % 2 ? target[s / 2] : c->blank;
}

RM_HD real rm_ctc_log_p(const real *x, rm_ctc_row row, int64_t v) { return (x[v] - row.largest) - row.log_sum; }

/* log(e^a + e^b + e^c); -INFINITY if all are. */
RM_HD real rm_ctc_log_add(real a, real b, real c) {
    real most = a > b ? a : b;
    most = c > most ? c : most;
    if (most == -INFINITY) return most;
    return most + real_log(rm_exp_nonpositive(a - most) + rm_exp_nonpositive(b - most) + rm_exp_nonpositive(c - most));
}

/* Whether the label at s may follow the previous label without a blank between them. */
RM_HD bool rm_ctc_skips(const int32_t *target, int64_t s) {
    return s % 2 && s > 2 && target[s / 2] != target[s / 2 - 1];
}

/* Log of the sum over all transitions to position s from `before`, one timestep earlier. */
RM_HD real rm_ctc_arrive(const int32_t *target, const real *before, int64_t s) {
    return rm_ctc_log_add(before[s], s > 0 ? before[s - 1] : -INFINITY,
                          rm_ctc_skips(target, s) ? before[s - 2] : -INFINITY);
}

/* Gradient of before[s] from the gradients `d` of its successors; arrived[k] = rm_ctc_arrive(.., k) of `ends`
 * positions. */
RM_HD real rm_ctc_leave(const int32_t *target, const real *before, const real *arrived, const real *d, int64_t s,
                        int64_t ends) {
    if (before[s] == -INFINITY) return 0;
    real sum = d[s] * rm_exp_nonpositive(before[s] - arrived[s]);
    if (s + 1 < ends) sum += d[s + 1] * rm_exp_nonpositive(before[s] - arrived[s + 1]);
    if (s + 2 < ends && rm_ctc_skips(target, s + 2)) sum += d[s + 2] * rm_exp_nonpositive(before[s] - arrived[s + 2]);
    return sum;
}

/* Log of the probability of all complete paths, without the scale: they end in the last label or in the blank after
 * it. */
RM_HD real rm_ctc_end(const real *alpha, int64_t labels) {
    return rm_ctc_log_add(alpha[2 * labels], labels ? alpha[2 * labels - 1] : -INFINITY, -INFINITY);
}

/* A compensated sum: `rest` is the rounding error of `sum`. */
typedef struct {
    real sum, rest;
} rm_ctc_scale;

RM_HD rm_ctc_scale rm_ctc_scale_add(rm_ctc_scale a, real x) {
    real add = x + a.rest, sum = a.sum + add, there = sum - a.sum;
    rm_ctc_scale out = {sum, (a.sum - (sum - there)) + (add - there)};
    return out;
}

/* Carried states must be finite, so they hold 1 in place of -INFINITY: no log of a probability is above 0. */
#define RM_CTC_NOWHERE 1
RM_HD real rm_ctc_to_state(real alpha) { return alpha == -INFINITY ? RM_CTC_NOWHERE : alpha; }
RM_HD real rm_ctc_from_state(real state) { return state == RM_CTC_NOWHERE ? -INFINITY : state; }

/* The initial value of position s: the carried state, or at the first timestep probability 1 for the first blank. */
RM_HD real rm_ctc_begin(const rm_ctc *c, const real *state, int64_t s) {
    if (c->t0 == 0) return s == 0 ? 0 : -INFINITY;
    return rm_ctc_from_state(state[s]);
}

/* The loss of a sample with `labels` labels. */
RM_HD real rm_ctc_loss(const rm_ctc *c, const real *alpha, rm_ctc_scale scale, int64_t labels) {
    real end = rm_ctc_end(alpha, labels);
    if (end == -INFINITY && c->zero_infinity) return 0;
    return -(scale.sum + (end + scale.rest)) / (real)(labels ? labels : 1);
}

#endif

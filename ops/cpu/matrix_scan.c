/* cpu/matrix_scan.c: recurrences of matrices in vectors of columns of S; ops/recurrent/matrix_op.h has the definition. A
 * timestep is up to two passes over the span of columns, forward and backward alike. Compiled once per instruction set;
 * `rule` is a constant in each of the functions in the table at the end. */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ops/cpu/isa.h"
#include "ops/cpu/lane_sums.h"
#include "ops/recurrent/matrix_scan.h"

enum { LANES = RM_LANES, SPAN = RM_MATRIX_SPAN, CHUNK = RM_MATRIX_CHUNK, GROUP = RM_MATRIX_GROUP, WIDE = SPAN / LANES };

/* A span of columns of one head of one row of the batch, and its scratch. */
typedef struct {
    const rm_matrix_job *job;
    int64_t row, head, column, keys, matrix; /* keys: padded; matrix: floats of a span of S */
    int columns;                             /* of the span; the others are zeros */
    float *q, *k, *decay, *read, *b;         /* of a timestep (load_step); read: DELTA: decay k, TANH: k, RANK1: a */
    float *s, *zeros, *ds, *states, *at_start;
    float *delta, *error; /* of a chunk. S' = .. + k delta^T; error: ADD: v; DELTA: v - D^T k; TANH: v - S^T k;
                           * RANK1: S^T a */
} work;

RM_INLINE int64_t row_at(const work *w, int64_t t) { return t * w->job->batch + w->row; }
RM_INLINE int64_t head_at(const work *w, int64_t t) { return row_at(w, t) * w->job->heads + w->head; }
RM_INLINE bool begins(const work *w, int64_t t) { return w->job->reset && w->job->reset[row_at(w, t)] > 0; }

/* The lanes of vector i that are columns. */
RM_INLINE int lanes_of(const work *w, int i) {
    int left = w->columns - i * LANES;
    return left < 0 ? 0 : left < LANES ? left : LANES;
}
RM_INLINE void load_columns(const work *w, const float *from, int64_t t, rm_vec out[WIDE]) {
    const float *at = from + head_at(w, t) * w->job->values + w->column;
    for (int i = 0; i < WIDE; i++) out[i] = rm_load_n(at + i * LANES, lanes_of(w, i));
}
RM_INLINE void store_columns(const work *w, float *to, int64_t t, const rm_vec *v) {
    float *at = to + head_at(w, t) * w->job->values + w->column;
    for (int i = 0; i < WIDE; i++) rm_store_n(at + i * LANES, v[i], lanes_of(w, i));
}

static void load_matrix(const work *w, const float *from, float *to) {
    const rm_matrix_job *job = w->job;
    memset(to, 0, (size_t)w->matrix * sizeof *to);
    if (from) from += (w->row * job->heads + w->head) * job->keys * job->values + w->column;
    for (int64_t k = 0; from && k < job->keys; k++)
        memcpy(to + k * SPAN, from + k * job->values, (size_t)w->columns * sizeof *to);
}
static void store_matrix(const work *w, const float *from, float *to) {
    const rm_matrix_job *job = w->job;
    to += (w->row * job->heads + w->head) * job->keys * job->values + w->column;
    for (int64_t k = 0; k < job->keys; k++)
        memcpy(to + k * job->values, from + k * SPAN, (size_t)w->columns * sizeof *to);
}

/* Padded keys keep the zeros of start_work. */
RM_INLINE void load_step(rm_matrix_rule rule, const work *w, int64_t t) {
    const rm_matrix_job *job = w->job;
    int64_t shared = (row_at(w, t) * (job->heads / job->repeat) + w->head / job->repeat) * job->keys;
    int64_t own = head_at(w, t) * job->keys;
    const float *decay = job->decay + head_at(w, t) * job->rates;
    for (int64_t k = 0; k < job->keys; k++) {
        w->q[k] = job->q[shared + k], w->k[k] = job->k[shared + k];
        w->decay[k] = decay[job->rates > 1 ? k : 0];
        if (rule == RM_MATRIX_DELTA) w->read[k] = w->k[k] * w->decay[k];
        if (rule == RM_MATRIX_TANH) w->read[k] = w->k[k];
        if (rule == RM_MATRIX_RANK1) w->read[k] = job->a[own + k], w->b[k] = job->b[own + k];
    }
}

static work start_work(const rm_matrix_job *job, int64_t row, int64_t head, float *room) {
    int64_t keys = rm_matrix_padded(job->keys), vector = keys + 12;
    work w = {.job = job, .row = row, .head = head, .keys = keys, .matrix = keys * SPAN};
    w.q = room, w.k = w.q + vector, w.decay = w.k + vector, w.read = w.decay + vector, w.b = w.read + vector;
    memset(room, 0, (size_t)(5 * vector) * sizeof *room);
    w.s = room + 5 * vector;
    w.zeros = w.s, w.ds = w.zeros + w.matrix, w.states = w.ds + w.matrix; /* backward */
    w.delta = w.states + (CHUNK + 1) * w.matrix, w.error = w.delta + CHUNK * SPAN;
    w.at_start = w.error + CHUNK * SPAN;
    return w;
}

RM_INLINE bool has_beta(rm_matrix_rule rule) { return rule == RM_MATRIX_ADD || rule == RM_MATRIX_DELTA; }

RM_INLINE void sum_groups(rm_vec sum[GROUP][WIDE], rm_vec out[WIDE]) {
    for (int i = 0; i < WIDE; i++) out[i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
}

/* `to`: S after the timestep, from S before it; returns S^T q in y. delta_to and error_to: see work, or NULL. */
RM_INLINE void advance(rm_matrix_rule rule, const work *w, int64_t t, const float *from, float *to, float *delta_to,
                       float *error_to, rm_vec y[WIDE]) {
    const rm_vec beta = rm_splat(has_beta(rule) ? w->job->beta[head_at(w, t)] : 1);
    rm_vec sum[GROUP][WIDE] = {{{0}}}, read[GROUP][WIDE] = {{{0}}}, v[WIDE], delta[WIDE], answer[WIDE];
    load_columns(w, w->job->v, t, v);
    for (int64_t k = 0; rule != RM_MATRIX_ADD && k < w->keys; k += GROUP)
        for (int g = 0; g < GROUP; g++)
            for (int i = 0; i < WIDE; i++)
                sum[g][i] = rm_fma(rm_splat(w->read[k + g]), rm_load(from + (k + g) * SPAN + i * LANES), sum[g][i]);
    sum_groups(sum, answer);
    for (int i = 0; i < WIDE; i++) {
        rm_vec error = rule == RM_MATRIX_ADD ? v[i] : rule == RM_MATRIX_RANK1 ? answer[i] : v[i] - answer[i];
        delta[i] = rule == RM_MATRIX_RANK1 ? v[i] : beta * error;
        if (error_to) rm_store(error_to + i * LANES, error), rm_store(delta_to + i * LANES, delta[i]);
    }
    for (int64_t k = 0; k < w->keys; k += GROUP)
        for (int g = 0; g < GROUP; g++)
            for (int i = 0; i < WIDE; i++) {
                int64_t at = (k + g) * SPAN + i * LANES;
                rm_vec s = rm_fma(rm_splat(w->k[k + g]), delta[i], rm_splat(w->decay[k + g]) * rm_load(from + at));
                if (rule == RM_MATRIX_RANK1) s = rm_fma(rm_splat(w->b[k + g]), answer[i], s);
                if (rule == RM_MATRIX_TANH) s = rm_vec_tanh(s);
                rm_store(to + at, s);
                read[g][i] = rm_fma(rm_splat(w->q[k + g]), s, read[g][i]);
            }
    sum_groups(read, y);
}

/* The spans of a head: runs the statement with w, the work of one. */
#define EACH_SPAN(job, row, head, room, ...)                                                                           \
    for (int64_t column = 0; column < (job)->values; column += SPAN) {                                                 \
        work work_ = start_work(job, row, head, room), *w = &work_;                                                    \
        w->column = column;                                                                                            \
        w->columns = (job)->values - column < SPAN ? (int)((job)->values - column) : SPAN;                             \
        __VA_ARGS__                                                                                                    \
    }

RM_INLINE void forward(rm_matrix_rule rule, const rm_matrix_job *job, int64_t row, int64_t head,
                       float *room){EACH_SPAN(job, row, head, room,
                                              {
                                                  rm_vec y[WIDE];
                                                  load_matrix(w, job->s_in, w->s);
                                                  for (int64_t t = 0; t < job->tau; t++) {
                                                      if (begins(w, t))
                                                          memset(w->s, 0, (size_t)w->matrix * sizeof *w->s);
                                                      load_step(rule, w, t);
                                                      advance(rule, w, t, w->s, w->s, NULL, NULL, y);
                                                      store_columns(w, job->y, t, y);
                                                  }
                                                  store_matrix(w, w->s, job->s_out);
                                              })}

/* S at the starts of all chunks. */
RM_INLINE void start_chunks(rm_matrix_rule rule, const work *w) {
    float *s = w->at_start;
    rm_vec y[WIDE];
    load_matrix(w, w->job->s_in, s);
    for (int64_t t0 = 0; t0 + CHUNK < w->job->tau; t0 += CHUNK) {
        memcpy(s + w->matrix, s, (size_t)w->matrix * sizeof *s);
        s += w->matrix;
        for (int64_t t = t0; t < t0 + CHUNK; t++) {
            load_step(rule, w, t);
            advance(rule, w, t, begins(w, t) ? w->zeros : s, s, NULL, NULL, y);
        }
    }
}

/* (+)= four sums over the lanes; the first span of a head sets them. */
RM_INLINE void add_sums(const work *w, float (*lanes)[LANES], int64_t key, float *to) {
    rm_four sum = rm_sum_lanes(GROUP, lanes);
    for (int g = 0; g < GROUP && key + g < w->job->keys; g++) to[key + g] = w->column ? to[key + g] + sum[g] : sum[g];
}

/* y = S'^T q, S' = .. + k delta^T (+ b answer^T): the gradient of S' (TANH: of its argument), of q, and, as `ddelta` and
 * `danswer`, of these. */
RM_INLINE void back_to_write(rm_matrix_rule rule, const work *w, int64_t t, const float *after, rm_vec ddelta[WIDE],
                             rm_vec danswer[WIDE]) {
    rm_vec dy[WIDE], sum[GROUP][WIDE] = {{{0}}}, by_b[GROUP][WIDE] = {{{0}}};
    _Alignas(64) float lanes[GROUP][LANES];
    load_columns(w, w->job->dy, t, dy);
    for (int64_t k = 0; k < w->keys; k += GROUP) {
        for (int g = 0; g < GROUP; g++) {
            rm_vec dq = rm_splat(0);
            for (int i = 0; i < WIDE; i++) {
                int64_t at = (k + g) * SPAN + i * LANES;
                rm_vec ds = rm_fma(rm_splat(w->q[k + g]), dy[i], rm_load(w->ds + at)), s = rm_load(after + at);
                if (rule == RM_MATRIX_TANH) ds = ds * (1 - s * s);
                rm_store(w->ds + at, ds);
                sum[g][i] = rm_fma(rm_splat(w->k[k + g]), ds, sum[g][i]);
                if (rule == RM_MATRIX_RANK1) by_b[g][i] = rm_fma(rm_splat(w->b[k + g]), ds, by_b[g][i]);
                dq = rm_fma(s, dy[i], dq);
            }
            rm_store(lanes[g], dq);
        }
        add_sums(w, lanes, k, w->job->dq + head_at(w, t) * w->job->keys);
    }
    sum_groups(sum, ddelta);
    sum_groups(by_b, danswer);
}

/* The gradients of k, decay, a and b, and of S before. danswer: that of S^T a (RANK1), or of v (others). */
RM_INLINE void back_to_decay(rm_matrix_rule rule, const work *w, int64_t t, int64_t j, const float *before,
                             const rm_vec *danswer) {
    const rm_matrix_job *job = w->job;
    const float *delta = w->delta + j * SPAN, *error = w->error + j * SPAN;
    int64_t own = head_at(w, t) * job->keys;
    float *dlog = job->dlog_decay + head_at(w, t) * job->rates;
    bool cut = begins(w, t);
    rm_vec total = rm_splat(0);
    _Alignas(64) float lanes[4][GROUP][LANES];
    for (int64_t k = 0; k < w->keys; k += GROUP) {
        for (int g = 0; g < GROUP; g++) {
            rm_vec by_k = rm_splat(0), by_decay = rm_splat(0), by_a = rm_splat(0), by_b = rm_splat(0);
            rm_vec decay = rm_splat(w->decay[k + g]);
            for (int i = 0; i < WIDE; i++) {
                int64_t at = (k + g) * SPAN + i * LANES;
                rm_vec s = rm_load(before + at), d = decay * s, ds = rm_load(w->ds + at);
                by_k = rm_fma(ds, rm_load(delta + i * LANES), by_k);
                if (rule == RM_MATRIX_DELTA) {
                    by_k = by_k - d * danswer[i];
                    ds = rm_fma(rm_splat(-w->k[k + g]), danswer[i], ds);
                }
                by_decay = rm_fma(ds, d, by_decay);
                if (rule == RM_MATRIX_RANK1) {
                    by_b = rm_fma(ds, rm_load(error + i * LANES), by_b);
                    by_a = rm_fma(s, danswer[i], by_a);
                    ds = rm_fma(rm_splat(w->read[k + g]), danswer[i], decay * ds);
                } else if (rule == RM_MATRIX_TANH) {
                    by_k = by_k - s * danswer[i];
                    ds = rm_fma(rm_splat(-w->read[k + g]), danswer[i], decay * ds);
                } else {
                    ds = decay * ds;
                }
                rm_store(w->ds + at, cut ? rm_splat(0) : ds);
            }
            rm_store(lanes[0][g], by_k), rm_store(lanes[1][g], by_decay);
            if (rule == RM_MATRIX_RANK1) rm_store(lanes[2][g], by_a), rm_store(lanes[3][g], by_b);
            total += by_decay;
        }
        add_sums(w, lanes[0], k, job->dk + own);
        if (job->rates > 1) add_sums(w, lanes[1], k, dlog);
        if (rule == RM_MATRIX_RANK1) add_sums(w, lanes[2], k, job->da + own), add_sums(w, lanes[3], k, job->db + own);
    }
    if (job->rates > 1) return;
    rm_store(lanes[0][0], total);
    dlog[0] = (w->column ? dlog[0] : 0) + rm_sum_lanes(1, lanes[0])[0];
}

RM_INLINE void step_back(rm_matrix_rule rule, const work *w, int64_t t, int64_t j) {
    const rm_matrix_job *job = w->job;
    rm_vec ddelta[WIDE], danswer[WIDE], by_beta = rm_splat(0);
    _Alignas(64) float lanes[1][LANES];
    load_step(rule, w, t);
    back_to_write(rule, w, t, w->states + (j + 1) * w->matrix, ddelta, danswer);
    for (int i = 0; i < WIDE && rule != RM_MATRIX_RANK1; i++) { /* delta = beta error */
        by_beta = rm_fma(ddelta[i], rm_load(w->error + j * SPAN + i * LANES), by_beta);
        danswer[i] = has_beta(rule) ? rm_splat(job->beta[head_at(w, t)]) * ddelta[i] : ddelta[i];
    }
    if (job->dv) store_columns(w, job->dv, t, rule == RM_MATRIX_RANK1 ? ddelta : danswer);
    if (has_beta(rule)) {
        float *dbeta = job->dbeta + head_at(w, t);
        rm_store(lanes[0], by_beta);
        *dbeta = (w->column ? *dbeta : 0) + rm_sum_lanes(1, lanes)[0];
    }
    back_to_decay(rule, w, t, j, begins(w, t) ? w->zeros : w->states + j * w->matrix, danswer);
}

RM_INLINE void backward(rm_matrix_rule rule, const rm_matrix_job *job, int64_t row, int64_t head, float *room){
    EACH_SPAN(job, row, head, room,
              {
                  memset(w->zeros, 0, (size_t)w->matrix * sizeof *w->zeros);
                  load_matrix(w, job->ds_out, w->ds);
                  start_chunks(rule, w);
                  for (int64_t t0 = (job->tau - 1) / CHUNK * CHUNK; t0 >= 0; t0 -= CHUNK) {
                      int64_t count = job->tau - t0 < CHUNK ? job->tau - t0 : CHUNK;
                      rm_vec y[WIDE];
                      memcpy(w->states, w->at_start + t0 / CHUNK * w->matrix, (size_t)w->matrix * sizeof *w->states);
                      for (int64_t j = 0; j < count; j++) {
                          load_step(rule, w, t0 + j);
                          advance(rule, w, t0 + j, begins(w, t0 + j) ? w->zeros : w->states + j * w->matrix,
                                  w->states + (j + 1) * w->matrix, w->delta + j * SPAN, w->error + j * SPAN, y);
                      }
                      for (int64_t j = count - 1; j >= 0; j--) step_back(rule, w, t0 + j, j);
                  }
                  if (job->ds_in) store_matrix(w, w->ds, job->ds_in);
              })}

#define RULE(name, rule)                                                                                               \
    static void name##_forward(const rm_matrix_job *job, int64_t row, int64_t head, float *room) {                     \
        forward(rule, job, row, head, room);                                                                           \
    }                                                                                                                  \
    static void name##_backward(const rm_matrix_job *job, int64_t row, int64_t head, float *room) {                    \
        backward(rule, job, row, head, room);                                                                          \
    }
RULE(add, RM_MATRIX_ADD) RULE(delta, RM_MATRIX_DELTA) RULE(rank1, RM_MATRIX_RANK1) RULE(tanh, RM_MATRIX_TANH)

    const rm_matrix_rows rm_cell_matrix[RM_MATRIX_RULES] = {
        [RM_MATRIX_ADD] = {add_forward, add_backward},
        [RM_MATRIX_DELTA] = {delta_forward, delta_backward},
        [RM_MATRIX_RANK1] = {rank1_forward, rank1_backward},
        [RM_MATRIX_TANH] = {tanh_forward, tanh_backward},
};

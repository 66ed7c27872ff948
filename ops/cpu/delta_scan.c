/* cpu/delta_scan.c: delta_scan in vectors of columns of S; ops/recurrent/delta_scan.c has the definition. A timestep is
 * two passes over the span of columns, forward and backward alike. Compiled once per instruction set. */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ops/cpu/isa.h"
#include "ops/cpu/lane_sums.h"
#include "ops/recurrent/delta_scan.h"

enum { LANES = RM_LANES, SPAN = RM_DELTA_SPAN, CHUNK = RM_DELTA_CHUNK, GROUP = RM_DELTA_GROUP, WIDE = SPAN / LANES };

/* A span of columns of one head of one row of the batch, and its scratch. */
typedef struct {
    const rm_delta_job *job;
    int64_t row, head, column, keys, matrix; /* keys: padded; matrix: floats of a span of S */
    int columns;                             /* of the span; the others are zeros */
    float *q, *k, *decay, *decayed_k;        /* of a timestep (load_step) */
    float *s, *zeros, *ds, *states, *at_start, *delta, *error;
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
    const rm_delta_job *job = w->job;
    memset(to, 0, (size_t)w->matrix * sizeof *to);
    if (from) from += (w->row * job->heads + w->head) * job->keys * job->values + w->column;
    for (int64_t k = 0; from && k < job->keys; k++)
        memcpy(to + k * SPAN, from + k * job->values, (size_t)w->columns * sizeof *to);
}
static void store_matrix(const work *w, const float *from, float *to) {
    const rm_delta_job *job = w->job;
    to += (w->row * job->heads + w->head) * job->keys * job->values + w->column;
    for (int64_t k = 0; k < job->keys; k++)
        memcpy(to + k * job->values, from + k * SPAN, (size_t)w->columns * sizeof *to);
}

/* Padded keys keep the zeros of start_work. */
static void load_step(const work *w, int64_t t) {
    const rm_delta_job *job = w->job;
    int64_t shared = (row_at(w, t) * (job->heads / job->repeat) + w->head / job->repeat) * job->keys;
    const float *decay = job->decay + head_at(w, t) * job->rates;
    for (int64_t k = 0; k < job->keys; k++) {
        w->q[k] = job->q[shared + k], w->k[k] = job->k[shared + k];
        w->decay[k] = decay[job->rates > 1 ? k : 0];
        w->decayed_k[k] = w->k[k] * w->decay[k];
    }
}

static work start_work(const rm_delta_job *job, int64_t row, int64_t head, float *room) {
    int64_t keys = rm_delta_padded(job->keys), vector = keys + 12;
    work w = {.job = job, .row = row, .head = head, .keys = keys, .matrix = keys * SPAN};
    w.q = room, w.k = w.q + vector, w.decay = w.k + vector, w.decayed_k = w.decay + vector;
    memset(room, 0, (size_t)(4 * vector) * sizeof *room);
    w.s = room + 4 * vector;
    w.zeros = w.s, w.ds = w.zeros + w.matrix, w.states = w.ds + w.matrix; /* backward */
    w.delta = w.states + (CHUNK + 1) * w.matrix, w.error = w.delta + CHUNK * SPAN;
    w.at_start = w.error + CHUNK * SPAN;
    return w;
}

RM_INLINE void sum_groups(rm_vec sum[GROUP][WIDE], rm_vec out[WIDE]) {
    for (int i = 0; i < WIDE; i++) out[i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
}

/* error = v - (decay S)^T k;  delta = beta error;  S = decay S + k delta^T;  returns S^T q in y. */
static void advance(const work *w, int64_t t, const float *from, float *to, float *delta_to, float *error_to,
                    rm_vec y[WIDE]) {
    const rm_vec beta = rm_splat(w->job->beta[head_at(w, t)]);
    rm_vec sum[GROUP][WIDE] = {{{0}}}, read[GROUP][WIDE] = {{{0}}}, v[WIDE], delta[WIDE];
    load_columns(w, w->job->v, t, v);
    for (int64_t k = 0; k < w->keys; k += GROUP)
        for (int g = 0; g < GROUP; g++)
            for (int i = 0; i < WIDE; i++)
                sum[g][i] =
                    rm_fma(rm_splat(w->decayed_k[k + g]), rm_load(from + (k + g) * SPAN + i * LANES), sum[g][i]);
    sum_groups(sum, delta);
    for (int i = 0; i < WIDE; i++) {
        rm_vec error = v[i] - delta[i];
        delta[i] = beta * error;
        if (error_to) rm_store(error_to + i * LANES, error), rm_store(delta_to + i * LANES, delta[i]);
    }
    for (int64_t k = 0; k < w->keys; k += GROUP)
        for (int g = 0; g < GROUP; g++)
            for (int i = 0; i < WIDE; i++) {
                int64_t at = (k + g) * SPAN + i * LANES;
                rm_vec s = rm_fma(rm_splat(w->k[k + g]), delta[i], rm_splat(w->decay[k + g]) * rm_load(from + at));
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

static void forward(const rm_delta_job *job, int64_t row, int64_t head, float *room) {
    EACH_SPAN(job, row, head, room, {
        rm_vec y[WIDE];
        load_matrix(w, job->s_in, w->s);
        for (int64_t t = 0; t < job->tau; t++) {
            if (begins(w, t)) memset(w->s, 0, (size_t)w->matrix * sizeof *w->s);
            load_step(w, t);
            advance(w, t, w->s, w->s, NULL, NULL, y);
            store_columns(w, job->y, t, y);
        }
        store_matrix(w, w->s, job->s_out);
    })
}

/* S at the starts of all chunks. */
static void start_chunks(const work *w) {
    float *s = w->at_start;
    rm_vec y[WIDE];
    load_matrix(w, w->job->s_in, s);
    for (int64_t t0 = 0; t0 + CHUNK < w->job->tau; t0 += CHUNK) {
        memcpy(s + w->matrix, s, (size_t)w->matrix * sizeof *s);
        s += w->matrix;
        for (int64_t t = t0; t < t0 + CHUNK; t++) {
            load_step(w, t);
            advance(w, t, begins(w, t) ? w->zeros : s, s, NULL, NULL, y);
        }
    }
}

/* (+)= four sums over the lanes; the first span of a head sets them. */
RM_INLINE void add_sums(const work *w, float (*lanes)[LANES], int64_t key, float *to) {
    rm_four sum = rm_sum_lanes(GROUP, lanes);
    for (int g = 0; g < GROUP && key + g < w->job->keys; g++) to[key + g] = w->column ? to[key + g] + sum[g] : sum[g];
}

/* y = S^T q, S = D + k delta^T: the gradient of S, of q, and, as `ddelta`, of delta. */
static void back_to_write(const work *w, int64_t t, const float *after, rm_vec ddelta[WIDE]) {
    rm_vec dy[WIDE], sum[GROUP][WIDE] = {{{0}}};
    _Alignas(64) float lanes[GROUP][LANES];
    load_columns(w, w->job->dy, t, dy);
    for (int64_t k = 0; k < w->keys; k += GROUP) {
        for (int g = 0; g < GROUP; g++) {
            rm_vec dq = rm_splat(0);
            for (int i = 0; i < WIDE; i++) {
                int64_t at = (k + g) * SPAN + i * LANES;
                rm_vec ds = rm_fma(rm_splat(w->q[k + g]), dy[i], rm_load(w->ds + at));
                rm_store(w->ds + at, ds);
                sum[g][i] = rm_fma(rm_splat(w->k[k + g]), ds, sum[g][i]);
                dq = rm_fma(rm_load(after + at), dy[i], dq);
            }
            rm_store(lanes[g], dq);
        }
        add_sums(w, lanes, k, w->job->dq + head_at(w, t) * w->job->keys);
    }
    sum_groups(sum, ddelta);
}

/* delta = beta error, error = v - D^T k, D = decay S: the gradients of k and decay, and of S before. */
static void back_to_decay(const work *w, int64_t t, const float *before, const float *delta, const rm_vec *derror) {
    const rm_delta_job *job = w->job;
    float *dk = job->dk + head_at(w, t) * job->keys, *dlog = job->dlog_decay + head_at(w, t) * job->rates;
    bool cut = begins(w, t);
    rm_vec total[WIDE] = {{0}};
    _Alignas(64) float lanes[2][GROUP][LANES];
    for (int64_t k = 0; k < w->keys; k += GROUP) {
        for (int g = 0; g < GROUP; g++) {
            rm_vec by_k = rm_splat(0), by_decay = rm_splat(0), decay = rm_splat(w->decay[k + g]);
            for (int i = 0; i < WIDE; i++) {
                int64_t at = (k + g) * SPAN + i * LANES;
                rm_vec d = decay * rm_load(before + at), ds = rm_load(w->ds + at);
                by_k = rm_fma(ds, rm_load(delta + i * LANES), by_k) - d * derror[i];
                ds = rm_fma(rm_splat(-w->k[k + g]), derror[i], ds);
                by_decay = rm_fma(ds, d, by_decay);
                rm_store(w->ds + at, cut ? rm_splat(0) : decay * ds);
            }
            rm_store(lanes[0][g], by_k), rm_store(lanes[1][g], by_decay);
            total[0] += by_decay;
        }
        add_sums(w, lanes[0], k, dk);
        if (job->rates > 1) add_sums(w, lanes[1], k, dlog);
    }
    if (job->rates > 1) return;
    rm_store(lanes[0][0], total[0]);
    dlog[0] = (w->column ? dlog[0] : 0) + rm_sum_lanes(1, lanes[0])[0];
}

static void step_back(const work *w, int64_t t, int64_t j) {
    const rm_delta_job *job = w->job;
    rm_vec ddelta[WIDE], derror[WIDE], by_beta = rm_splat(0);
    _Alignas(64) float lanes[1][LANES];
    load_step(w, t);
    back_to_write(w, t, w->states + (j + 1) * w->matrix, ddelta);
    for (int i = 0; i < WIDE; i++) {
        by_beta = rm_fma(ddelta[i], rm_load(w->error + j * SPAN + i * LANES), by_beta);
        derror[i] = rm_splat(job->beta[head_at(w, t)]) * ddelta[i];
    }
    if (job->dv) store_columns(w, job->dv, t, derror);
    rm_store(lanes[0], by_beta);
    float *dbeta = job->dbeta + head_at(w, t);
    *dbeta = (w->column ? *dbeta : 0) + rm_sum_lanes(1, lanes)[0];
    back_to_decay(w, t, begins(w, t) ? w->zeros : w->states + j * w->matrix, w->delta + j * SPAN, derror);
}

static void backward(const rm_delta_job *job, int64_t row, int64_t head, float *room) {
    EACH_SPAN(job, row, head, room, {
        memset(w->zeros, 0, (size_t)w->matrix * sizeof *w->zeros);
        load_matrix(w, job->ds_out, w->ds);
        start_chunks(w);
        for (int64_t t0 = (job->tau - 1) / CHUNK * CHUNK; t0 >= 0; t0 -= CHUNK) {
            int64_t count = job->tau - t0 < CHUNK ? job->tau - t0 : CHUNK;
            rm_vec y[WIDE];
            memcpy(w->states, w->at_start + t0 / CHUNK * w->matrix, (size_t)w->matrix * sizeof *w->states);
            for (int64_t j = 0; j < count; j++) {
                load_step(w, t0 + j);
                advance(w, t0 + j, begins(w, t0 + j) ? w->zeros : w->states + j * w->matrix,
                        w->states + (j + 1) * w->matrix, w->delta + j * SPAN, w->error + j * SPAN, y);
            }
            for (int64_t j = count - 1; j >= 0; j--) step_back(w, t0 + j, j);
        }
        if (job->ds_in) store_matrix(w, w->ds, job->ds_in);
    })
}

const rm_delta_rows rm_cell_delta = {forward, backward};

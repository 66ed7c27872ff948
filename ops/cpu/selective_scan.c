/* cpu/selective_scan.c: selective_scan in vectors of channels. A few states at a time stay in registers while time
 * advances, so nothing of size (T,E,N) exists. Backward first runs forward and keeps h at the starts of chunks; then it
 * takes the chunks from the last to the first, recomputes a chunk's states and goes back through them. */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ops/cpu/isa.h"
#include "ops/cpu/lane_sums.h"
#include "ops/math/vecmath.h"
#include "ops/recurrent/selective_scan.h"

enum { LANES = RM_LANES, CHUNK = RM_SELECTIVE_CHUNK, SPAN = RM_SELECTIVE_SPAN, GROUP = RM_SELECTIVE_GROUP };

/* One vector of channels of one row of the batch. */
typedef struct {
    const rm_selective_job *job;
    int64_t row, channel;
    int n; /* channels in the vector; its other lanes compute with zeros */
} lane_block;

RM_INLINE int64_t at_row(const lane_block *k, int64_t t) { return t * k->job->batch + k->row; }
RM_INLINE int64_t at_channel(const lane_block *k, int64_t t) { return at_row(k, t) * k->job->channels + k->channel; }
RM_INLINE bool begins(const lane_block *k, int64_t t) { return k->job->reset && k->job->reset[at_row(k, t)] > 0; }
RM_INLINE rm_vec load_or_zero(const float *p, int64_t at, int n) { return p ? rm_load_n(p + at, n) : rm_splat(0); }

/* [state][lane] from (E,N), or the reverse. */
static void load_states(const lane_block *k, const float *from, float *to) {
    int64_t states = k->job->states;
    memset(to, 0, (size_t)(states * LANES) * sizeof *to);
    for (int i = 0; from && i < k->n; i++)
        for (int64_t s = 0; s < states; s++) to[s * LANES + i] = from[(k->channel + i) * states + s];
}
static void store_states(const lane_block *k, const float *from, float *to) {
    int64_t states = k->job->states;
    for (int i = 0; to && i < k->n; i++)
        for (int64_t s = 0; s < states; s++) to[(k->channel + i) * states + s] = from[s * LANES + i];
}

static float *row_of(const lane_block *k, const float *states) {
    return states ? (float *)states + k->row * k->job->channels * k->job->states : NULL;
}

static void load_decay(const lane_block *k, float *a) {
    load_states(k, k->job->a_log, a);
    for (int64_t s = 0; s < k->job->states; s++) rm_store(a + s * LANES, -rm_vec_exp(rm_load(a + s * LANES)));
}

RM_INLINE rm_vec dt_at(const lane_block *k, int64_t t) {
    return rm_load_n(k->job->dt + at_channel(k, t), k->n) + load_or_zero(k->job->dt_bias, k->channel, k->n);
}

/* One timestep of a vector of channels. The scan's sum starts with D u. Backward: its gradient, and the sums over the
 * states of the gradients by B u and by A. */
typedef struct {
    float delta[LANES], u[LANES], sum[LANES], dsum[LANES], by_b[LANES], by_a[LANES];
} step;

RM_INLINE void start_step(const lane_block *k, int64_t t, step *s) {
    rm_vec u = rm_load_n(k->job->u + at_channel(k, t), k->n);
    rm_store(s->delta, rm_vec_softplus(dt_at(k, t)));
    rm_store(s->u, u);
    rm_store(s->sum, u * load_or_zero(k->job->d, k->channel, k->n));
}

/* ---- Forward ------------------------------------------------------------------------------------------------------ */

/* h and the decays of a group of states, if backward wants them: h[j + 1] is that after timestep j of a chunk. */
typedef struct {
    float h[CHUNK + 1][GROUP][LANES], decay[CHUNK][GROUP][LANES];
} kept_states;

/* `many` states from the `first`, through `count` timesteps from t0. `keep` may be NULL. */
RM_INLINE void advance(const lane_block *k, int many, int64_t first, int64_t t0, int64_t count, const float *a,
                       float *h, step *rows, kept_states *keep) {
    rm_vec rate[GROUP], state[GROUP];
    for (int i = 0; i < many; i++) {
        rate[i] = rm_load(a + (first + i) * LANES), state[i] = rm_load(h + (first + i) * LANES);
        if (keep) rm_store(keep->h[0][i], state[i]);
    }
    for (int64_t j = 0; j < count; j++) {
        const float *b = k->job->b + at_row(k, t0 + j) * k->job->states + first;
        const float *c = k->job->c + at_row(k, t0 + j) * k->job->states + first;
        rm_vec delta = rm_load(rows[j].delta), push = delta * rm_load(rows[j].u), sum = rm_load(rows[j].sum);
        if (begins(k, t0 + j))
            for (int i = 0; i < many; i++) state[i] = rm_splat(0);
        for (int i = 0; i < many; i++) {
            rm_vec decay = rm_vec_exp_nonpositive(delta * rate[i]);
            state[i] = rm_fma(decay, state[i], push * rm_splat(b[i]));
            sum = rm_fma(rm_splat(c[i]), state[i], sum);
            if (keep) rm_store(keep->decay[j][i], decay), rm_store(keep->h[j + 1][i], state[i]);
        }
        rm_store(rows[j].sum, sum);
    }
    for (int i = 0; i < many; i++) rm_store(h + (first + i) * LANES, state[i]);
}

static void advance_all(const lane_block *k, int64_t t0, int64_t count, const float *a, float *h, step *rows) {
    int64_t s = 0;
    for (; s + GROUP <= k->job->states; s += GROUP) advance(k, GROUP, s, t0, count, a, h, rows, NULL);
    for (; s < k->job->states; s++) advance(k, 1, s, t0, count, a, h, rows, NULL);
}

static int64_t chunk_at(const rm_selective_job *job, int64_t t0) {
    return job->tau - t0 < CHUNK ? job->tau - t0 : CHUNK;
}

static void forward_block(const lane_block *k, float *a, float *h) {
    const rm_selective_job *job = k->job;
    step rows[CHUNK];
    load_decay(k, a);
    load_states(k, row_of(k, job->h_in), h);
    for (int64_t t0 = 0; t0 < job->tau; t0 += CHUNK) {
        int64_t count = chunk_at(job, t0);
        for (int64_t j = 0; j < count; j++) start_step(k, t0 + j, &rows[j]);
        advance_all(k, t0, count, a, h, rows);
        for (int64_t j = 0; j < count; j++) {
            rm_vec y = rm_load(rows[j].sum), z = load_or_zero(job->z, at_channel(k, t0 + j), k->n);
            if (job->z) y *= z * rm_vec_sigmoid(z);
            rm_store_n(job->y + at_channel(k, t0 + j), y, k->n);
        }
    }
    store_states(k, h, row_of(k, job->h_out));
}

/* The vectors of a span: runs the statement with `k`, a block, and `i`, its number. */
#define EACH_BLOCK(work, the_row, span, ...)                                                                           \
    for (int64_t i = 0, from = (span)*SPAN; i < SPAN / LANES && from < (work)->channels; i++, from += LANES) {         \
        int64_t left_ = (work)->channels - from;                                                                       \
        const lane_block block_ = {work, the_row, from, left_ < LANES ? (int)left_ : LANES}, *k = &block_;             \
        __VA_ARGS__                                                                                                    \
    }

static void forward(const rm_selective_job *job, int64_t row, int64_t span, float *room) {
    EACH_BLOCK(job, row, span, {
        (void)i;
        forward_block(k, room, room + job->states * LANES);
    })
}

/* ---- Backward ----------------------------------------------------------------------------------------------------- */

/* Scratch (rm_selective_room). `at_start`: h at the starts of chunks. */
typedef struct {
    step (*rows)[CHUNK]; /* of each block */
    kept_states *keep;
    float (*db)[GROUP][LANES], (*dc)[GROUP][LANES]; /* of a chunk: sums over the blocks */
    float *a, *da, *dh, *at_start;                  /* [block][state][lane]; at_start: of each chunk */
    int64_t block_floats, all_floats;               /* of one block, and of all */
} workplace;

static workplace workplace_in(const rm_selective_job *job, float *room) {
    workplace w = {.block_floats = job->states * LANES, .all_floats = job->states * SPAN};
    w.rows = (void *)room, room += RM_SELECTIVE_ROWS * CHUNK * SPAN;
    w.keep = (void *)room, room += sizeof(kept_states) / sizeof(float);
    w.db = (void *)room, room += CHUNK * GROUP * LANES;
    w.dc = (void *)room, room += CHUNK * GROUP * LANES;
    w.a = room, w.da = w.a + w.all_floats, w.dh = w.da + w.all_floats, w.at_start = w.dh + w.all_floats;
    return w;
}

static void start_block(const lane_block *k, const workplace *w, int64_t i) {
    const rm_selective_job *job = k->job;
    float *h = w->at_start + i * w->block_floats;
    load_decay(k, w->a + i * w->block_floats);
    memset(w->da + i * w->block_floats, 0, (size_t)w->block_floats * sizeof(float));
    load_states(k, row_of(k, job->dh_out), w->dh + i * w->block_floats);
    load_states(k, row_of(k, job->h_in), h);
    for (int64_t t0 = 0; t0 + CHUNK < job->tau; t0 += CHUNK, h += w->all_floats) {
        memcpy(h + w->all_floats, h, (size_t)w->block_floats * sizeof *h);
        for (int64_t j = 0; j < CHUNK; j++) start_step(k, t0 + j, &w->rows[i][j]);
        advance_all(k, t0, CHUNK, w->a + i * w->block_floats, h + w->all_floats, w->rows[i]);
    }
}

RM_INLINE void start_gradients(const lane_block *k, int64_t t, step *s) {
    rm_vec dy = rm_load_n(k->job->dy + at_channel(k, t), k->n), z = load_or_zero(k->job->z, at_channel(k, t), k->n);
    start_step(k, t, s);
    rm_store(s->dsum, k->job->z ? dy * (z * rm_vec_sigmoid(z)) : dy);
    rm_store(s->by_b, rm_splat(0));
    rm_store(s->by_a, rm_splat(0));
}

/* h' = decay h + delta B u, decay = e^(delta A), and the sum has C h'. */
RM_INLINE void go_back(const lane_block *k, int many, int64_t first, int64_t t0, int64_t count, int64_t block,
                       const workplace *w) {
    const float *a = w->a + block * w->block_floats + first * LANES;
    float *da = w->da + block * w->block_floats + first * LANES, *dh = w->dh + block * w->block_floats + first * LANES;
    rm_vec rate[GROUP], drate[GROUP], carry[GROUP];
    for (int i = 0; i < many; i++)
        rate[i] = rm_load(a + i * LANES), drate[i] = rm_load(da + i * LANES), carry[i] = rm_load(dh + i * LANES);
    for (int64_t j = count - 1; j >= 0; j--) {
        const float *b = k->job->b + at_row(k, t0 + j) * k->job->states + first;
        const float *c = k->job->c + at_row(k, t0 + j) * k->job->states + first;
        step *s = &w->rows[block][j];
        rm_vec delta = rm_load(s->delta), push = delta * rm_load(s->u), dsum = rm_load(s->dsum);
        rm_vec by_b = rm_load(s->by_b), by_a = rm_load(s->by_a);
        bool cut = begins(k, t0 + j);
        for (int i = 0; i < many; i++) {
            rm_vec d = rm_fma(dsum, rm_splat(c[i]), carry[i]), through = d * rm_load(w->keep->decay[j][i]);
            rm_vec dexponent = cut ? rm_splat(0) : through * rm_load(w->keep->h[j][i]);
            carry[i] = cut ? rm_splat(0) : through;
            by_b = rm_fma(d, rm_splat(b[i]), by_b);
            by_a = rm_fma(dexponent, rate[i], by_a);
            drate[i] = rm_fma(dexponent, delta, drate[i]);
            rm_store(w->db[j][i], rm_fma(d, push, rm_load(w->db[j][i])));
            rm_store(w->dc[j][i], rm_fma(dsum, rm_load(w->keep->h[j + 1][i]), rm_load(w->dc[j][i])));
        }
        rm_store(s->by_b, by_b), rm_store(s->by_a, by_a);
    }
    for (int i = 0; i < many; i++) rm_store(da + i * LANES, drate[i]), rm_store(dh + i * LANES, carry[i]);
}

RM_INLINE void states_back(const rm_selective_job *job, int64_t row, int64_t span, const workplace *w, int many,
                           int64_t first, int64_t t0, int64_t count) {
    memset(w->db, 0, sizeof *w->db * CHUNK), memset(w->dc, 0, sizeof *w->dc * CHUNK);
    EACH_BLOCK(job, row, span, {
        float *h = w->at_start + t0 / CHUNK * w->all_floats + i * w->block_floats;
        advance(k, many, first, t0, count, w->a + i * w->block_floats, h, w->rows[i], w->keep);
        go_back(k, many, first, t0, count, i, w);
    })
    for (int64_t j = 0; j < count; j++) {
        int64_t at = ((span * job->tau + t0 + j) * job->batch + row) * job->states + first;
        rm_four db = rm_sum_lanes(many, w->db[j]), dc = rm_sum_lanes(many, w->dc[j]);
        memcpy(job->db_part + at, &db, (size_t)many * sizeof(float));
        memcpy(job->dc_part + at, &dc, (size_t)many * sizeof(float));
    }
}

RM_INLINE void store_gradient(float *to, int64_t at, rm_vec v, int n) {
    if (to) rm_store_n(to + at, v, n);
}

/* y = sum silu(z), sum = .. + D u, delta = softplus(dt + bias). */
static void finish_chunk(const lane_block *k, int64_t t0, int64_t count, const step *rows, rm_vec *dd, rm_vec *dbias) {
    const rm_selective_job *job = k->job;
    rm_vec d = load_or_zero(job->d, k->channel, k->n);
    for (int64_t j = count - 1; j >= 0; j--) {
        int64_t at = at_channel(k, t0 + j);
        rm_vec u = rm_load(rows[j].u), dsum = rm_load(rows[j].dsum), by_b = rm_load(rows[j].by_b);
        rm_vec ddelta = rm_fma(u, by_b, rm_load(rows[j].by_a)), ddt = ddelta * rm_vec_sigmoid(dt_at(k, t0 + j));
        store_gradient(job->du, at, rm_fma(rm_load(rows[j].delta), by_b, d * dsum), k->n);
        store_gradient(job->ddt, at, ddt, k->n);
        *dd = rm_fma(dsum, u, *dd), *dbias += ddt;
        if (!job->dz) continue;
        rm_vec z = rm_load_n(job->z + at, k->n), open = rm_vec_sigmoid(z);
        rm_vec slope = open * rm_fma(z, rm_splat(1) - open, rm_splat(1));
        rm_store_n(job->dz + at, rm_load_n(job->dy + at, k->n) * rm_load(rows[j].sum) * slope, k->n);
    }
}

static void finish_block(const lane_block *k, const workplace *w, int64_t i, rm_vec dd, rm_vec dbias) {
    const rm_selective_job *job = k->job;
    int64_t vectors = job->channels * k->row + k->channel;
    float *da = w->da + i * w->block_floats, *a = w->a + i * w->block_floats;
    for (int64_t s = 0; s < w->block_floats; s += LANES) rm_store(da + s, rm_load(da + s) * rm_load(a + s));
    store_states(k, da, job->da_log_part + job->channels * job->states * k->row);
    store_states(k, w->dh + i * w->block_floats, row_of(k, job->dh_in));
    rm_store_n(job->dd_part + vectors, dd, k->n);
    rm_store_n(job->ddt_bias_part + vectors, dbias, k->n);
}

static void backward(const rm_selective_job *job, int64_t row, int64_t span, float *room) {
    workplace w = workplace_in(job, room);
    rm_vec dd[SPAN / LANES] = {0}, dbias[SPAN / LANES] = {0};
    EACH_BLOCK(job, row, span, { start_block(k, &w, i); })
    for (int64_t t0 = (job->tau - 1) / CHUNK * CHUNK; t0 >= 0; t0 -= CHUNK) {
        int64_t count = chunk_at(job, t0), s = 0;
        EACH_BLOCK(job, row, span, {
            for (int64_t j = 0; j < count; j++) start_gradients(k, t0 + j, &w.rows[i][j]);
        })
        for (; s + GROUP <= job->states; s += GROUP) states_back(job, row, span, &w, GROUP, s, t0, count);
        for (; s < job->states; s++) states_back(job, row, span, &w, 1, s, t0, count);
        EACH_BLOCK(job, row, span, { finish_chunk(k, t0, count, w.rows[i], &dd[i], &dbias[i]); })
    }
    EACH_BLOCK(job, row, span, { finish_block(k, &w, i, dd[i], dbias[i]); })
}

const rm_selective_rows rm_cell_selective = {forward, backward};

/* cpu/minimal.c: min_gru and min_lstm in vectors: minimal_math.h for a block of units at a time. A thread processes its
 * blocks of some rows through all timesteps; h is read from the output of the previous timestep. */
#include <stdbool.h>
#include <stddef.h>

#include "ops/cpu/isa.h"
#include "ops/math/vecmath.h"

enum { LANES = RM_LANES };

typedef struct {
    rm_vec keep, take, candidate, slope, turn[2];
} gates;

/* c where x >= 0, else d */
RM_INLINE rm_vec where_positive(rm_vec x, rm_vec c, rm_vec d) {
    rm_ivec mask = (rm_ivec)(x >= rm_splat(0));
    return (rm_vec)((mask & (rm_ivec)c) | (~mask & (rm_ivec)d));
}

RM_INLINE void activate_candidate(gates *a, rm_vec x) {
    rm_vec below = rm_vec_sigmoid(x);
    a->candidate = where_positive(x, x + rm_splat(0.5f), below);
    a->slope = where_positive(x, rm_splat(1), below * (rm_splat(1) - below));
}

/* sigmoid(x) and sigmoid(-x), both accurate, from one exp. */
RM_INLINE void activate_gru(gates *a, rm_vec x) {
    rm_vec e = rm_vec_exp_nonpositive((rm_vec)((rm_ivec)x | (rm_ivec)rm_splat(-0.0f))); /* of -|x| */
    rm_vec large = rm_reciprocal(e + rm_splat(1)), small = e * large;
    a->take = where_positive(x, large, small), a->keep = where_positive(x, small, large);
    a->turn[0] = small * large;
}

RM_INLINE void activate_lstm(gates *a, rm_vec f_gate, rm_vec i_gate) {
    rm_vec m = rm_least(rm_splat(0), rm_least(f_gate, i_gate));
    rm_vec one = rm_vec_exp_nonpositive(m), over_f = rm_vec_exp_nonpositive(m - f_gate), over_i = rm_vec_exp_nonpositive(m - i_gate);
    rm_vec f = one + over_i, i = one + over_f, r = rm_reciprocal(f + i);
    a->keep = f * r, a->take = i * r;
    a->turn[0] = -a->keep * over_f * r, a->turn[1] = a->take * over_i * r;
}

/* The gates of `n` units; x: the candidate of the first. */
typedef gates gates_of(const float *x, int64_t hidden, int n);

RM_INLINE gates min_gru(const float *x, int64_t hidden, int n) {
    gates a;
    activate_candidate(&a, rm_load_n(x, n));
    activate_gru(&a, rm_load_n(x + hidden, n));
    return a;
}

RM_INLINE gates min_lstm(const float *x, int64_t hidden, int n) {
    gates a;
    activate_candidate(&a, rm_load_n(x, n));
    activate_lstm(&a, rm_load_n(x + hidden, n), rm_load_n(x + 2 * hidden, n));
    return a;
}

/* One timestep of one thread's blocks: block k of `blocks` in each of `batch` rows. Runs the statement with `at` and
 * `x_at`, the index of the first unit in (B,H) and in (B,G*H), and n, the units of the block. */
#define EACH_BLOCK(job, parts, from, to, ...)                                                                          \
    for (int64_t unit = from, blocks = blocks_of(job), b = unit / blocks, k = unit % blocks; unit < (to); unit++) {    \
        int64_t hidden = (job)->hidden, left = hidden - k * LANES;                                                     \
        int64_t at = b * hidden + k * LANES, x_at = b * hidden * (parts) + k * LANES;                                  \
        int n = left < LANES ? (int)left : LANES;                                                                      \
        __VA_ARGS__                                                                                                    \
        if (++k == blocks) k = 0, b++;                                                                                 \
    }

static inline int64_t blocks_of(const rm_cell_job *job) { return (job->hidden + LANES - 1) / LANES; }
static inline int64_t share_of(const rm_cell_job *job, int thread, int threads) {
    return job->batch * blocks_of(job) * thread / threads;
}

RM_INLINE bool begins(const rm_cell_job *job, int64_t t, int64_t b) {
    return job->reset && job->reset[t * job->batch + b] > 0;
}

RM_INLINE rm_vec previous(const rm_cell_job *job, int64_t t, int64_t b, int64_t at, int n) {
    int64_t state = job->batch * job->hidden;
    if (begins(job, t, b)) return rm_splat(0);
    return t ? rm_load_n(job->y + (t - 1) * state + at, n) : job->h_in ? rm_load_n(job->h_in + at, n) : rm_splat(0);
}

/* parts: numbers per unit in x. */
RM_INLINE void forward(gates_of *gates_at, int64_t parts, const rm_cell_job *job, int thread, int threads) {
    int64_t state = job->batch * job->hidden;
    int64_t from = share_of(job, thread, threads), to = share_of(job, thread + 1, threads);
    for (int64_t t = 0; t < job->tau; t++)
        EACH_BLOCK(job, parts, from, to, {
            gates a = gates_at(job->x + t * state * parts + x_at, hidden, n);
            rm_vec h = rm_fma(a.keep, previous(job, t, b, at, n), a.take * a.candidate);
            rm_store_n(job->y + t * state + at, h, n);
            if (t == job->tau - 1) rm_store_n(job->h_out + at, h, n);
        })
}

RM_INLINE void backward(gates_of *gates_at, int64_t parts, const rm_cell_job *job, int thread, int threads) {
    int64_t state = job->batch * job->hidden;
    int64_t from = share_of(job, thread, threads), to = share_of(job, thread + 1, threads);
    EACH_BLOCK(job, parts, from, to, {
        (void)x_at;
        rm_store_n(job->carry + at, job->dh_out ? rm_load_n(job->dh_out + at, n) : rm_splat(0), n);
    })
    for (int64_t t = job->tau - 1; t >= 0; t--)
        EACH_BLOCK(job, parts, from, to, {
            const int64_t x_from = t * state * parts + x_at;
            gates a = gates_at(job->x + x_from, hidden, n);
            rm_vec d = rm_load_n(job->carry + at, n) + rm_load_n(job->dy + t * state + at, n);
            rm_vec dtake = d * (a.candidate - previous(job, t, b, at, n));
            if (job->dx) {
                rm_store_n(job->dx + x_from, d * a.take * a.slope, n);
                for (int64_t g = 1; g < parts; g++) rm_store_n(job->dx + x_from + g * hidden, dtake * a.turn[g - 1], n);
            }
            rm_vec dh = begins(job, t, b) ? rm_splat(0) : d * a.keep;
            rm_store_n(job->carry + at, dh, n);
            if (t == 0 && job->dh_in) rm_store_n(job->dh_in + at, dh, n);
        })
}

#define CELL(cell, parts)                                                                                              \
    static void forward_##cell(const rm_cell_job *job, int thread, int threads) {                                      \
        forward(cell, parts, job, thread, threads);                                                                    \
    }                                                                                                                  \
    static void backward_##cell(const rm_cell_job *job, int thread, int threads) {                                     \
        backward(cell, parts, job, thread, threads);                                                                   \
    }
CELL(min_gru, 2)
CELL(min_lstm, 3)

const rm_min_rows rm_cell_minimal[RM_MIN_CELLS] = {
    [RM_MIN_GRU] = {forward_min_gru, backward_min_gru},
    [RM_MIN_LSTM] = {forward_min_lstm, backward_min_lstm},
};

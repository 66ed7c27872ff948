/* lamb.c: layer-wise Adam (You et al., "Large batch optimization for deep learning", arXiv:1904.00962): Adam's
 * direction with decoupled weight decay, scaled to the norm of the array. adamw.c has the same direction without this
 * scaling.
 *
 *   m = b1 m + (1-b1) g    v = b2 v + (1-b2) g^2    d = (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon) + weight_decay
 *   p p -= lr phi(|p|)/|d| d                          phi(z) = z, or at most norm_limit; the ratio is 1 where a norm is
 *   0
 *
 * `measure` updates m and v and sums |p|^2 and |d|^2; `update` recomputes d, bit-identically, from the same m, v and
 * p. Both norms are of whole arrays, even if a rank updates only a part of one. Arrays that are not adapted have ratio
 * 1. */
#include "ops/optimizers/optimizer_steps.h"
#include "ops/shape.h"

enum { CHUNK = 4096, CHUNKS_A_ROUND = 256 };

static int states_used(const rm_update *u) {
    (void)u;
    return 2;
}

/* ---- Moments and norms ------------------------------------------------------------------------------------------- */

static double direction_squares(const rm_lamb *l, int64_t n, const float *p, const float *mean, const float *square) {
    float made[CHUNK];
    for (int64_t i = 0; i < n; i++) made[i] = rm_lamb_direction(l, p[i], mean[i], square[i]);
    return rm_sum_of_squares(made, n, 1);
}

/* Sums chunks of a fixed size and adds them in order, so the bits depend on n alone. */
static void measure(const rm_update *u, int64_t n, const float *parameter, const float *gradient, float *const *state,
                    double sum[RM_MAX_OPTIMIZER_SUMS]) {
    rm_lamb l = rm_lamb_of(u);
    double partial[CHUNKS_A_ROUND];
    for (int64_t done = 0; done < n; done += (int64_t)CHUNK * CHUNKS_A_ROUND) {
        int64_t left = n - done, chunks = (left + CHUNK - 1) / CHUNK;
        if (chunks > CHUNKS_A_ROUND) chunks = CHUNKS_A_ROUND;
        RM_PARALLEL_FOR(
            u->threads, left > RM_PARALLEL_MIN, for (int64_t c = 0; c < chunks; c++) {
                int64_t at = done + c * CHUNK, count = n - at < CHUNK ? n - at : CHUNK;
                for (int64_t i = at; i < at + count; i++) rm_lamb_moments(&l, gradient[i], &state[0][i], &state[1][i]);
                partial[c] = u->adapt ? direction_squares(&l, count, parameter + at, state[0] + at, state[1] + at) : 0;
            });
        for (int64_t c = 0; c < chunks; c++) sum[RM_LAMB_DIRECTION] += partial[c];
    }
    if (u->adapt) sum[RM_LAMB_WEIGHTS] += rm_sum_of_squares(parameter, n, u->threads);
}

/* ---- The step ---------------------------------------------------------------------------------------------------- */

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    (void)gradient; /* it is already in the moments */
    rm_lamb l = rm_lamb_of(u);
    float *mean = state[0], *square = state[1];
    RM_PARALLEL_FOR(u->threads, n > RM_PARALLEL_MIN,
                    for (int64_t i = 0; i < n; i++) parameter[i] -=
                    l.rate * rm_lamb_direction(&l, parameter[i], mean[i], square[i]););
}

const rm_optimizer rm_optimizer_lamb = {
    .name = "lamb",
    .settings = "beta1 beta2 epsilon adapt_vectors decay_vectors norm_limit",
    .doc = "m, v as adam;  d = m/(1-b1^t) / (sqrt(v/(1-b2^t)) + epsilon) + weight_decay p;  "
           "p -= lr phi(|p|)/|d| d, the ratio 1 where a norm is 0 (You et al. 2019)",
    .n_state = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .states_used = states_used,
    .measure = measure,
    .update = update,
    .measure_cuda = RM_CUDA_OPTIMIZER(lamb, measure),
    .update_cuda = RM_CUDA_OPTIMIZER(lamb, update),
};

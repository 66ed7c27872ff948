/* lamb.c: layer-wise Adam (You et al., "Large batch optimization for deep learning", arXiv:1904.00962): Adam's direction with
 * decoupled weight decay, of a length that is the array's own norm. adamw.c has the same direction and no such length.
 *
 *   m = b1 m + (1-b1) g    v = b2 v + (1-b2) g^2    d = (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon) + weight_decay p
 *   p -= lr phi(|p|)/|d| d                          phi(z) = z, or at most norm_limit; the ratio is 1 where a norm is 0
 *
 * `measure` brings m and v up to date and adds up |p|^2 and |d|^2; `update` makes d again from the same m, v and p, to the
 * bit. Both norms are those of whole arrays, whatever part of one a rank updates. Arrays that are not adapted have ratio 1,
 * and no weight decay unless decay_vectors. */
#include <math.h>

#include "ops/optimizer.h"
#include "ops/shape.h"

enum { WEIGHTS, DIRECTION }; /* the sums of squares */
enum { CHUNK = 4096, CHUNKS_A_ROUND = 256 };

static int states_used(const rm_update *u) {
    (void)u;
    return 2;
}

/* What both passes make d with: the same floats. */
typedef struct {
    float correction1, root2, epsilon, decay;
} direction;

static direction direction_of(const rm_update *u) {
    return (direction){.correction1 = (float)(1 / (1 - pow(u->beta1, (double)u->step))),
                       .root2 = (float)(1 / sqrt(1 - pow(u->beta2, (double)u->step))),
                       .epsilon = (float)u->epsilon,
                       .decay = u->adapt || u->decay_vectors ? (float)u->weight_decay : 0};
}

static inline float direction_at(const direction *d, float p, float mean, float square) {
    return mean * d->correction1 / (sqrtf(square) * d->root2 + d->epsilon) + d->decay * p;
}

/* ---- Moments and norms ---------------------------------------------------------------------------------------------- */

static void bring_up_to_date(const rm_update *u, int64_t n, const float *gradient, float *mean, float *square) {
    float scale = (float)u->gradient_scale, beta1 = (float)u->beta1, beta2 = (float)u->beta2;
    float weight1 = (float)(1 - u->beta1), weight2 = (float)(1 - u->beta2);
    for (int64_t i = 0; i < n; i++) {
        float g = gradient[i] * scale;
        mean[i] = beta1 * mean[i] + weight1 * g;
        square[i] = beta2 * square[i] + weight2 * g * g;
    }
}

static double direction_squares(const direction *d, int64_t n, const float *p, const float *mean, const float *square) {
    float made[CHUNK];
    for (int64_t i = 0; i < n; i++) made[i] = direction_at(d, p[i], mean[i], square[i]);
    return rm_sum_of_squares(made, n, 1);
}

/* In chunks of a fixed size, added up in order: bits depend on n alone. */
static void measure(const rm_update *u, int64_t n, const float *parameter, const float *gradient, float *const *state,
                    double sum[RM_MAX_OPTIMIZER_SUMS]) {
    direction d = direction_of(u);
    double partial[CHUNKS_A_ROUND];
    for (int64_t done = 0; done < n; done += (int64_t)CHUNK * CHUNKS_A_ROUND) {
        int64_t left = n - done, chunks = (left + CHUNK - 1) / CHUNK;
        if (chunks > CHUNKS_A_ROUND) chunks = CHUNKS_A_ROUND;
        RM_PARALLEL_FOR(
            u->threads, left > RM_PARALLEL_MIN, for (int64_t c = 0; c < chunks; c++) {
                int64_t at = done + c * CHUNK, count = n - at < CHUNK ? n - at : CHUNK;
                bring_up_to_date(u, count, gradient + at, state[0] + at, state[1] + at);
                partial[c] = u->adapt ? direction_squares(&d, count, parameter + at, state[0] + at, state[1] + at) : 0;
            });
        for (int64_t c = 0; c < chunks; c++) sum[DIRECTION] += partial[c];
    }
    if (u->adapt) sum[WEIGHTS] += rm_sum_of_squares(parameter, n, u->threads);
}

/* ---- The step ------------------------------------------------------------------------------------------------------- */

/* Norms that are not numbers pass through: no comparison hides them. */
static double ratio(const rm_update *u) {
    double w = sqrt(u->sum[WEIGHTS]), d = sqrt(u->sum[DIRECTION]);
    if (!u->adapt || w == 0 || d == 0) return 1;
    return (u->norm_limit > 0 && w > u->norm_limit ? u->norm_limit : w) / d;
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    (void)gradient; /* it is in the moments */
    direction d = direction_of(u);
    float rate = (float)(u->lr * ratio(u)), *mean = state[0], *square = state[1];
    RM_PARALLEL_FOR(u->threads, n > RM_PARALLEL_MIN,
                    for (int64_t i = 0; i < n; i++) parameter[i] -=
                    rate * direction_at(&d, parameter[i], mean[i], square[i]););
}

const rm_optimizer rm_optimizer_lamb = {
    .name = "lamb",
    .doc = "m, v as adam;  d = m/(1-b1^t) / (sqrt(v/(1-b2^t)) + epsilon) + weight_decay p;  "
           "p -= lr phi(|p|)/|d| d, the ratio 1 where a norm is 0 (You et al. 2019)",
    .n_state = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .states_used = states_used,
    .measure = measure,
    .update = update,
};

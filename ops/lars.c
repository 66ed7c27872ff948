/* lars.c: layer-wise adaptive rate scaling (You, Gitman & Ginsburg, arXiv:1708.03888), in the form of MLPerf's reference
 * for ResNet-50: the learning rate is INSIDE the velocity. In sgd.c it is outside, which is why momentum correction (Goyal
 * et al., arXiv:1706.02677, section 3) is for this one alone: a velocity that holds lr * gradient, multiplied by
 * new lr / old lr when the rate changes, is the velocity of the form with the rate outside. lamb.c is the like for Adam.
 *
 * Both norms are those of whole arrays, whatever part of one a rank updates (rm_optimizer.measure). Arrays that are not
 * adapted have trust 1, and no weight decay unless decay_vectors. Zero epsilon is fine: with a norm of 0 trust is 1. */
#include <math.h>

#include "ops/optimizer.h"
#include "ops/shape.h"

enum { WEIGHTS, GRADIENT }; /* the sums of squares */

static int states_used(const rm_update *u) { return u->momentum != 0; }

static void measure(const rm_update *u, int64_t n, const float *parameter, const float *gradient, float *const *state,
                    double sum[RM_MAX_OPTIMIZER_SUMS]) {
    (void)state;
    if (!u->adapt) return;
    sum[WEIGHTS] += rm_sum_of_squares(parameter, n, u->threads);
    sum[GRADIENT] += rm_sum_of_squares(gradient, n, u->threads);
}

/* Norms that are not numbers pass through: no comparison hides them. */
static double trust(const rm_update *u) {
    double w = sqrt(u->sum[WEIGHTS]), g = sqrt(u->sum[GRADIENT]) * u->gradient_scale;
    if (!u->adapt || w == 0 || g == 0) return 1;
    return u->trust_coefficient * w / (g + u->weight_decay * w + u->epsilon);
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    float scale = (float)u->gradient_scale, rate = (float)(u->lr * trust(u));
    float decay = u->adapt || u->decay_vectors ? (float)u->weight_decay : 0;
    float momentum = (float)u->momentum, carried = (float)(u->momentum * u->momentum_factor);
    float *velocity = u->momentum != 0 ? state[0] : NULL;
    RM_PARALLEL_FOR(
        u->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) {
            float step = rate * (gradient[i] * scale + decay * parameter[i]), v = -step;
            if (velocity) {
                velocity[i] = carried * velocity[i] - step;
                v = u->nesterov ? momentum * velocity[i] - step : velocity[i];
            }
            parameter[i] += v;
        });
}

const rm_optimizer rm_optimizer_lars = {
    .name = "lars",
    .doc = "trust = c |p| / (|g| + weight_decay |p| + epsilon), 1 where a norm is 0 (You et al. 2017, MLPerf's form);  "
           "s = lr trust (g + weight_decay p);  v = momentum v - s;  p += v,  or momentum v - s: Nesterov's",
    .n_state = 1,
    .state_name = {"momentum_buffer"},
    .states_used = states_used,
    .measure = measure,
    .update = update,
};

/* lars.c: layer-wise adaptive rate scaling (You, Gitman & Ginsburg, arXiv:1708.03888), in the form of MLPerf's
 * reference for ResNet-50: the learning rate is INSIDE the velocity. In sgd.c it is outside, so only lars needs
 * momentum correction (Goyal et al., arXiv:1706.02677, section 3): a velocity that contains lr * gradient is multiplied
 * by new lr / old lr when the rate changes, which makes it equivalent to the form with the rate outside. lamb.c is the
 * counterpart for Adam.
 *
 * Both norms are of whole arrays, even if a rank updates only a part of one (rm_optimizer.measure). Arrays that are not
 * adapted have trust 1. Epsilon may be 0: if a norm is 0, trust is 1. */
#include "ops/optimizers/optimizer_steps.h"
#include "ops/shape.h"

static int states_used(const rm_update *u) { return u->momentum != 0; }

static void measure(const rm_update *u, int64_t n, const float *parameter, const float *gradient, float *const *state,
                    double sum[RM_MAX_OPTIMIZER_SUMS]) {
    (void)state;
    if (!u->adapt) return;
    sum[RM_LARS_WEIGHTS] += rm_sum_of_squares(parameter, n, u->threads);
    sum[RM_LARS_GRADIENT] += rm_sum_of_squares(gradient, n, u->threads);
}

static void span(rm_lars l, int64_t from, int64_t to, float *parameter, const float *gradient, float *velocity) {
    for (int64_t i = from; i < to; i++) rm_lars_step(&l, &parameter[i], gradient[i], velocity ? &velocity[i] : NULL);
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    rm_lars l = rm_lars_of(u);
    float *velocity = u->momentum != 0 ? state[0] : NULL;
    RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(l, from, to, parameter, gradient, velocity););
}

const rm_optimizer rm_optimizer_lars = {
    .name = "lars",
    .settings = "momentum nesterov epsilon trust_coefficient momentum_correction adapt_vectors decay_vectors",
    .doc = "trust = c |p| / (|g| + weight_decay |p| + epsilon), 1 where a norm is 0 (You et al. 2017, MLPerf's form);  "
           "s = lr trust (g + weight_decay p);  v = momentum v - s;  p += v,  or momentum v - s: Nesterov's",
    .n_state = 1,
    .state_name = {"momentum_buffer"},
    .states_used = states_used,
    .measure = measure,
    .update = update,
    .measure_cuda = RM_CUDA_OPTIMIZER(lars, measure),
    .update_cuda = RM_CUDA_OPTIMIZER(lars, update),
};

/* adam.c: Adam (Kingma & Ba, ICLR 2015). Weight decay is an L2 penalty that enters the moments; adamw.c has decoupled
 * decay. */
#include "ops/optimizers/optimizer_steps.h"
#include "ops/shape.h"

static int states_used(const rm_update *u) {
    (void)u;
    return 2;
}

static void span(rm_adam a, int64_t from, int64_t to, float *parameter, const float *gradient, float *mean,
                 float *square) {
    for (int64_t i = from; i < to; i++) rm_adam_step(&a, &parameter[i], gradient[i], &mean[i], &square[i]);
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    rm_adam a = rm_adam_of(u, true);
    RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(a, from, to, parameter, gradient, state[0], state[1]););
}

const rm_optimizer rm_optimizer_adam = {
    .name = "adam",
    .settings = "beta1 beta2 epsilon clip_grad_value",
    .doc = "m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + epsilon)",
    .n_state = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .states_used = states_used,
    .update = update,
    .update_cuda = RM_CUDA_OPTIMIZER(adam, update),
};

/* adamw.c: Adam with decoupled weight decay (Loshchilov & Hutter, ICLR 2019): parameters shrink by a factor of
 * 1 - lr weight_decay before the step, and the decay does not enter the moments. adam.c has the L2 penalty. */
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
    rm_adam a = rm_adam_of(u, false);
    RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(a, from, to, parameter, gradient, state[0], state[1]););
}

const rm_optimizer rm_optimizer_adamw = {
    .name = "adamw",
    .settings = "beta1 beta2 epsilon clip_grad_value",
    .doc = "p *= 1 - lr weight_decay, then Adam's step",
    .n_state = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .states_used = states_used,
    .update = update,
    .update_cuda = RM_CUDA_OPTIMIZER(adamw, update),
};

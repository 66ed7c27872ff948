/* adamw.c: Adam with decoupled weight decay (Loshchilov & Hutter, ICLR 2019): parameters shrink by lr weight_decay
 * before the step, and the moments never see it. The L2 form is adam.c. */
#include "ops/adam_step.h"

static int states_used(const rm_update *u) {
    (void)u;
    return 2;
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    rm_adam_step(u, false, n, parameter, gradient, state);
}

const rm_optimizer rm_optimizer_adamw = {
    .name = "adamw",
    .doc = "p *= 1 - lr weight_decay, then Adam's step",
    .n_state = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .states_used = states_used,
    .update = update,
};

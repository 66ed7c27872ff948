/* adam.c: Adam (Kingma & Ba, ICLR 2015); weight decay, if any, is an L2 penalty: it goes through the moments. Decoupled
 * decay is adamw.c. */
#include "ops/adam_step.h"

static int states_used(const rm_update *u) {
    (void)u;
    return 2;
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    rm_adam_step(u, true, n, parameter, gradient, state);
}

const rm_optimizer rm_optimizer_adam = {
    .name = "adam",
    .doc = "m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + epsilon)",
    .n_state = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .states_used = states_used,
    .update = update,
};

/* sgd.c: stochastic gradient descent with momentum, as torch.optim.SGD computes it (dampening 0). */
#include "ops/shape.h"
#include "ops/optimizer.h"

static int states_used(const rm_update *u) { return u->momentum != 0; }

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    float scale = (float)u->gradient_scale, decay = (float)u->weight_decay, momentum = (float)u->momentum;
    float rate = -(float)u->lr;
    float *buffer = u->momentum != 0 ? state[0] : NULL;
    bool first = u->step == 1;
    RM_PARALLEL_FOR(
        u->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) {
            float g = gradient[i] * scale;
            if (decay != 0) g += decay * parameter[i];
            if (buffer) {
                buffer[i] = first ? g : momentum * buffer[i] + g;
                g = u->nesterov ? g + momentum * buffer[i] : buffer[i];
            }
            parameter[i] += rate * g;
        });
}

const rm_optimizer rm_optimizer_sgd = {
    .name = "sgd",
    .doc = "g += weight_decay p;  b = momentum b + g (b = g at first);  p -= lr b,  or lr (g + momentum b): Nesterov's",
    .n_state = 1,
    .state_name = {"momentum_buffer"},
    .states_used = states_used,
    .update = update,
};

/* sgd.c: stochastic gradient descent with momentum, as in torch.optim.SGD (dampening 0). */
#include "ops/optimizers/optimizer_steps.h"
#include "ops/shape.h"

static int states_used(const rm_update *u) { return u->momentum != 0; }

static void span(rm_sgd s, int64_t from, int64_t to, float *parameter, const float *gradient, float *buffer) {
    for (int64_t i = from; i < to; i++) rm_sgd_step(&s, &parameter[i], gradient[i], buffer ? &buffer[i] : NULL);
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    rm_sgd s = rm_sgd_of(u);
    float *buffer = u->momentum != 0 ? state[0] : NULL;
    RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(s, from, to, parameter, gradient, buffer););
}

const rm_optimizer rm_optimizer_sgd = {
    .name = "sgd",
    .settings = "momentum nesterov clip_grad_value",
    .doc = "g += weight_decay p;  b = momentum b + g (b = g at first);  p -= lr b,  or lr (g + momentum b): Nesterov's",
    .n_state = 1,
    .state_name = {"momentum_buffer"},
    .states_used = states_used,
    .update = update,
    .update_cuda = RM_CUDA_OPTIMIZER(sgd, update),
};

/* rmsprop.c: RMSprop (Tieleman & Hinton, 2012), as in torch.optim.RMSprop (not centered). */
#include "ops/optimizers/optimizer_steps.h"
#include "ops/shape.h"

static int states_used(const rm_update *u) { return 1 + (u->momentum != 0); }

static void span(rm_rmsprop r, int64_t from, int64_t to, float *parameter, const float *gradient, float *square,
                 float *buffer) {
    for (int64_t i = from; i < to; i++)
        rm_rmsprop_step(&r, &parameter[i], gradient[i], &square[i], buffer ? &buffer[i] : NULL);
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    rm_rmsprop r = rm_rmsprop_of(u);
    float *buffer = u->momentum != 0 ? state[1] : NULL;
    RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(r, from, to, parameter, gradient, state[0], buffer););
}

const rm_optimizer rm_optimizer_rmsprop = {
    .name = "rmsprop",
    .settings = "momentum alpha epsilon clip_grad_value",
    .doc = "g += weight_decay p;  v = a v + (1-a) g^2;  b = momentum b + g / (sqrt(v) + epsilon);  p -= lr b",
    .n_state = 2,
    .state_name = {"square_avg", "momentum_buffer"},
    .states_used = states_used,
    .update = update,
    .update_cuda = RM_CUDA_OPTIMIZER(rmsprop, update),
};

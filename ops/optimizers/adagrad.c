/* adagrad.c: Adagrad (Duchi, Hazan & Singer, JMLR 2011), as in torch.optim.Adagrad but without lr_decay; use a learning
 * rate schedule for that. */
#include "ops/optimizers/optimizer_steps.h"
#include "ops/shape.h"

static int states_used(const rm_update *u) {
    (void)u;
    return 1;
}

static void span(rm_adagrad a, int64_t from, int64_t to, float *parameter, const float *gradient, float *sum) {
    for (int64_t i = from; i < to; i++) rm_adagrad_step(&a, &parameter[i], gradient[i], &sum[i]);
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    rm_adagrad a = rm_adagrad_of(u);
    RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(a, from, to, parameter, gradient, state[0]););
}

const rm_optimizer rm_optimizer_adagrad = {
    .name = "adagrad",
    .settings = "epsilon clip_grad_value",
    .doc = "g += weight_decay p;  s += g^2;  p -= lr g / (sqrt(s) + epsilon)",
    .n_state = 1,
    .state_name = {"sum"},
    .states_used = states_used,
    .update = update,
    .update_cuda = RM_CUDA_OPTIMIZER(adagrad, update),
};

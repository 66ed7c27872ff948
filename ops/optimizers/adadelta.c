/* adadelta.c: Adadelta (Zeiler, 2012), as in torch.optim.Adadelta, whose rho is alpha here. */
#include "ops/optimizers/optimizer_steps.h"
#include "ops/shape.h"

static int states_used(const rm_update *u) {
    (void)u;
    return 2;
}

static void span(rm_adadelta a, int64_t from, int64_t to, float *parameter, const float *gradient, float *square,
                 float *moved) {
    for (int64_t i = from; i < to; i++) rm_adadelta_step(&a, &parameter[i], gradient[i], &square[i], &moved[i]);
}

static void update(const rm_update *u, int64_t n, float *parameter, const float *gradient, float *const *state) {
    rm_adadelta a = rm_adadelta_of(u);
    RM_PARALLEL_SPANS(u->threads, n > RM_PARALLEL_MIN, n, span(a, from, to, parameter, gradient, state[0], state[1]););
}

const rm_optimizer rm_optimizer_adadelta = {
    .name = "adadelta",
    .settings = "alpha epsilon clip_grad_value",
    .doc = "g += weight_decay p;  v = a v + (1-a) g^2;  d = sqrt(u + epsilon) / sqrt(v + epsilon) g;  "
           "u = a u + (1-a) d^2;  p -= lr d",
    .n_state = 2,
    .state_name = {"square_avg", "acc_delta"},
    .states_used = states_used,
    .update = update,
    .update_cuda = RM_CUDA_OPTIMIZER(adadelta, update),
};

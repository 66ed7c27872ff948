/* adagrad.cu: the CUDA kernel of the optimizer `adagrad` (adagrad.c). */
#include "ops/optimizers/optimizer.cuh"

static __global__ void step(int64_t n, rm_adagrad a, float *parameter, const float *gradient, float *sum) {
    rm_each_update(n, parameter, gradient, sum, NULL,
                   [&](float *p, float g, float *s, float *) { rm_adagrad_step(&a, p, g, s); });
}

void rm_adagrad_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                            const float *gradient, float *const *state) {
    RM_LAUNCH_FOURS(step, n, queue, n, rm_adagrad_of(u), parameter, gradient, state[0]);
}

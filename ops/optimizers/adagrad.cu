/* adagrad.cu: the CUDA kernel of the optimizer `adagrad` (adagrad.c). */
#include "ops/cuda/kernel.cuh"

#include "ops/optimizers/optimizer_steps.h"

static __global__ void step(int64_t n, rm_adagrad a, float *parameter, const float *gradient, float *sum) {
    RM_EACH(i, n) rm_adagrad_step(&a, &parameter[i], gradient[i], &sum[i]);
}

void rm_adagrad_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                            const float *gradient, float *const *state) {
    RM_LAUNCH_EACH(step, n, queue, n, rm_adagrad_of(u), parameter, gradient, state[0]);
}

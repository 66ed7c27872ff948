/* adamw.cu: the CUDA kernel of the optimizer `adamw` (adamw.c). */
#include "ops/cuda/kernel.cuh"

#include "ops/optimizers/optimizer_steps.h"

static __global__ void step(int64_t n, rm_adam a, float *parameter, const float *gradient, float *mean, float *square) {
    RM_EACH(i, n) rm_adam_step(&a, &parameter[i], gradient[i], &mean[i], &square[i]);
}

void rm_adamw_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                          const float *gradient, float *const *state) {
    rm_adam a = rm_adam_of(u, false);
    RM_LAUNCH_EACH(step, n, queue, n, a, parameter, gradient, state[0], state[1]);
}

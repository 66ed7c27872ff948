/* adadelta.cu: the CUDA kernel of the optimizer `adadelta` (adadelta.c). */
#include "ops/cuda/kernel.cuh"

#include "ops/optimizers/optimizer_steps.h"

static __global__ void step(int64_t n, rm_adadelta a, float *parameter, const float *gradient, float *square,
                            float *moved) {
    RM_EACH(i, n) rm_adadelta_step(&a, &parameter[i], gradient[i], &square[i], &moved[i]);
}

void rm_adadelta_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                             const float *gradient, float *const *state) {
    RM_LAUNCH_EACH(step, n, queue, n, rm_adadelta_of(u), parameter, gradient, state[0], state[1]);
}

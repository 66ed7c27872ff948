/* rmsprop.cu: the CUDA kernel of the optimizer `rmsprop` (rmsprop.c). */
#include "ops/cuda/kernel.cuh"

#include "ops/optimizers/optimizer_steps.h"

static __global__ void step(int64_t n, rm_rmsprop r, float *parameter, const float *gradient, float *square,
                            float *buffer) {
    RM_EACH(i, n) rm_rmsprop_step(&r, &parameter[i], gradient[i], &square[i], buffer ? &buffer[i] : NULL);
}

void rm_rmsprop_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                            const float *gradient, float *const *state) {
    float *buffer = u->momentum != 0 ? state[1] : NULL;
    RM_LAUNCH_EACH(step, n, queue, n, rm_rmsprop_of(u), parameter, gradient, state[0], buffer);
}

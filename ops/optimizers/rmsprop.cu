/* rmsprop.cu: the CUDA kernel of the optimizer `rmsprop` (rmsprop.c). */
#include "ops/optimizers/optimizer.cuh"

static __global__ void step(int64_t n, rm_rmsprop r, float *parameter, const float *gradient, float *square,
                            float *buffer) {
    rm_each_update(n, parameter, gradient, square, buffer,
                   [&](float *p, float g, float *s, float *b) { rm_rmsprop_step(&r, p, g, s, buffer ? b : NULL); });
}

void rm_rmsprop_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                            const float *gradient, float *const *state) {
    float *buffer = u->momentum != 0 ? state[1] : NULL;
    RM_LAUNCH_FOURS(step, n, queue, n, rm_rmsprop_of(u), parameter, gradient, state[0], buffer);
}

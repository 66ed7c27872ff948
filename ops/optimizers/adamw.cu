/* adamw.cu: the CUDA kernel of the optimizer `adamw` (adamw.c). */
#include "ops/optimizers/optimizer.cuh"

static __global__ void step(int64_t n, rm_adam a, float *parameter, const float *gradient, float *mean, float *square) {
    rm_each_update(n, parameter, gradient, mean, square,
                   [&](float *p, float g, float *m, float *s) { rm_adam_step(&a, p, g, m, s); });
}

void rm_adamw_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                          const float *gradient, float *const *state) {
    rm_adam a = rm_adam_of(u, false);
    RM_LAUNCH_FOURS(step, n, queue, n, a, parameter, gradient, state[0], state[1]);
}

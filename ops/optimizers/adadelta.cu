/* adadelta.cu: the CUDA kernel of the optimizer `adadelta` (adadelta.c). */
#include "ops/optimizers/optimizer.cuh"

static __global__ void step(int64_t n, rm_adadelta a, float *parameter, const float *gradient, float *square,
                            float *moved) {
    rm_each_update(n, parameter, gradient, square, moved,
                   [&](float *p, float g, float *s, float *m) { rm_adadelta_step(&a, p, g, s, m); });
}

void rm_adadelta_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                             const float *gradient, float *const *state) {
    RM_LAUNCH_FOURS(step, n, queue, n, rm_adadelta_of(u), parameter, gradient, state[0], state[1]);
}

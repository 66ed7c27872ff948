/* sgd.cu: the CUDA kernel of the optimizer `sgd` (sgd.c). */
#include "ops/optimizers/optimizer.cuh"

static __global__ void step(int64_t n, rm_sgd s, float *parameter, const float *gradient, float *buffer) {
    rm_each_update(n, parameter, gradient, buffer, NULL,
                   [&](float *p, float g, float *b, float *) { rm_sgd_step(&s, p, g, buffer ? b : NULL); });
}

void rm_sgd_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                        const float *gradient, float *const *state) {
    float *buffer = u->momentum != 0 ? state[0] : NULL;
    RM_LAUNCH_FOURS(step, n, queue, n, rm_sgd_of(u), parameter, gradient, buffer);
}

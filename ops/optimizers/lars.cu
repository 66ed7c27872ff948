/* lars.cu: the CUDA kernel of the optimizer `lars` (lars.c), and its norms. */
#include "ops/optimizers/optimizer.cuh"

static __global__ void step(int64_t n, rm_lars l, float *parameter, const float *gradient, float *velocity) {
    rm_each_update(n, parameter, gradient, velocity, NULL,
                   [&](float *p, float g, float *v, float *) { rm_lars_step(&l, p, g, velocity ? v : NULL); });
}

void rm_lars_measure_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, const float *parameter,
                          const float *gradient, float *const *state, double *sum) {
    (void)state;
    int64_t adapted = u->adapt ? n : 0; /* the sums of 0 elements are 0 */
    rm_sum_of_squares_cuda(queue, parameter, adapted, &sum[RM_LARS_WEIGHTS]);
    rm_sum_of_squares_cuda(queue, gradient, adapted, &sum[RM_LARS_GRADIENT]);
}

void rm_lars_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                         const float *gradient, float *const *state) {
    rm_lars l = rm_lars_of(u);
    float *velocity = u->momentum != 0 ? state[0] : NULL;
    RM_LAUNCH_FOURS(step, n, queue, n, l, parameter, gradient, velocity);
}

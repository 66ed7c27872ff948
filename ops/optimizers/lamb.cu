/* lamb.cu: the CUDA kernels of the optimizer `lamb` (lamb.c): moments and norms, then the step. */
#include "ops/cuda/reduce.cuh"

#include "ops/optimizers/optimizer_steps.h"

/* partial[block]: its share of |d|^2, or 0 if the array is not adapted. */
static __global__ void moments(int64_t n, rm_lamb l, bool adapt, const float *parameter, const float *gradient,
                               float *mean, float *square, double *partial) {
    double sum = 0;
    RM_EACH(i, n) {
        rm_lamb_moments(&l, gradient[i], &mean[i], &square[i]);
        double d = adapt ? rm_lamb_direction(&l, parameter[i], mean[i], square[i]) : 0;
        sum += d * d;
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void step(int64_t n, rm_lamb l, float *parameter, const float *mean, const float *square) {
    RM_EACH(i, n) parameter[i] -= l.rate * rm_lamb_direction(&l, parameter[i], mean[i], square[i]);
}

void rm_lamb_measure_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, const float *parameter,
                          const float *gradient, float *const *state, double *sum) {
    rm_lamb l = rm_lamb_of(u);
    int64_t blocks = rm_blocks_within(n, 4096, RM_CUDA_PARTIALS);
    RM_LAUNCH_TOGETHER(moments, blocks, RM_SUM_THREADS, queue, n, l, u->adapt, parameter, gradient, state[0], state[1],
                       queue->partial);
    RM_LAUNCH_TOGETHER(rm_add_partials, 1, RM_SUM_THREADS, queue, queue->partial, blocks, 1.0, &sum[RM_LAMB_DIRECTION]);
    rm_sum_of_squares_cuda(queue, parameter, u->adapt ? n : 0, &sum[RM_LAMB_WEIGHTS]);
}

void rm_lamb_update_cuda(const rm_cuda_queue *queue, const rm_update *u, int64_t n, float *parameter,
                         const float *gradient, float *const *state) {
    (void)gradient; /* it is already in the moments */
    rm_lamb l = rm_lamb_of(u);
    RM_LAUNCH_EACH(step, n, queue, n, l, parameter, state[0], state[1]);
}

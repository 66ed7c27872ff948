/* lamb.cu: the CUDA kernels of the optimizer `lamb` (lamb.c): moments and norms, then the step. */
#include "ops/optimizers/optimizer.cuh"

/* partial[block]: its share of |d|^2, or 0 if the array is not adapted. */
static __global__ void moments(int64_t n, rm_lamb l, bool adapt, const float *parameter, const float *gradient,
                               float *mean, float *square, double *partial) {
    double sum = 0;
    RM_EACH_FOUR(i, n) {
        const int64_t left = n - i;
        const rm_four g = rm_load_four(gradient + i, left), p = adapt ? rm_load_four(parameter + i, left) : rm_four{};
        rm_four m = rm_load_four(mean + i, left), s = rm_load_four(square + i, left);
        RM_UNROLL for (int k = 0; k < 4; k++) {
            rm_lamb_moments(&l, g.v[k], &m.v[k], &s.v[k]);
            double d = adapt && k < left ? rm_lamb_direction(&l, p.v[k], m.v[k], s.v[k]) : 0;
            sum += d * d;
        }
        rm_store_four(mean + i, left, m), rm_store_four(square + i, left, s);
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void step(int64_t n, rm_lamb l, float *parameter, const float *mean, const float *square) {
    RM_EACH_FOUR(i, n) {
        const int64_t left = n - i;
        const rm_four m = rm_load_four(mean + i, left), s = rm_load_four(square + i, left);
        rm_four p = rm_load_four(parameter + i, left);
        RM_UNROLL for (int k = 0; k < 4; k++) p.v[k] -= l.rate * rm_lamb_direction(&l, p.v[k], m.v[k], s.v[k]);
        rm_store_four(parameter + i, left, p);
    }
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
    RM_LAUNCH_FOURS(step, n, queue, n, l, parameter, state[0], state[1]);
}

/* norm.cu: rm_sum_of_squares (norm.c) on CUDA, for the norm of the gradients and for lars and lamb. */
#include "ops/cuda/fours.cuh"

static __global__ void squares(int64_t n, const float *x, double *partial) {
    double sum = 0;
    RM_EACH_FOUR(i, n) {
        const rm_four four = rm_load_four(x + i, n - i);
        RM_UNROLL for (int k = 0; k < 4; k++) sum += (double)four.v[k] * (double)four.v[k];
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

int rm_kernels_error_cuda(void) { return RM_KERNEL_ERROR(squares); }

void rm_sum_of_squares_cuda(const rm_cuda_queue *queue, const float *x, int64_t n, double *sum) {
    int64_t blocks = rm_blocks_within(n, 4096, RM_CUDA_PARTIALS);
    RM_LAUNCH_TOGETHER(squares, blocks, RM_SUM_THREADS, queue, n, x, queue->partial);
    RM_LAUNCH_TOGETHER(rm_add_partials, 1, RM_SUM_THREADS, queue, queue->partial, blocks, 1.0, sum);
}

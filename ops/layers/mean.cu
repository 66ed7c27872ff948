/* mean.cu: the CUDA kernels of the op `mean` (mean.c): a block sums a row. */
#include "ops/cuda/reduce.cuh"

static __global__ void average(int64_t n, const float *x, float *y) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = (float)(sum / (double)n);
}

static __global__ void spread(int64_t count, int64_t n, const float *dy, float *dx) {
    RM_EACH(i, count) dx[i] = dy[rm_row_of(i, n)] / (float)n;
}

void rm_mean_forward_cuda(const remat_call *call) {
    int64_t rows = rm_desc_count(&call->y.desc), n = rm_desc_count(&call->x[0].desc) / rows;
    RM_LAUNCH_TOGETHER(average, rows, RM_SUM_THREADS, call->queue, n, (const float *)call->x[0].data,
                       (float *)call->y.data);
}

void rm_mean_backward_cuda(const remat_call *call) {
    int64_t count = rm_desc_count(&call->x[0].desc), n = count / rm_desc_count(&call->dy.desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(spread, count, call->queue, count, n, (const float *)call->dy.data, (float *)call->dx[0].data);
}

/* mean.cu: the CUDA kernels of the op `mean` (mean.c): a block sums a row. */
#include "ops/cuda/fours.cuh"

static __global__ void average(int64_t n, double by, const float *x, float *y) {
    double sum = 0;
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * RM_SUM_THREADS) {
        const rm_four four = rm_load_four(x + blockIdx.x * n + i, n - i);
        RM_UNROLL for (int k = 0; k < 4; k++) sum += four.v[k];
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = (float)(sum / by);
}

static __global__ void spread(int64_t count, int64_t n, float by, const float *dy, float *dx) {
    RM_EACH_FOUR(i, count) {
        rm_four four = {};
        int64_t row = rm_row_of(i, n), rest = i - row * n;
        RM_UNROLL for (int k = 0; k < 4; k++) {
            if (i + k < count) four.v[k] = dy[row] / by;
            if (++rest == n) rest = 0, row++;
        }
        rm_store_four(dx + i, count - i, four);
    }
}

static double divisor(const remat_call *call, int64_t n) {
    return ((const rm_mean_attr *)call->attr)->sum ? 1 : (double)n;
}

void rm_mean_forward_cuda(const remat_call *call) {
    int64_t rows = rm_desc_count(&call->y.desc), n = rm_desc_count(&call->x[0].desc) / rows;
    RM_LAUNCH_TOGETHER(average, rows, RM_SUM_THREADS, call->queue, n, divisor(call, n), (const float *)call->x[0].data,
                       (float *)call->y.data);
}

void rm_mean_backward_cuda(const remat_call *call) {
    int64_t count = rm_desc_count(&call->x[0].desc), n = count / rm_desc_count(&call->dy.desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_FOURS(spread, count, call->queue, count, n, (float)divisor(call, n), (const float *)call->dy.data,
                    (float *)call->dx[0].data);
}

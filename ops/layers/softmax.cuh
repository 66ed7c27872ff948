/* softmax.cuh: CUDA kernels shared by softmax.cu and log_softmax.cu, a block per row. LOGARITHM selects log-softmax. */
#include "ops/cuda/reduce.cuh"

/* The maximum over the block, valid in all threads. Call it once per kernel. */
static __device__ inline float largest_for_all(float x) {
    __shared__ float of_warp[32], largest;
    x = rm_warp_largest(x);
    if (threadIdx.x % RM_WARP == 0) of_warp[threadIdx.x / RM_WARP] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned w = 1; w < blockDim.x / RM_WARP; w++) x = of_warp[w] > x ? of_warp[w] : x;
        largest = x;
    }
    __syncthreads();
    return largest;
}

static __global__ void make_rows(int64_t c, const float *x, float *y) {
    const float *row = x + blockIdx.x * c;
    float largest = row[0];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < c; i += blockDim.x) largest = row[i] > largest ? row[i] : largest;
    largest = largest_for_all(largest);
    for (int64_t i = threadIdx.x; i < c; i += blockDim.x) sum += expf(row[i] - largest);
    sum = rm_block_sum_for_all(sum);
    const float log_sum = LOGARITHM ? (float)log(sum) : 0;
    for (int64_t i = threadIdx.x; i < c; i += blockDim.x)
        y[blockIdx.x * c + i] = LOGARITHM ? row[i] - largest - log_sum : (float)(expf(row[i] - largest) / sum);
}

/* dx = y (dy - sum of dy y); log-softmax: dy - e^y sum of dy */
static __global__ void slope_rows(int64_t c, const float *all_y, const float *all_dy, float *dx) {
    const float *y = all_y + blockIdx.x * c, *dy = all_dy + blockIdx.x * c;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < c; i += blockDim.x) sum += LOGARITHM ? dy[i] : (double)dy[i] * (double)y[i];
    const float s = (float)rm_block_sum_for_all(sum);
    for (int64_t i = threadIdx.x; i < c; i += blockDim.x)
        dx[blockIdx.x * c + i] = LOGARITHM ? dy[i] - expf(y[i]) * s : y[i] * (dy[i] - s);
}

static void launch_forward(const remat_call *call) {
    RM_LAUNCH_TOGETHER(make_rows, rm_desc_rows(&call->y.desc), RM_SUM_THREADS, call->queue, rm_desc_last(&call->y.desc),
                       (const float *)call->x[0].data, (float *)call->y.data);
}

static void launch_backward(const remat_call *call) {
    if (!call->dx[0].data) return;
    RM_LAUNCH_TOGETHER(slope_rows, rm_desc_rows(&call->dy.desc), RM_SUM_THREADS, call->queue, rm_desc_last(&call->dy.desc),
                       (const float *)call->y.data, (const float *)call->dy.data, (float *)call->dx[0].data);
}

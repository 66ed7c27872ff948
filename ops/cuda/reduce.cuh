/* reduce.cuh: sums over the threads of a warp, of a block, and over the blocks of a launch, each in a fixed order,
 * without atomics. For kernels launched with RM_LAUNCH_TOGETHER, in blocks of whole warps. */
#ifndef RM_REDUCE_CUH
#define RM_REDUCE_CUH

#include "ops/cuda/kernel.cuh"

enum { RM_WARP = 32, RM_SUM_THREADS = 256 };

/* Every lane gets the same bits: in each round two lanes add the same two numbers, and a + b equals b + a. */
template <typename T> static __device__ T rm_warp_sum(T x) {
    for (int apart = RM_WARP / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

/* The maximum; a NaN that all lanes hold is kept. */
static __device__ inline float rm_warp_largest(float x) {
    for (int apart = RM_WARP / 2; apart > 0; apart /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, x, apart);
        x = other > x ? other : x;
    }
    return x;
}

/* The sum over all threads of the block, valid in thread 0. Warps are added in order. */
template <typename T> static __device__ T rm_block_sum(T x) {
    __shared__ T of_warp[32];
    T sum = 0;
    x = rm_warp_sum(x);
    if (threadIdx.x % RM_WARP == 0) of_warp[threadIdx.x / RM_WARP] = x;
    __syncthreads();
    if (threadIdx.x == 0)
        for (unsigned w = 0; w < blockDim.x / RM_WARP; w++) sum += of_warp[w];
    __syncthreads(); /* of_warp may be used again */
    return sum;
}

/* The same sum, valid in all threads. */
static __device__ inline double rm_block_sum_for_all(double x) {
    __shared__ double sum;
    x = rm_block_sum(x);
    if (threadIdx.x == 0) sum = x;
    __syncthreads();
    x = sum;
    __syncthreads(); /* it may be used again */
    return x;
}

/* *out = (sum of n partial sums) / divisor; one block. */
template <typename T> static __global__ void rm_add_partials(const double *partial, int64_t n, double divisor, T *out) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += partial[i];
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) *out = (T)(sum / divisor);
}

#endif

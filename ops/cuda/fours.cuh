/* fours.cuh: floats read and written four at a time, and rows that are read from memory once. A load or store is one
 * instruction of 16 bytes where the address is a multiple of 16, and up to four of 4 bytes elsewhere. Which thread has
 * which elements, and so the order of a sum, never depends on addresses. */
#ifndef RM_FOURS_CUH
#define RM_FOURS_CUH

#include "ops/cuda/reduce.cuh"

#ifdef RM_CUDA_EMULATED
#define RM_UNROLL
#else
#define RM_UNROLL _Pragma("unroll")
#endif

struct alignas(16) rm_four {
    float v[4];
};

/* x[0..4), of which `left` exist; the others are 0. */
static __device__ inline rm_four rm_load_four(const float *x, int64_t left) {
    if (left >= 4 && (uintptr_t)x % sizeof(rm_four) == 0) return *(const rm_four *)x;
    rm_four four = {};
    RM_UNROLL for (int k = 0; k < 4; k++) if (k < left) four.v[k] = x[k];
    return four;
}

/* Of a plain store nvcc sometimes makes four of 4 bytes. */
static __device__ inline void rm_store_sixteen(float *x, const rm_four &four) {
#ifdef RM_CUDA_EMULATED
    *(rm_four *)x = four;
#else
    __stwb((float4 *)x, make_float4(four.v[0], four.v[1], four.v[2], four.v[3]));
#endif
}

static __device__ inline void rm_store_four(float *x, int64_t left, const rm_four &four) {
    if (left >= 4 && (uintptr_t)x % sizeof(rm_four) == 0) {
        rm_store_sixteen(x, four);
        return;
    }
    RM_UNROLL for (int k = 0; k < 4; k++) if (k < left) x[k] = four.v[k];
}

/* ---- Elements ------------------------------------------------------------------------------------------------------ */

/* i: the first of a thread's four elements, at a time. */
#define RM_EACH_FOUR(i, n)                                                                                             \
    for (int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x); i < (n);                                    \
         i += 4 * (int64_t)gridDim.x * blockDim.x)

/* The kernel's loop is RM_EACH_FOUR(i, n). */
#define RM_LAUNCH_FOURS(kernel, n, queue, ...)                                                                         \
    RM_LAUNCH(kernel, rm_blocks_within(n, 4 * RM_EACH_THREADS, RM_EACH_BLOCKS), RM_EACH_THREADS, queue, __VA_ARGS__)

/* out[i] = f(i, in[i]) and out[i] = f(i, a[i], b[i]) */
template <typename F> static __device__ inline void rm_map(int64_t n, const float *in, float *out, F f) {
    RM_EACH_FOUR(i, n) {
        rm_four x = rm_load_four(in + i, n - i);
        RM_UNROLL for (int k = 0; k < 4; k++) x.v[k] = i + k < n ? f(i + k, x.v[k]) : 0;
        rm_store_four(out + i, n - i, x);
    }
}

template <typename F>
static __device__ inline void rm_map_two(int64_t n, const float *a, const float *b, float *out, F f) {
    RM_EACH_FOUR(i, n) {
        rm_four x = rm_load_four(a + i, n - i), y = rm_load_four(b + i, n - i);
        RM_UNROLL for (int k = 0; k < 4; k++) x.v[k] = i + k < n ? f(i + k, x.v[k], y.v[k]) : 0;
        rm_store_four(out + i, n - i, x);
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------- */

/* W threads handle a row: a warp, or a block. Thread t has the fours t, t + W, t + 2 W, ... A kernel that reads its row
 * several times holds up to HELD fours of a thread in registers; a longer row's rest is read again, mostly from a cache. */
enum { RM_ROW_FOURS = 8, RM_ROW_WARPS = 4 /* rows of a block, if a warp handles a row */, RM_ROW_MOST = 1024 };

/* A row's kernel: without the bound, the largest block could need more registers than a multiprocessor has. */
#define RM_ROW_KERNEL static __global__ void __launch_bounds__(W == RM_WARP ? RM_ROW_WARPS * RM_WARP : W)

template <int HELD> struct rm_held { rm_four at[HELD]; };

/* This thread's row; `rows` or more: none, for a whole warp. */
template <int W> static __device__ inline int64_t rm_row(void) {
    return W == RM_WARP ? (int64_t)blockIdx.x * RM_ROW_WARPS + threadIdx.x / W : blockIdx.x;
}

/* f(i, h) for each of this thread's fours, at i: held at h, or not held if h is HELD. */
template <int W, int HELD, typename F> static __device__ inline void rm_each_four(int64_t n, F f) {
    const int64_t first = 4 * (threadIdx.x % W);
    RM_UNROLL for (int h = 0; h < HELD; h++) if (first + 4 * h * W < n) f(first + 4 * h * W, h);
    for (int64_t i = first + 4 * (int64_t)HELD * W; i < n; i += 4 * W) f(i, HELD);
}

template <int W, int HELD> static __device__ inline rm_held<HELD> rm_hold(const float *x, int64_t n) {
    rm_held<HELD> held = {};
    const int64_t first = 4 * (threadIdx.x % W);
    RM_UNROLL for (int h = 0; h < HELD; h++) if (first + 4 * h * W < n) held.at[h] =
        rm_load_four(x + first + 4 * h * W, n - first - 4 * h * W);
    return held;
}

template <int HELD>
static __device__ inline rm_four rm_four_of(const rm_held<HELD> &held, const float *x, int64_t n, int64_t i, int h) {
    return h < HELD ? held.at[h < HELD ? h : 0] : rm_load_four(x + i, n - i);
}

/* f(i, x[i]) for each of this thread's elements. */
template <int W, int HELD, typename F>
static __device__ inline void rm_each_of_row(const rm_held<HELD> &held, const float *x, int64_t n, F f) {
    rm_each_four<W, HELD>(n, [&](int64_t i, int h) {
        const rm_four four = rm_four_of(held, x, n, i, h);
        RM_UNROLL for (int k = 0; k < 4; k++) if (i + k < n) f(i + k, four.v[k]);
    });
}

/* y[i] = f(i, x[i]); f may be called past the row's end, where i is n at most, and x 0. */
template <int W, int HELD, typename F>
static __device__ inline void rm_map_row(const rm_held<HELD> &held, const float *x, int64_t n, float *y, F f) {
    rm_each_four<W, HELD>(n, [&](int64_t i, int h) {
        rm_four four = rm_four_of(held, x, n, i, h);
        RM_UNROLL for (int k = 0; k < 4; k++) if (i + k < n) four.v[k] = f(i + k, four.v[k]);
        rm_store_four(y + i, n - i, four);
    });
}

/* The sum over a row's threads, valid in all of them. */
template <int W> static __device__ inline double rm_row_sum(double x) {
    return W == RM_WARP ? rm_warp_sum(x) : rm_block_sum_for_all(x);
}

/* The maximum, as rm_warp_largest's. Call it once per kernel. */
template <int W> static __device__ inline float rm_row_largest(float x) {
    __shared__ float of_warp[RM_ROW_MOST / RM_WARP];
    x = rm_warp_largest(x);
    if (W == RM_WARP) return x;
    if (threadIdx.x % RM_WARP == 0) of_warp[threadIdx.x / RM_WARP] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < W / RM_WARP; w++) x = of_warp[w] > x ? of_warp[w] : x;
    return x;
}

/* Launches kernel<32>, kernel<256> or kernel<1024>, by the length of a row alone. */
#define RM_LAUNCH_ROWS(kernel, rows, n, queue, ...)                                                                    \
    do {                                                                                                               \
        const int64_t rm_fours_ = 4 * RM_ROW_FOURS;                                                                    \
        if ((n) <= rm_fours_ * RM_WARP)                                                                                \
            RM_LAUNCH_TOGETHER(kernel<RM_WARP>, rm_blocks_of(rows, RM_ROW_WARPS), RM_ROW_WARPS * RM_WARP, queue,       \
                               __VA_ARGS__);                                                                           \
        else if ((n) <= rm_fours_ * RM_SUM_THREADS)                                                                    \
            RM_LAUNCH_TOGETHER(kernel<RM_SUM_THREADS>, rows, RM_SUM_THREADS, queue, __VA_ARGS__);                      \
        else                                                                                                           \
            RM_LAUNCH_TOGETHER(kernel<RM_ROW_MOST>, rows, RM_ROW_MOST, queue, __VA_ARGS__);                            \
    } while (0)

#endif

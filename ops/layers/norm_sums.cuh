/* norm_sums.cuh: the sums of norm.h, for norm.cuh and rms_norm.cu. */
#ifndef RM_NORM_SUMS_CUH
#define RM_NORM_SUMS_CUH

#include "ops/cuda/channels.cuh"

extern "C" {
#include "ops/layers/norm.h"
}

/* W threads handle a row (fours.cuh), RM_WARP or RM_SUM_THREADS of them, and hold it, another one, and sums. */
template <int W> struct rm_norm_rows {
    enum { HELD = W == RM_WARP ? RM_ROW_FOURS : RM_ROW_FOURS / 2, AT_ONCE = W == RM_WARP ? RM_ROW_WARPS : 1 };
};
static_assert((int)RM_NORM_WARPS == RM_ROW_WARPS &&
                  (int)RM_NORM_WARP_COLUMNS == 4 * rm_norm_rows<RM_WARP>::HELD * RM_WARP &&
                  (int)RM_NORM_COLUMNS == 4 * rm_norm_rows<RM_SUM_THREADS>::HELD * RM_SUM_THREADS,
              "a warp or a block holds a row");

/* Three blocks of 128 threads have to fit into a multiprocessor, or two of 256: they may have 168 or 128 registers in each
 * thread. */
#define RM_NORM_KERNEL static __global__ void __launch_bounds__(rm_norm_rows<W>::AT_ONCE *W, W == RM_WARP ? 3 : 2)

/* Launches kernel<32> or kernel<256>, by the length of a row alone. */
#define RM_LAUNCH_NORM_ROWS(kernel, rows, n, queue, ...)                                                               \
    do {                                                                                                               \
        if ((n) <= RM_NORM_WARP_COLUMNS)                                                                               \
            RM_LAUNCH_TOGETHER(kernel<RM_WARP>, rm_norm_blocks(rows, n), RM_ROW_WARPS *RM_WARP, queue, __VA_ARGS__);   \
        else                                                                                                           \
            RM_LAUNCH_TOGETHER(kernel<RM_SUM_THREADS>, rm_norm_blocks(rows, n), RM_SUM_THREADS, queue, __VA_ARGS__);   \
    } while (0)

/* Every thread's rows, of all blocks. */
#define RM_EACH_NORM_ROW(r, rows)                                                                                      \
    for (int64_t r = rm_row<W>(); r < (rows); r += (int64_t)gridDim.x * rm_norm_rows<W>::AT_ONCE)

/* Columns as in rm_hold<W, HELD>. */
template <int W, int VECTORS> struct rm_norm_sums {
    enum { HELD = rm_norm_rows<W>::HELD };
    rm_held<HELD> of[VECTORS];
    __device__ rm_four &at(int vector, int h) { return of[vector].at[h < HELD ? h : 0]; } /* h is always less */
    __device__ void add(int vector, int h, int k, float value) { at(vector, h).v[k] += value; }
};

/* Stores the block's sums in `partial` (blocks,VECTORS,n). Every thread calls it. */
template <int VECTORS>
static __device__ inline void rm_store_norm_sums(rm_norm_sums<RM_SUM_THREADS, VECTORS> &sums, int64_t n,
                                                 float *partial) {
    for (int v = 0; v < VECTORS; v++)
        rm_each_four<RM_SUM_THREADS, rm_norm_rows<RM_SUM_THREADS>::HELD>(n, [&](int64_t i, int h) {
            rm_store_four(partial + ((int64_t)blockIdx.x * VECTORS + v) * n + i, n - i, sums.at(v, h));
        });
}

/* The same: those of its warps are added in order. */
template <int VECTORS>
static __device__ inline void rm_store_norm_sums(rm_norm_sums<RM_WARP, VECTORS> &sums, int64_t n, float *partial) {
    __shared__ rm_four of_block[VECTORS * RM_NORM_WARP_COLUMNS / 4];
    const int warp = threadIdx.x / RM_WARP, lane = threadIdx.x % RM_WARP;
    for (int w = 0; w < RM_ROW_WARPS; w++) {
        RM_UNROLL for (int i = 0; i < VECTORS * RM_ROW_FOURS; i++) {
            if (warp != w) continue;
            const rm_four &mine = sums.of[i / RM_ROW_FOURS].at[i % RM_ROW_FOURS];
            rm_four all = w ? of_block[i * RM_WARP + lane] : rm_four{};
            RM_UNROLL for (int k = 0; k < 4; k++) all.v[k] += mine.v[k];
            of_block[i * RM_WARP + lane] = all;
        }
        __syncthreads();
    }
    for (int v = 0; v < VECTORS; v++)
        for (int64_t i = 4 * (int64_t)threadIdx.x; i < n; i += 4 * RM_ROW_WARPS * RM_WARP)
            rm_store_four(partial + ((int64_t)blockIdx.x * VECTORS + v) * n + i, n - i,
                          of_block[(v * RM_NORM_WARP_COLUMNS + i) / 4]);
}

/* out (n) += vector `vector` of all blocks; out may be NULL. */
static inline void rm_join_norm_sums(const void *queue, const float *partial, int64_t rows, int64_t n, int vectors,
                                     int vector, float *out) {
    if (out) rm_launch_add_columns(queue, rm_norm_blocks(rows, n), n, vectors * n, partial + vector * n, out);
}

#endif

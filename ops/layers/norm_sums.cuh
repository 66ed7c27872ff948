/* norm_sums.cuh: the sums of norm.h, for norm.cuh and rms_norm.cu. */
#ifndef RM_NORM_SUMS_CUH
#define RM_NORM_SUMS_CUH

#include "ops/cuda/channels.cuh"

extern "C" {
#include "ops/layers/norm.h"
}

static_assert((int)RM_NORM_WARPS == RM_ROW_WARPS && (int)RM_NORM_COLUMNS == 4 * RM_ROW_FOURS * RM_WARP,
              "a warp holds a row");

/* Three blocks have to fit into a multiprocessor: they may have 168 registers in each thread. */
#define RM_NORM_KERNEL static __global__ void __launch_bounds__(RM_ROW_WARPS *RM_WARP, 3)

/* A warp's rows are every (blocks * RM_ROW_WARPS)th one. */
#define RM_EACH_ROW_OF_WARP(r, rows)                                                                                   \
    for (int64_t r = rm_row<RM_WARP>(); r < (rows); r += (int64_t)gridDim.x * RM_ROW_WARPS)

/* Columns as in rm_hold<RM_WARP, RM_ROW_FOURS>. */
template <int VECTORS> struct rm_norm_sums {
    rm_held<RM_ROW_FOURS> of[VECTORS];
    __device__ void add(int vector, int h, int k, float value) {
        of[vector].at[h < RM_ROW_FOURS ? h : 0].v[k] += value; /* h is always less */
    }
};

/* Adds the sums of the block's warps in order, and stores them in `partial` (blocks,VECTORS,n). Every thread calls it. */
template <int VECTORS>
static __device__ inline void rm_store_norm_sums(const rm_norm_sums<VECTORS> &sums, int64_t n, float *partial) {
    __shared__ rm_four of_block[VECTORS * RM_NORM_COLUMNS / 4];
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
                          of_block[(v * RM_NORM_COLUMNS + i) / 4]);
}

/* out (n) += vector `vector` of all blocks; out may be NULL. */
static inline void rm_join_norm_sums(const void *queue, const float *partial, int64_t rows, int64_t n, int vectors,
                                     int vector, float *out) {
    if (out) rm_launch_add_columns(queue, rm_norm_blocks(rows), n, vectors * n, partial + vector * n, out);
}

#endif

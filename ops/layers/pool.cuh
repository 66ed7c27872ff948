/* pool.cuh: windows of 2 x 2 side by side, for max_pool.cu and avg_pool.cu. A thread has two windows, four pixels wide:
 * it reads or writes each pixel once, by 16 bytes where addresses allow it. */
#ifndef RM_POOL_CUH
#define RM_POOL_CUH

#include "ops/cuda/fours.cuh"

extern "C" {
#include "ops/layers/pool.h"
}

static inline bool rm_pool_halves(const rm_pool_shape &s) {
    bool is = true;
    for (int d = 0; d < 2; d++) is = is && s.window[d] == 2 && s.stride[d] == 2 && !s.padding[d];
    return is;
}

/* Two windows: row r of windows, from column `left` of the plane on. A row or column at the plane's end may be in no
 * window. */
typedef struct {
    int64_t plane, r, left;
} rm_pool_pair;

/* Four pixels of two rows. */
typedef struct {
    rm_four row[2];
} rm_pool_pixels;

static inline int64_t rm_pool_pairs(const rm_pool_shape &s) {
    return s.planes * ((s.in[0] + 1) / 2) * ((s.in[1] + 3) / 4);
}

static __device__ inline rm_pool_pair rm_pool_pair_at(const rm_pool_shape &s, int64_t e) {
    const int64_t across = (s.in[1] + 3) / 4, down = (s.in[0] + 1) / 2, row = rm_row_of(e, across);
    const int64_t plane = rm_row_of(row, down);
    return {plane, row - plane * down, 4 * (e - row * across)};
}

static __device__ inline bool rm_pool_has_row(const rm_pool_shape &s, const rm_pool_pair &p, int row) {
    return 2 * p.r + row < s.in[0];
}
static __device__ inline int64_t rm_pool_pixel_of(const rm_pool_shape &s, const rm_pool_pair &p, int row) {
    return (p.plane * s.in[0] + 2 * p.r + row) * s.in[1] + p.left;
}

/* Pixels outside the plane are 0. */
static __device__ inline rm_pool_pixels rm_pool_load(const rm_pool_shape &s, const rm_pool_pair &p, const float *x) {
    rm_pool_pixels pixels = {};
    RM_UNROLL for (int i = 0; i < 2; i++) if (rm_pool_has_row(s, p, i)) pixels.row[i] =
        rm_load_four(x + rm_pool_pixel_of(s, p, i), s.in[1] - p.left);
    return pixels;
}

static __device__ inline void rm_pool_store(const rm_pool_shape &s, const rm_pool_pair &p, float *x,
                                            const rm_pool_pixels &pixels) {
    RM_UNROLL for (int i = 0; i < 2; i++) if (rm_pool_has_row(s, p, i))
        rm_store_four(x + rm_pool_pixel_of(s, p, i), s.in[1] - p.left, pixels.row[i]);
}

/* Pixel k, 0 .. 3, of window 0 or 1, row by row. */
static __device__ inline float &rm_pool_pixel(rm_pool_pixels &pixels, int window, int k) {
    return pixels.row[k / 2].v[2 * window + k % 2];
}
static __device__ inline float rm_pool_pixel(const rm_pool_pixels &pixels, int window, int k) {
    return pixels.row[k / 2].v[2 * window + k % 2];
}

/* The element of y for a window; -1: there is none. */
static __device__ inline int64_t rm_pool_window_of(const rm_pool_shape &s, const rm_pool_pair &p, int window) {
    const int64_t q = p.left / 2 + window;
    return p.r < s.out[0] && q < s.out[1] ? (p.plane * s.out[0] + p.r) * s.out[1] + q : -1;
}

#endif

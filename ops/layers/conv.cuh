/* conv.cuh: the CUDA kernels of the ops conv and conv_transpose, in plain loops: a thread per element of y and dx, a
 * block per element of dw and db. */
#ifndef RM_CONV_CUH
#define RM_CONV_CUH

#include "ops/cuda/reduce.cuh"

extern "C" {
#include "ops/layers/conv.h"
}

enum { X, W, B };

/* The pixel at height y and width x of the image; -1: padding. */
static __device__ int64_t pixel_at(const rm_conv_shape &s, int64_t y, int64_t x) {
    return y >= 0 && y < s.in[0] && x >= 0 && x < s.in[1] ? y * s.in[1] + x : -1;
}

/* The pixel under element (i,j) of the filter at position p. */
static __device__ int64_t pixel_under(const rm_conv_shape &s, int64_t p, int64_t i, int64_t j) {
    int64_t r = rm_row_of(p, s.out[1]), q = p - r * s.out[1];
    return pixel_at(s, r * s.stride[0] - s.padding[0] + i * s.dilation[0],
                    q * s.stride[1] - s.padding[1] + j * s.dilation[1]);
}

/* At each position, the sum of the products with the pixels under the filter. */
static __global__ void sum_at_positions(rm_conv_shape s, int64_t count, const float *x, const float *w, const float *b,
                                        float *y) {
    int64_t outputs = s.groups * s.outputs;
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.positions), p = e - row * s.positions, n = rm_row_of(row, outputs),
                o = row - n * outputs;
        const float *image = x + (n * s.groups + o / s.outputs) * s.channels * s.pixels;
        const float *filter = w + o * s.channels * s.filter[0] * s.filter[1];
        float sum = b ? b[o] : 0;
        for (int64_t c = 0; c < s.channels; c++, image += s.pixels)
            for (int64_t i = 0; i < s.filter[0]; i++)
                for (int64_t j = 0; j < s.filter[1]; j++, filter++) {
                    int64_t pixel = pixel_under(s, p, i, j);
                    if (pixel >= 0) sum += image[pixel] * *filter;
                }
        y[e] = sum;
    }
}

/* The position from which element i of the filter reads pixel y, along one axis; -1: none. */
static __device__ int64_t position_over(const rm_conv_shape &s, int axis, int64_t y, int64_t i) {
    int64_t from = y + s.padding[axis] - i * s.dilation[axis], position = from / s.stride[axis];
    return from >= 0 && position * s.stride[axis] == from && position < s.out[axis] ? position : -1;
}

/* At each pixel, the sum of the products with the positions whose filters read it. */
static __global__ void sum_at_pixels(rm_conv_shape s, int64_t count, const float *y, const float *w, const float *b,
                                     float *x) {
    int64_t channels = s.groups * s.channels, each = s.filter[0] * s.filter[1];
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.pixels), pixel = e - row * s.pixels, n = rm_row_of(row, channels),
                channel = row - n * channels, group = channel / s.channels;
        int64_t row_at = rm_row_of(pixel, s.in[1]), column = pixel - row_at * s.in[1];
        float sum = b ? b[channel] : 0;
        for (int64_t i = 0; i < s.filter[0]; i++)
            for (int64_t j = 0; j < s.filter[1]; j++) {
                int64_t r = position_over(s, 0, row_at, i), q = position_over(s, 1, column, j);
                if (r < 0 || q < 0) continue;
                const float *filter =
                    w + (group * s.outputs * s.channels + channel % s.channels) * each + i * s.filter[1] + j;
                const float *above = y + (n * s.groups + group) * s.outputs * s.positions + r * s.out[1] + q;
                for (int64_t o = 0; o < s.outputs; o++) sum += above[o * s.positions] * filter[o * s.channels * each];
            }
        x[e] = sum;
    }
}

/* Block e computes element e of the filters, over all images and positions: x is at the pixels, y at the positions. */
static __global__ void weight_gradient(rm_conv_shape s, const float *x, const float *y, float *dw) {
    int64_t each = s.filter[0] * s.filter[1], e = blockIdx.x, o = e / (s.channels * each), c = e / each % s.channels,
            i = e % each / s.filter[1], j = e % s.filter[1];
    double sum = 0;
    for (int64_t k = threadIdx.x; k < s.images * s.positions; k += blockDim.x) {
        int64_t n = rm_row_of(k, s.positions), p = k - n * s.positions, pixel = pixel_under(s, p, i, j);
        const float *image = x + ((n * s.groups + o / s.outputs) * s.channels + c) * s.pixels;
        if (pixel >= 0) sum += (double)image[pixel] * y[(n * s.groups * s.outputs + o) * s.positions + p];
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) dw[e] += (float)sum;
}

static __global__ void bias_gradient(int64_t images, int64_t channels, int64_t plane, const float *dy, float *db) {
    double sum = 0;
    for (int64_t k = threadIdx.x; k < images * plane; k += blockDim.x) {
        int64_t n = rm_row_of(k, plane);
        sum += dy[(n * channels + blockIdx.x) * plane + k - n * plane];
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) db[blockIdx.x] += (float)sum;
}

static inline void rm_convolve_cuda(const remat_call *call) {
    rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    const float *x = (const float *)call->x[X].data, *w = (const float *)call->x[W].data;
    const float *b = (const float *)call->x[B].data;
    float *y = (float *)call->y.data;
    int64_t count = rm_desc_count(&call->y.desc);
    if (s.transposed)
        RM_LAUNCH_EACH(sum_at_pixels, count, call->queue, s, count, x, w, b, y);
    else
        RM_LAUNCH_EACH(sum_at_positions, count, call->queue, s, count, x, w, b, y);
}

static inline void rm_convolve_back_cuda(const remat_call *call) {
    rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    const float *x = (const float *)call->x[X].data, *w = (const float *)call->x[W].data;
    const float *dy = (const float *)call->dy.data, *none = NULL;
    float *dx = (float *)call->dx[X].data, *dw = (float *)call->dx[W].data, *db = (float *)call->dx[B].data;
    int64_t count = rm_desc_count(&call->x[X].desc), filters = rm_desc_count(&call->x[W].desc);
    int64_t channels = s.groups * (s.transposed ? s.channels : s.outputs),
            plane = s.transposed ? s.pixels : s.positions;
    if (dx && s.transposed) RM_LAUNCH_EACH(sum_at_positions, count, call->queue, s, count, dy, w, none, dx);
    if (dx && !s.transposed) RM_LAUNCH_EACH(sum_at_pixels, count, call->queue, s, count, dy, w, none, dx);
    if (dw)
        RM_LAUNCH_TOGETHER(weight_gradient, filters, RM_SUM_THREADS, call->queue, s, s.transposed ? dy : x,
                           s.transposed ? x : dy, dw);
    if (db) RM_LAUNCH_TOGETHER(bias_gradient, channels, RM_SUM_THREADS, call->queue, s.images, channels, plane, dy, db);
}

#endif

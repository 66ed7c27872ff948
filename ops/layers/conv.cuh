/* conv.cuh: the CUDA kernels of the ops conv and conv_transpose.
 *
 * A convolution is a product of matrices for each group, one batch for all groups. A part of all positions is computed
 * at a time (conv.h):
 *
 *     taps    (groups, channels filter, positions)   the pixels under the filter at each position; 0: padding
 *     planes  (groups, outputs, positions)           the values at the positions, by output channel
 *
 *     at the positions   planes  = w taps       then planes are copied to their images
 *     at the pixels      taps    = w' planes    then each pixel adds up the taps that read it
 *     weights            dw     += planes taps'
 *
 * With ungrouped filters of one pixel the images are these matrices, so y and dx are a batch of products without copies.
 *
 * Depthwise convolutions, whose filters read a single channel, have kernels of their own: a thread per element of y and
 * dx, a block per some elements of dw. */
#ifndef RM_CONV_CUH
#define RM_CONV_CUH

#include "ops/cuda/channels.cuh"

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

/* The position from which element i of the filter reads pixel y, along one axis; -1: none. */
static __device__ int64_t position_over(const rm_conv_shape &s, int axis, int64_t y, int64_t i) {
    int64_t from = y + s.padding[axis] - i * s.dilation[axis], position = from / s.stride[axis];
    return from >= 0 && position * s.stride[axis] == from && position < s.out[axis] ? position : -1;
}

/* ---- Depthwise: filters read a single channel -------------------------------------------------------------------- */

static __global__ void depthwise_at_positions(rm_conv_shape s, int64_t count, const float *x, const float *w,
                                              const float *b, float *y) {
    const int64_t each = s.filter[0] * s.filter[1], outputs = s.groups * s.outputs;
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.positions), p = e - row * s.positions, r = rm_row_of(p, s.out[1]);
        int64_t o = row - rm_row_of(row, outputs) * outputs;
        int64_t top = r * s.stride[0] - s.padding[0], left = (p - r * s.out[1]) * s.stride[1] - s.padding[1];
        const float *image = x + rm_row_of(row, s.outputs) * s.pixels, *filter = w + o * each;
        float sum = b ? b[o] : 0;
        for (int64_t i = 0; i < s.filter[0]; i++, filter += s.filter[1]) {
            int64_t y_at = top + i * s.dilation[0];
            if (y_at < 0 || y_at >= s.in[0]) continue;
            for (int64_t j = 0; j < s.filter[1]; j++) {
                int64_t x_at = left + j * s.dilation[1];
                if (x_at >= 0 && x_at < s.in[1]) sum += image[y_at * s.in[1] + x_at] * filter[j];
            }
        }
        y[e] = sum;
    }
}

static __global__ void depthwise_at_pixels(rm_conv_shape s, int64_t count, const float *y, const float *w,
                                           const float *b, float *x) {
    const int64_t each = s.filter[0] * s.filter[1];
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.pixels), pixel = e - row * s.pixels, y_at = rm_row_of(pixel, s.in[1]);
        int64_t x_at = pixel - y_at * s.in[1], channel = row - rm_row_of(row, s.groups) * s.groups;
        const float *filter = w + channel * s.outputs * each, *above = y + row * s.outputs * s.positions;
        float sum = b ? b[channel] : 0;
        for (int64_t i = 0; i < s.filter[0]; i++) {
            int64_t r = position_over(s, 0, y_at, i);
            for (int64_t j = 0; r >= 0 && j < s.filter[1]; j++) {
                int64_t q = position_over(s, 1, x_at, j);
                for (int64_t o = 0; q >= 0 && o < s.outputs; o++)
                    sum += above[o * s.positions + r * s.out[1] + q] * filter[o * each + i * s.filter[1] + j];
            }
        }
        x[e] = sum;
    }
}

/* A block computes up to DEPTHWISE_TAPS elements of one filter, so that it reads y once for all of them. */
enum { DEPTHWISE_TAPS = 9 };
static __global__ void depthwise_weights(rm_conv_shape s, int64_t parts, const float *x, const float *y, float *dw) {
    const int64_t each = s.filter[0] * s.filter[1], outputs = s.groups * s.outputs;
    const int64_t o = rm_row_of(blockIdx.x, parts), first = (blockIdx.x - o * parts) * DEPTHWISE_TAPS;
    double sum[DEPTHWISE_TAPS] = {};
    int64_t down[DEPTHWISE_TAPS], along[DEPTHWISE_TAPS]; /* from the first pixel under the filter */
    for (int t = 0; t < DEPTHWISE_TAPS; t++) {
        int64_t i = rm_row_of(first + t, s.filter[1]), j = first + t - i * s.filter[1];
        down[t] = i * s.dilation[0] - s.padding[0], along[t] = j * s.dilation[1] - s.padding[1];
    }
    for (int64_t k = threadIdx.x; k < s.images * s.positions; k += blockDim.x) {
        int64_t n = rm_row_of(k, s.positions), p = k - n * s.positions, r = rm_row_of(p, s.out[1]);
        int64_t top = r * s.stride[0], left = (p - r * s.out[1]) * s.stride[1];
        const float *image = x + (n * s.groups + rm_row_of(o, s.outputs)) * s.pixels;
        double slope = y[(n * outputs + o) * s.positions + p];
        for (int t = 0; t < DEPTHWISE_TAPS; t++) {
            int64_t pixel = first + t < each ? pixel_at(s, top + down[t], left + along[t]) : -1;
            if (pixel >= 0) sum[t] += (double)image[pixel] * slope;
        }
    }
    for (int t = 0; t < DEPTHWISE_TAPS; t++) {
        double all = rm_block_sum(sum[t]);
        if (threadIdx.x == 0 && first + t < each) dw[o * each + first + t] += (float)all;
    }
}

/* ---- As products -------------------------------------------------------------------------------------------------- */

/* Positions from .. from + count of all images, and their two matrices in scratch. */
struct rm_conv_part {
    rm_conv_shape s;
    int64_t from, count;
    float *taps, *planes;
};

static __global__ void copy_to_taps(rm_conv_part part, int64_t n, const float *image) {
    const rm_conv_shape &s = part.s;
    int64_t each = s.filter[0] * s.filter[1], channels = s.groups * s.channels;
    RM_EACH(e, n) {
        int64_t row = rm_row_of(e, part.count), at = part.from + e - row * part.count;
        int64_t i = rm_row_of(at, s.positions), c = rm_row_of(row, each), tap = row - c * each;
        int64_t down = rm_row_of(tap, s.filter[1]);
        int64_t pixel = pixel_under(s, at - i * s.positions, down, tap - down * s.filter[1]);
        part.taps[e] = pixel < 0 ? 0 : image[(i * channels + c) * s.pixels + pixel];
    }
}

/* The element of the images at element e of the planes. */
static __device__ int64_t element_of_plane(const rm_conv_part &part, int64_t e, int64_t *plane) {
    const rm_conv_shape &s = part.s;
    *plane = rm_row_of(e, part.count);
    int64_t at = part.from + e - *plane * part.count, i = rm_row_of(at, s.positions);
    return (i * s.groups * s.outputs + *plane) * s.positions + at - i * s.positions;
}

static __global__ void copy_to_planes(rm_conv_part part, int64_t n, const float *y) {
    int64_t plane;
    RM_EACH(e, n) part.planes[e] = y[element_of_plane(part, e, &plane)];
}

static __global__ void copy_from_planes(rm_conv_part part, int64_t n, const float *b, float *y) {
    int64_t plane;
    RM_EACH(e, n) {
        int64_t at = element_of_plane(part, e, &plane);
        y[at] = part.planes[e] + (b ? b[plane] : 0);
    }
}

/* Adds up the taps at pixels of `count` elements, from image `first` on. The first part of an image starts its sums. */
static __global__ void sum_taps(rm_conv_part part, int64_t first, int64_t n, const float *b, float *x) {
    const rm_conv_shape &s = part.s;
    const int64_t channels = s.groups * s.channels;
    RM_EACH(e, n) {
        int64_t row = rm_row_of(e, s.pixels), pixel = e - row * s.pixels, i = rm_row_of(row, channels),
                c = row - i * channels, y_at = rm_row_of(pixel, s.in[1]), x_at = pixel - y_at * s.in[1];
        int64_t start = (first + i) * s.positions - part.from;
        float *to = x + first * channels * s.pixels + e, sum = start < 0 ? *to : b ? b[c] : 0;
        const float *taps = part.taps + c * s.filter[0] * s.filter[1] * part.count;
        for (int64_t down = 0; down < s.filter[0]; down++)
            for (int64_t along = 0; along < s.filter[1]; along++, taps += part.count) {
                int64_t r = position_over(s, 0, y_at, down), q = position_over(s, 1, x_at, along);
                int64_t at = start + r * s.out[1] + q;
                if (r >= 0 && q >= 0 && at >= 0 && at < part.count) sum += taps[at];
            }
        *to = sum;
    }
}

static inline void rm_conv_sum_taps(const rm_conv_part &part, const rm_cuda_queue *queue, const float *b, float *x) {
    int64_t first = part.from / part.s.positions, end = (part.from + part.count - 1) / part.s.positions + 1;
    int64_t n = (end - first) * part.s.groups * part.s.channels * part.s.pixels;
    RM_LAUNCH_EACH(sum_taps, n, queue, part, first, n, b, x);
}

/* A product for each group, whose matrices follow one another. */
static inline void rm_conv_multiply(const rm_cuda_queue *queue, int64_t groups, int64_t m, int64_t n, int64_t k,
                                    const float *a, bool transpose_a, const float *b, bool transpose_b, float *c,
                                    bool add) {
    rm_cuda_product product = {
        a,           b,   c,      m,     n,     k,    transpose_a ? m : k, transpose_b ? k : n, n, 0, transpose_a,
        transpose_b, add, groups, m * k, k * n, m * n};
    queue->multiply(queue, &product);
}

static __global__ void add_bias(int64_t n, int64_t channels, int64_t plane, const float *b, float *y) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, plane);
        y[i] += b[row - rm_row_of(row, channels) * channels];
    }
}

/* One product for each image, in a batch. */
static inline void rm_conv_pointwise(const rm_cuda_queue *queue, const rm_conv_shape &s, const float *w, bool to_pixels,
                                     const float *from, const float *b, float *to) {
    int64_t rows = to_pixels ? s.channels : s.outputs, terms = to_pixels ? s.outputs : s.channels;
    rm_cuda_product product = {w, from,      to,    rows,  s.pixels, terms, s.channels,       s.pixels,       s.pixels,
                               0, to_pixels, false, false, s.images, 0,     terms * s.pixels, rows * s.pixels};
    queue->multiply(queue, &product);
    if (b)
        RM_LAUNCH_EACH(add_bias, s.images * rows * s.pixels, queue, s.images * rows * s.pixels, rows, s.pixels, b, to);
}

/* y at the positions from x at the pixels, or, transposed, y at the pixels from x at the positions. dw: NULL, or its
 * gradient where `x` and `other` are the arrays at the pixels and at the positions. */
static inline void rm_conv_by_products(const remat_call *call, bool to_pixels, const float *from, const float *b,
                                       float *to, const float *other, float *dw) {
    rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, (const rm_conv_attr *)call->attr);
    const rm_cuda_queue *queue = (const rm_cuda_queue *)call->queue;
    const float *w = (const float *)call->x[W].data;
    int64_t taps = rm_conv_taps(&s), most = rm_conv_columns(&s), all = s.images * s.positions;
    if (to && rm_conv_is_pointwise(&s)) {
        rm_conv_pointwise(queue, s, w, to_pixels, from, b, to);
        to = NULL;
    }
    for (int64_t at = 0; at < all && (to || dw); at += most) {
        int64_t count = all - at < most ? all - at : most, n_taps = s.groups * taps * count,
                n_planes = s.groups * s.outputs * count;
        float *scratch = (float *)call->scratch;
        rm_conv_part part = {s, at, count, scratch, scratch + rm_conv_planes_at(&s)};
        if (dw || !to_pixels) RM_LAUNCH_EACH(copy_to_taps, n_taps, queue, part, n_taps, to_pixels ? other : from);
        if (dw || to_pixels) RM_LAUNCH_EACH(copy_to_planes, n_planes, queue, part, n_planes, to_pixels ? from : other);
        if (dw)
            rm_conv_multiply(queue, s.groups, s.outputs, taps, count, part.planes, false, part.taps, true, dw, true);
        if (to && to_pixels) {
            rm_conv_multiply(queue, s.groups, taps, count, s.outputs, w, true, part.planes, false, part.taps, false);
            rm_conv_sum_taps(part, queue, b, to);
        } else if (to) {
            rm_conv_multiply(queue, s.groups, s.outputs, count, taps, w, false, part.taps, false, part.planes, false);
            RM_LAUNCH_EACH(copy_from_planes, n_planes, queue, part, n_planes, b, to);
        }
    }
}

/* ---- Launchers ---------------------------------------------------------------------------------------------------- */

static inline void rm_convolve_cuda(const remat_call *call) {
    rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    const float *x = (const float *)call->x[X].data, *w = (const float *)call->x[W].data;
    const float *b = (const float *)call->x[B].data;
    float *y = (float *)call->y.data;
    int64_t count = rm_desc_count(&call->y.desc);
    if (!rm_conv_is_depthwise(&s))
        rm_conv_by_products(call, s.transposed, x, b, y, NULL, NULL);
    else if (s.transposed)
        RM_LAUNCH_EACH(depthwise_at_pixels, count, call->queue, s, count, x, w, b, y);
    else
        RM_LAUNCH_EACH(depthwise_at_positions, count, call->queue, s, count, x, w, b, y);
}

static inline void rm_convolve_back_cuda(const remat_call *call) {
    rm_conv_shape s = rm_conv_shape_of(&call->x[X].desc, &call->x[W].desc, call->attr);
    const float *x = (const float *)call->x[X].data, *w = (const float *)call->x[W].data;
    const float *dy = (const float *)call->dy.data, *none = NULL;
    float *dx = (float *)call->dx[X].data, *dw = (float *)call->dx[W].data, *db = (float *)call->dx[B].data;
    int64_t count = rm_desc_count(&call->x[X].desc);
    int64_t channels = s.groups * (s.transposed ? s.channels : s.outputs),
            plane = s.transposed ? s.pixels : s.positions;
    if (!rm_conv_is_depthwise(&s)) {
        if (dx || dw) rm_conv_by_products(call, !s.transposed, dy, none, dx, x, dw);
    } else {
        int64_t parts = rm_blocks_of(s.filter[0] * s.filter[1], DEPTHWISE_TAPS);
        if (dx && s.transposed) RM_LAUNCH_EACH(depthwise_at_positions, count, call->queue, s, count, dy, w, none, dx);
        if (dx && !s.transposed) RM_LAUNCH_EACH(depthwise_at_pixels, count, call->queue, s, count, dy, w, none, dx);
        if (dw)
            RM_LAUNCH_TOGETHER(depthwise_weights, s.groups * s.outputs * parts, RM_SUM_THREADS, call->queue, s, parts,
                               s.transposed ? dy : x, s.transposed ? x : dy, dw);
    }
    if (db) rm_launch_channels(call->queue, rm_channel_sums{dy, db}, s.images, channels, plane, channels * plane);
}

#endif

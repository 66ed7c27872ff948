/* cudnn_conv.cu: kernels for the work that cuDNN's convolutions leave to us (engine/cuda/conv.c): cudnn_conv.h. No op
 * is defined here. */
#include "ops/layers/conv.cuh"

#include <string.h>

extern "C" {
#include "ops/layers/cudnn_conv.h"
}

static __device__ float from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static __device__ uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 64); /* a NaN stays one */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static __global__ void round_to_bf16(int64_t n, const float *from, uint16_t *to) {
    RM_EACH(i, n) to[i] = to_bf16(from[i]);
}

static __global__ void finish_images(int64_t n, int64_t channels, int64_t plane, const uint16_t *from, const float *b,
                                     float *y) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, plane);
        y[i] = (from ? from_bf16(from[i]) : y[i]) + (b ? b[row - rm_row_of(row, channels) * channels] : 0);
    }
}

static __global__ void add_bf16(int64_t n, const uint16_t *from, float *to) {
    RM_EACH(i, n) to[i] += from_bf16(from[i]);
}

static void launch_round(const rm_cuda_queue *queue, int64_t n, const float *from, uint16_t *to) {
    RM_LAUNCH_EACH(round_to_bf16, n, queue, n, from, to);
}

static void launch_finish(const rm_cuda_queue *queue, int64_t images, int64_t channels, int64_t plane,
                          const uint16_t *from, const float *b, float *y) {
    int64_t n = images * channels * plane;
    if (from || b) RM_LAUNCH_EACH(finish_images, n, queue, n, channels, plane, from, b, y);
}

static void launch_add(const rm_cuda_queue *queue, int64_t n, const uint16_t *from, float *to) {
    RM_LAUNCH_EACH(add_bf16, n, queue, n, from, to);
}

static void launch_bias_gradient(const rm_cuda_queue *queue, int64_t images, int64_t channels, int64_t plane,
                                 const float *dy, float *db) {
    rm_launch_channels(queue, rm_channel_sums{dy, db}, images, channels, plane, channels * plane);
}

extern "C" {
const rm_cudnn_conv_kernels rm_cudnn_conv_kernels_built = {launch_round, launch_finish, launch_add,
                                                           launch_bias_gradient};
}

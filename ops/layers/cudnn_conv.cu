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

/* Four numbers in bf16, read and written by 8 bytes: arrays of them start at multiples of 8 (engine/cuda/conv.c). */
struct alignas(8) four_halves {
    uint16_t v[4];
};

static __device__ inline rm_four load_halves(const uint16_t *x, int64_t left) {
    four_halves halves = {};
    rm_four four;
    if (left >= 4)
        halves = *(const four_halves *)x;
    else
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < left) halves.v[k] = x[k];
    RM_UNROLL for (int k = 0; k < 4; k++) four.v[k] = from_bf16(halves.v[k]);
    return four;
}

static __global__ void round_to_bf16(int64_t n, const float *from, uint16_t *to) {
    RM_EACH_FOUR(i, n) {
        const rm_four four = rm_load_four(from + i, n - i);
        four_halves halves;
        RM_UNROLL for (int k = 0; k < 4; k++) halves.v[k] = to_bf16(four.v[k]);
        if (n - i >= 4)
            *(four_halves *)(to + i) = halves;
        else
            RM_UNROLL for (int k = 0; k < 4; k++) if (i + k < n) to[i + k] = halves.v[k];
    }
}

static __global__ void finish_images(int64_t n, int64_t channels, int64_t plane, const uint16_t *from, const float *b,
                                     float *y) {
    RM_EACH_FOUR(i, n) {
        rm_four four = from ? load_halves(from + i, n - i) : rm_load_four(y + i, n - i);
        if (b) {
            int64_t row = rm_row_of(i, plane), rest = i - row * plane, c = row - rm_row_of(row, channels) * channels;
            RM_UNROLL for (int k = 0; k < 4; k++) {
                four.v[k] += b[c];
                if (++rest == plane) rest = 0, c = c + 1 < channels ? c + 1 : 0;
            }
        }
        rm_store_four(y + i, n - i, four);
    }
}

static __global__ void add_bf16(int64_t n, const uint16_t *from, float *to) {
    RM_EACH_FOUR(i, n) {
        rm_four four = rm_load_four(to + i, n - i);
        const rm_four more = load_halves(from + i, n - i);
        RM_UNROLL for (int k = 0; k < 4; k++) four.v[k] += more.v[k];
        rm_store_four(to + i, n - i, four);
    }
}

static void launch_round(const rm_cuda_queue *queue, int64_t n, const float *from, uint16_t *to) {
    RM_LAUNCH_FOURS(round_to_bf16, n, queue, n, from, to);
}

static void launch_finish(const rm_cuda_queue *queue, int64_t images, int64_t channels, int64_t plane,
                          const uint16_t *from, const float *b, float *y) {
    int64_t n = images * channels * plane;
    if (from || b) RM_LAUNCH_FOURS(finish_images, n, queue, n, channels, plane, from, b, y);
}

static void launch_add(const rm_cuda_queue *queue, int64_t n, const uint16_t *from, float *to) {
    RM_LAUNCH_FOURS(add_bf16, n, queue, n, from, to);
}

static void launch_bias_gradient(const rm_cuda_queue *queue, int64_t images, int64_t channels, int64_t plane,
                                 const float *dy, float *db) {
    rm_launch_channels(queue, rm_channel_sums{dy, db}, images, channels, plane, channels * plane);
}

extern "C" {
const rm_cudnn_conv_kernels rm_cudnn_conv_kernels_built = {launch_round, launch_finish, launch_add,
                                                           launch_bias_gradient};
}

/* cudnn_conv.cu: kernels for the work that cuDNN's convolutions leave to us (engine/cuda/conv.c): cudnn_conv.h. No op
 * is defined here. */
#include "ops/cuda/bf16.cuh"
#include "ops/layers/conv.cuh"

extern "C" {
#include "ops/layers/cudnn_conv.h"
}

static __global__ void finish_images(int64_t n, int64_t channels, int64_t plane, const uint16_t *from, const float *b,
                                     float *y) {
    RM_EACH_FOUR(i, n) {
        rm_four four = from ? rm_load_halves(from + i, n - i) : rm_load_four(y + i, n - i);
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
        const rm_four more = rm_load_halves(from + i, n - i);
        RM_UNROLL for (int k = 0; k < 4; k++) four.v[k] += more.v[k];
        rm_store_four(to + i, n - i, four);
    }
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
const rm_cudnn_conv_kernels rm_cudnn_conv_kernels_built = {launch_finish, launch_add, launch_bias_gradient};
}

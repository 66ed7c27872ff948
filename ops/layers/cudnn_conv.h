/* cudnn_conv.h: kernels of Remat's own for convolutions that cuDNN computes (engine/cuda/conv.c); in cudnn_conv.cu.
 * Numbers in bf16 are as in ops/cuda/bf16.h, which rounds operands. */
#ifndef RM_CUDNN_CONV_H
#define RM_CUDNN_CONV_H

#include "ops/cuda/cuda_queue.h"

/* Arrays of images are (images, channels, plane). Each launcher only queues its kernel. */
typedef struct {
    /* y = from + b[channel]; from NULL: y itself; b NULL: 0 */
    void (*finish)(const rm_cuda_queue *queue, int64_t images, int64_t channels, int64_t plane, const uint16_t *from,
                   const float *b, float *y);
    /* to += from */
    void (*add)(const rm_cuda_queue *queue, int64_t n, const uint16_t *from, float *to);
    /* db[channel] += the sum of dy's channel */
    void (*bias_gradient)(const rm_cuda_queue *queue, int64_t images, int64_t channels, int64_t plane, const float *dy,
                          float *db);
} rm_cudnn_conv_kernels;

extern const rm_cudnn_conv_kernels rm_cudnn_conv_kernels_built;

#endif

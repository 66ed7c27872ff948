/* gelu.cu: the CUDA kernels of the op `gelu` (gelu.c); the mathematics is in activation.h. */
#include "ops/kernel.cuh"

#include "ops/activation.h"

static __global__ void forward(int64_t n, const float *x, float *y) { RM_EACH(i, n) y[i] = rm_gelu(x[i]); }

static __global__ void backward(int64_t n, const float *dy, const float *x, float *dx) {
    RM_EACH(i, n) dx[i] = rm_gelu_backward(dy[i], x[i]);
}

void rm_gelu_forward_cuda(const rm_call *call) {
    int64_t n = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(forward, n, call->queue, n, (const float *)call->x[0].data, (float *)call->y.data);
}

void rm_gelu_backward_cuda(const rm_call *call) {
    int64_t n = rm_desc_count(&call->dy.desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, (const float *)call->dy.data, (const float *)call->x[0].data,
                   (float *)call->dx[0].data);
}

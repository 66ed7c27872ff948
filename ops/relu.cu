/* relu.cu: the CUDA kernels of the op `relu` (relu.c); the mathematics is in activation.h. */
#include "ops/kernel.cuh"

#include "ops/activation.h"

static __global__ void forward(int64_t n, const float *x, float *y) { RM_EACH(i, n) y[i] = rm_relu(x[i]); }

static __global__ void backward(int64_t n, const float *dy, const float *y, float *dx) {
    RM_EACH(i, n) dx[i] = rm_relu_backward(dy[i], y[i]);
}

void rm_relu_forward_cuda(const rm_call *call) {
    int64_t n = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(forward, n, call->queue, n, (const float *)call->x[0].data, (float *)call->y.data);
}

void rm_relu_backward_cuda(const rm_call *call) {
    int64_t n = rm_desc_count(&call->dy.desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, (const float *)call->dy.data, (const float *)call->y.data,
                   (float *)call->dx[0].data);
}

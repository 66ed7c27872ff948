/* clamp.cu: the CUDA kernels of the op `clamp` (clamp.c). */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/elementwise/clamp.h"
}

static __global__ void forward(int64_t n, rm_clamp_bounds b, const float *x, float *y) {
    RM_EACH(i, n) y[i] = rm_clamp(x[i], b);
}

static __global__ void backward(int64_t n, rm_clamp_bounds b, const float *dy, const float *x, float *dx) {
    RM_EACH(i, n) dx[i] = rm_clamp_backward(dy[i], x[i], b);
}

void rm_clamp_forward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(forward, n, call->queue, n, rm_clamp_bounds_of(call->attr), (const float *)call->x[0].data,
                   (float *)call->y.data);
}

void rm_clamp_backward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->dy.desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, rm_clamp_bounds_of(call->attr), (const float *)call->dy.data,
                   (const float *)call->x[0].data, (float *)call->dx[0].data);
}

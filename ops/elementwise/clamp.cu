/* clamp.cu: the CUDA kernels of the op `clamp` (clamp.c). */
#include "ops/cuda/fours.cuh"

extern "C" {
#include "ops/elementwise/clamp.h"
}

static __global__ void forward(int64_t n, rm_clamp_bounds b, const float *x, float *y) {
    rm_map(n, x, y, [&](int64_t, float v) { return rm_clamp(v, b); });
}

static __global__ void backward(int64_t n, rm_clamp_bounds b, const float *dy, const float *x, float *dx) {
    rm_map_two(n, dy, x, dx, [&](int64_t, float d, float v) { return rm_clamp_backward(d, v, b); });
}

void rm_clamp_forward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->y.desc);
    RM_LAUNCH_FOURS(forward, n, call->queue, n, rm_clamp_bounds_of(call->attr), (const float *)call->x[0].data,
                   (float *)call->y.data);
}

void rm_clamp_backward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->dy.desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_FOURS(backward, n, call->queue, n, rm_clamp_bounds_of(call->attr), (const float *)call->dy.data,
                   (const float *)call->x[0].data, (float *)call->dx[0].data);
}

/* stop_gradient.cu: the CUDA kernel of the op `stop_gradient` (stop_gradient.c). */
#include "ops/cuda/fours.cuh"

static __global__ void copy(int64_t n, const float *x, float *y) {
    rm_map(n, x, y, [](int64_t, float v) { return v; });
}

void rm_stop_gradient_forward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->y.desc);
    RM_LAUNCH_FOURS(copy, n, call->queue, n, (const float *)call->x[0].data, (float *)call->y.data);
}

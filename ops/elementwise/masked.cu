/* masked.cu: the CUDA kernels of the op `masked` (masked.c). */
#include "ops/elementwise/broadcast.cuh"

RM_BROADCAST_FORWARD_CUDA(masked, b > 0 ? a : 0)

static __global__ void zero(int64_t n, float *dx) { RM_EACH(i, n) dx[i] = 0; }

void rm_masked_backward_cuda(const remat_call *call) {
    launch_gradient(call, 0, {1, RM_WHERE_ON, call->x[second_of(call)].data, NULL});
    if (call->x[B].desc.rank < 0 || !call->dx[B].data) return;
    int64_t count = rm_desc_count(&call->x[B].desc);
    RM_LAUNCH_EACH(zero, count, call->queue, count, (float *)call->dx[B].data);
}

/* sub.cu: the CUDA kernels of the op `sub` (sub.c). */
#include "ops/elementwise/broadcast.cuh"

RM_BROADCAST_FORWARD_CUDA(sub, a - b)

void rm_sub_backward_cuda(const remat_call *call) {
    launch_gradient(call, 0, {1, RM_TIMES, NULL, NULL});
    launch_gradient(call, 1, {-1, RM_TIMES, NULL, NULL});
}

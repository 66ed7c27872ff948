/* div.cu: the CUDA kernels of the op `div` (div.c). */
#include "ops/elementwise/broadcast.cuh"

RM_BROADCAST_FORWARD_CUDA(div, a / b)

void rm_div_backward_cuda(const remat_call *call) {
    const void *b = call->x[second_of(call)].data;
    launch_gradient(call, 0, {1, RM_OVER, b, NULL});
    launch_gradient(call, 1, {-1, RM_TIMES, call->x[A].data, b});
}

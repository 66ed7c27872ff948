/* mul.cu: the CUDA kernels of the op `mul` (mul.c). */
#include "ops/elementwise/broadcast.cuh"

RM_BROADCAST_FORWARD_CUDA(mul, a *b)

void rm_mul_backward_cuda(const remat_call *call) {
    launch_gradient(call, 0, {1, RM_TIMES, call->x[second_of(call)].data, NULL});
    launch_gradient(call, 1, {1, RM_TIMES, call->x[A].data, NULL});
}

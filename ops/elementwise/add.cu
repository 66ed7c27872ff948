/* add.cu: the CUDA kernels of the op `add` (add.c). */
#include "ops/elementwise/broadcast.cuh"

RM_BROADCAST_FORWARD_CUDA(add, a + b)

void rm_add_backward_cuda(const remat_call *call) {
    for (int operand = 0; operand < 2; operand++) launch_gradient(call, operand, {1, RM_TIMES, NULL, NULL});
}

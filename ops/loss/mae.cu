/* mae.cu: the CUDA kernels of the op `mae` (mae.c), which are difference.cuh's. */
#define VALUE rm_mae_value
#define SLOPE rm_mae_slope
#include "ops/loss/difference.cuh"

void rm_mae_forward_cuda(const rm_call *call) { launch_forward(call); }
void rm_mae_backward_cuda(const rm_call *call) { launch_backward(call); }

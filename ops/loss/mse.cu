/* mse.cu: the CUDA kernels of the op `mse` (mse.c), from element_loss.cuh. */
#define VALUE rm_mse_value
#define SLOPE rm_mse_slope
#define TARGET_SLOPE rm_mse_target_slope
#include "ops/loss/element_loss.cuh"

void rm_mse_forward_cuda(const remat_call *call) { launch_forward(call); }
void rm_mse_backward_cuda(const remat_call *call) { launch_backward(call); }

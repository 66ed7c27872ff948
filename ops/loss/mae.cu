/* mae.cu: the CUDA kernels of the op `mae` (mae.c), from element_loss.cuh. */
#define VALUE rm_mae_value
#define SLOPE rm_mae_slope
#define TARGET_SLOPE rm_mae_target_slope
#include "ops/loss/element_loss.cuh"

void rm_mae_forward_cuda(const remat_call *call) { launch_forward(call); }
void rm_mae_backward_cuda(const remat_call *call) { launch_backward(call); }

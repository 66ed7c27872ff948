/* huber.cu: the CUDA kernels of the op `huber` (huber.c), from element_loss.cuh. */
#define VALUE rm_huber_value
#define SLOPE rm_huber_slope
#define TARGET_SLOPE rm_huber_target_slope
#include "ops/loss/element_loss.cuh"

void rm_huber_forward_cuda(const remat_call *call) { launch_forward(call); }
void rm_huber_backward_cuda(const remat_call *call) { launch_backward(call); }

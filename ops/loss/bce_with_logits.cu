/* bce_with_logits.cu: the CUDA kernels of the op `bce_with_logits` (bce_with_logits.c), from element_loss.cuh. */
#define VALUE rm_bce_value
#define SLOPE rm_bce_slope
#define TARGET_SLOPE rm_bce_target_slope
#include "ops/loss/element_loss.cuh"

void rm_bce_with_logits_forward_cuda(const remat_call *call) { launch_forward(call); }
void rm_bce_with_logits_backward_cuda(const remat_call *call) { launch_backward(call); }

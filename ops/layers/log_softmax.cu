/* log_softmax.cu: the CUDA kernels of the op `log_softmax` (log_softmax.c), from softmax.cuh. */
#define LOGARITHM true
#include "ops/layers/softmax.cuh"

void rm_log_softmax_forward_cuda(const remat_call *call) { launch_forward(call); }
void rm_log_softmax_backward_cuda(const remat_call *call) { launch_backward(call); }

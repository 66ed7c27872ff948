/* softmax.cu: the CUDA kernels of the op `softmax` (softmax.c), from softmax.cuh. */
#define LOGARITHM false
#include "ops/layers/softmax.cuh"

void rm_softmax_forward_cuda(const remat_call *call) { launch_forward(call); }
void rm_softmax_backward_cuda(const remat_call *call) { launch_backward(call); }

/* conv.cu: the CUDA kernels of the op `conv` (conv.c). */
#include "ops/layers/conv.cuh"

void rm_conv_forward_cuda(const remat_call *call) { rm_convolve_cuda(call); }
void rm_conv_backward_cuda(const remat_call *call) { rm_convolve_back_cuda(call); }

/* conv_transpose.cu: the CUDA kernels of the op `conv_transpose` (conv_transpose.c). */
#include "ops/layers/conv.cuh"

void rm_conv_transpose_forward_cuda(const remat_call *call) { rm_convolve_cuda(call); }
void rm_conv_transpose_backward_cuda(const remat_call *call) { rm_convolve_back_cuda(call); }

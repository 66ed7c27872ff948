/* rnn_relu.cu: the CUDA kernels of the op `rnn_relu` (rnn_relu.c). */
#include "ops/recurrent/plain_rnn.cuh"

struct of_relu {
    static __device__ inline float of(float x) { return rm_relu(x); }
    static __device__ inline float back(float dh, float h) { return rm_relu_backward(dh, h); }
};

void rm_rnn_relu_forward_cuda(const remat_call *call) { rm_plain_forward<of_relu>(call, "relu>"); }
void rm_rnn_relu_backward_cuda(const remat_call *call) { rm_plain_backward<of_relu>(call, "relu<"); }

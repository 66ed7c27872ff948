/* rnn_tanh.cu: the CUDA kernels of the op `rnn_tanh` (rnn_tanh.c). */
#include "ops/recurrent/plain_rnn.cuh"

struct of_tanh {
    static __device__ inline float of(float x) { return rm_tanh(x); }
    static __device__ inline float back(float dh, float h) { return rm_tanh_backward(dh, h); }
};

void rm_rnn_tanh_forward_cuda(const remat_call *call) { rm_plain_forward<of_tanh>(call, "tanh>"); }
void rm_rnn_tanh_backward_cuda(const remat_call *call) { rm_plain_backward<of_tanh>(call, "tanh<"); }

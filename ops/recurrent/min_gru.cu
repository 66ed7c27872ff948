/* min_gru.cu: the CUDA kernels of the op `min_gru` (min_gru.c). */
#include "ops/recurrent/minimal.cuh"

struct min_gru {
    enum { PARTS = 2 };
    static __device__ inline rm_min_gates gates(const float *x, int64_t hidden) {
        return rm_min_gru_gates(x[0], x[hidden]);
    }
};

void rm_min_gru_forward_cuda(const remat_call *call) { rm_min_launch_forward<min_gru>(call); }
void rm_min_gru_backward_cuda(const remat_call *call) { rm_min_launch_backward<min_gru>(call); }

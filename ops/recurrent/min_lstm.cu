/* min_lstm.cu: the CUDA kernels of the op `min_lstm` (min_lstm.c). */
#include "ops/recurrent/minimal.cuh"

struct min_lstm {
    enum { PARTS = 3 };
    static __device__ inline rm_min_gates gates(const float *x, int64_t hidden) {
        return rm_min_lstm_gates(x[0], x[hidden], x[2 * hidden]);
    }
};

void rm_min_lstm_forward_cuda(const remat_call *call) { rm_min_launch_forward<min_lstm>(call); }
void rm_min_lstm_backward_cuda(const remat_call *call) { rm_min_launch_backward<min_lstm>(call); }

/* mul.cu: the CUDA kernels of the op `mul` (mul.c). */
#include "ops/cuda/kernel.cuh"

static __global__ void product(int64_t n, const float *a, const float *b, float *out) {
    RM_EACH(i, n) out[i] = a[i] * b[i];
}

static void launch(const remat_call *call, const void *a, const void *b, void *out) {
    int64_t n = rm_desc_count(&call->y.desc);
    if (!out) return;
    RM_LAUNCH_EACH(product, n, call->queue, n, (const float *)a, (const float *)b, (float *)out);
}

void rm_mul_forward_cuda(const remat_call *call) { launch(call, call->x[0].data, call->x[1].data, call->y.data); }

void rm_mul_backward_cuda(const remat_call *call) { /* y = a b */
    launch(call, call->dy.data, call->x[1].data, call->dx[0].data);
    launch(call, call->dy.data, call->x[0].data, call->dx[1].data);
}

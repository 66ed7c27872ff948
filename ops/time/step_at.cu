/* step_at.cu: the CUDA kernels of the op `step_at` (step_at.c). */
#include "ops/cuda/kernel.cuh"

enum { X, INDEX };

/* n = B * width; t0: the tile's first timestep */
static __global__ void forward(int64_t n, int64_t width, int64_t t0, int64_t steps, const int32_t *index, const float *x, float *y) {
    RM_EACH(i, n) {
        int64_t t = index[rm_row_of(i, width)] - t0;
        y[i] = t >= 0 && t < steps ? x[t * n + i] : 0;
    }
}

/* count = steps * n */
static __global__ void backward(int64_t count, int64_t n, int64_t width, int64_t t0, const int32_t *index, const float *dy,
                                float *dx) {
    RM_EACH(i, count) {
        int64_t t = rm_row_of(i, n), at = i - t * n;
        dx[i] = index[rm_row_of(at, width)] - t0 == t ? dy[at] : 0;
    }
}

void rm_step_at_forward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->y.desc), width = n / call->y.desc.dim[0];
    RM_LAUNCH_EACH(forward, n, call->queue, n, width, call->t0, call->x[X].desc.dim[0], (const int32_t *)call->x[INDEX].data,
                   (const float *)call->x[X].data, (float *)call->y.data);
}

void rm_step_at_backward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->dy.desc), width = n / call->dy.desc.dim[0], count = call->x[X].desc.dim[0] * n;
    if (!call->dx[X].data) return;
    RM_LAUNCH_EACH(backward, count, call->queue, count, n, width, call->t0, (const int32_t *)call->x[INDEX].data,
                   (const float *)call->dy.data, (float *)call->dx[X].data);
}

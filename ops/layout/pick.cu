/* pick.cu: the CUDA kernels of the op `pick` (pick.c). */
#include "ops/cuda/kernel.cuh"

enum { X, INDEX };

static __global__ void forward(int64_t rows, int64_t width, const int32_t *index, const float *x, float *y) {
    RM_EACH(r, rows) y[r] = index[r] < 0 ? 0 : x[r * width + index[r]];
}

static __global__ void backward(int64_t n, int64_t width, const int32_t *index, const float *dy, float *dx) {
    RM_EACH(i, n) {
        int64_t r = rm_row_of(i, width);
        dx[i] = i - r * width == index[r] ? dy[r] : 0;
    }
}

void rm_pick_forward_cuda(const remat_call *call) {
    int64_t rows = rm_desc_count(&call->y.desc), width = rm_desc_last(&call->x[X].desc);
    RM_LAUNCH_EACH(forward, rows, call->queue, rows, width, (const int32_t *)call->x[INDEX].data,
                   (const float *)call->x[X].data, (float *)call->y.data);
}

void rm_pick_backward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[X].desc), width = rm_desc_last(&call->x[X].desc);
    if (!call->dx[X].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, width, (const int32_t *)call->x[INDEX].data,
                   (const float *)call->dy.data, (float *)call->dx[X].data);
}

/* slice.cu: the CUDA kernels of the op `slice` (slice.c). */
#include "ops/cuda/kernel.cuh"

/* Element i of y (rows,count) is column first + i % count of x (rows,width). */
static __global__ void forward(int64_t n, int64_t width, int64_t first, int64_t count, const float *x, float *y) {
    RM_EACH(i, n) {
        int64_t r = rm_row_of(i, count);
        y[i] = x[r * width + first + i - r * count];
    }
}

static __global__ void backward(int64_t n, int64_t width, int64_t first, int64_t count, const float *dy, float *dx) {
    RM_EACH(i, n) {
        int64_t r = rm_row_of(i, width), column = i - r * width - first;
        dx[i] = column >= 0 && column < count ? dy[r * count + column] : 0;
    }
}

void rm_slice_forward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->y.desc), count = rm_desc_last(&call->y.desc);
    int64_t width = rm_desc_last(&call->x[0].desc), first = ((const rm_slice_attr *)call->attr)->first;
    RM_LAUNCH_EACH(forward, n, call->queue, n, width, first, count, (const float *)call->x[0].data,
                   (float *)call->y.data);
}

void rm_slice_backward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[0].desc), count = rm_desc_last(&call->dy.desc);
    int64_t width = rm_desc_last(&call->x[0].desc), first = ((const rm_slice_attr *)call->attr)->first;
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, width, first, count, (const float *)call->dy.data,
                   (float *)call->dx[0].data);
}

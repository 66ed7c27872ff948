/* mean_over_time.cu: the CUDA kernels of the op `mean_over_time` (mean_over_time.c). A thread sums a column in the order of
 * time, as the CPU does. */
#include "ops/cuda/kernel.cuh"

static __global__ void forward(int64_t width, int64_t steps, double total, const float *x, float *y) {
    RM_EACH(i, width) {
        double sum = 0;
        for (int64_t t = 0; t < steps; t++) sum += x[t * width + i];
        y[i] = (float)(sum / total);
    }
}

static __global__ void backward(int64_t n, int64_t width, float total, const float *dy, float *dx) {
    RM_EACH(i, n) dx[i] = dy[i - rm_row_of(i, width) * width] / total; /* y = sum over t of x[t] / T */
}

static double divisor(const remat_call *call) {
    const rm_over_time_attr *a = (const rm_over_time_attr *)call->attr;
    return a && a->sum ? 1 : (double)call->t_total;
}

void rm_mean_over_time_forward_cuda(const remat_call *call) {
    int64_t steps = call->x[0].desc.dim[0], width = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(forward, width, call->queue, width, steps, divisor(call), (const float *)call->x[0].data,
                   (float *)call->y.data);
}

void rm_mean_over_time_backward_cuda(const remat_call *call) {
    int64_t width = rm_desc_count(&call->dy.desc), n = call->x[0].desc.dim[0] * width;
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, width, (float)divisor(call), (const float *)call->dy.data,
                   (float *)call->dx[0].data);
}

/* avg_pool.cu: the CUDA kernels of the op `avg_pool` (avg_pool.c): a thread per window, and per element of dx. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/layers/pool.h"
}

static __global__ void average(rm_pool_shape s, int64_t count, const float *x, float *y) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.out[1]), q = e - row * s.out[1], plane = rm_row_of(row, s.out[0]);
        const float *from = x + plane * s.in[0] * s.in[1];
        rm_pool_window w = rm_pool_window_at(&s, row - plane * s.out[0], q);
        float sum = 0;
        for (int64_t i = w.y[0]; i < w.y[1]; i++)
            for (int64_t j = w.x[0]; j < w.x[1]; j++) sum += from[i * s.in[1] + j];
        y[e] = sum * (1 / (float)(s.window[0] * s.window[1]));
    }
}

static __global__ void spread(rm_pool_shape s, int64_t count, const float *dy, float *dx) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.in[1]), across = e - row * s.in[1], plane = rm_row_of(row, s.in[0]);
        int64_t down = row - plane * s.in[0];
        const float *above = dy + plane * s.out[0] * s.out[1];
        float sum = 0;
        for (int64_t r = rm_pool_first_over(&s, 0, down); r < s.out[0] && r * s.stride[0] <= down + s.padding[0]; r++)
            for (int64_t q = rm_pool_first_over(&s, 1, across);
                 q < s.out[1] && q * s.stride[1] <= across + s.padding[1]; q++)
                sum += above[r * s.out[1] + q] * (1 / (float)(s.window[0] * s.window[1]));
        dx[e] = sum;
    }
}

void rm_avg_pool_forward_cuda(const remat_call *call) {
    rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(average, count, call->queue, s, count, (const float *)call->x[0].data, (float *)call->y.data);
}

void rm_avg_pool_backward_cuda(const remat_call *call) {
    rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->x[0].desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(spread, count, call->queue, s, count, (const float *)call->dy.data, (float *)call->dx[0].data);
}

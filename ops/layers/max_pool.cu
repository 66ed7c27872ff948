/* max_pool.cu: the CUDA kernels of the op `max_pool` (max_pool.c): a thread per window, and in backward a thread per
 * element of dx, which visits all windows that cover it. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/layers/pool.h"
}

/* The index of a window's maximum, the first if there are several; NaN counts as larger than any number. */
static __device__ int64_t largest(const rm_pool_shape *s, const float *plane, int64_t r, int64_t q) {
    rm_pool_window w = rm_pool_window_at(s, r, q);
    int64_t best = w.y[0] * s->in[1] + w.x[0];
    for (int64_t y = w.y[0]; y < w.y[1]; y++)
        for (int64_t x = w.x[0]; x < w.x[1]; x++) {
            float value = plane[y * s->in[1] + x];
            if (value > plane[best] || value != value) best = y * s->in[1] + x;
        }
    return best;
}

static __global__ void take_largest(rm_pool_shape s, int64_t count, const float *x, float *y) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.out[1]), q = e - row * s.out[1], plane = rm_row_of(row, s.out[0]);
        const float *from = x + plane * s.in[0] * s.in[1];
        y[e] = from[largest(&s, from, row - plane * s.out[0], q)];
    }
}

static __global__ void give_to_largest(rm_pool_shape s, int64_t count, const float *x, const float *dy, float *dx) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.in[1]), across = e - row * s.in[1], plane = rm_row_of(row, s.in[0]);
        int64_t down = row - plane * s.in[0], place = down * s.in[1] + across;
        const float *from = x + plane * s.in[0] * s.in[1], *above = dy + plane * s.out[0] * s.out[1];
        float sum = 0;
        for (int64_t r = rm_pool_first_over(&s, 0, down); r < s.out[0] && r * s.stride[0] <= down + s.padding[0]; r++)
            for (int64_t q = rm_pool_first_over(&s, 1, across);
                 q < s.out[1] && q * s.stride[1] <= across + s.padding[1]; q++)
                if (largest(&s, from, r, q) == place) sum += above[r * s.out[1] + q];
        dx[e] = sum;
    }
}

void rm_max_pool_forward_cuda(const remat_call *call) {
    rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(take_largest, count, call->queue, s, count, (const float *)call->x[0].data, (float *)call->y.data);
}

void rm_max_pool_backward_cuda(const remat_call *call) {
    rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->x[0].desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(give_to_largest, count, call->queue, s, count, (const float *)call->x[0].data,
                   (const float *)call->dy.data, (float *)call->dx[0].data);
}

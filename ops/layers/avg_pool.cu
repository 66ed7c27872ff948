/* avg_pool.cu: the CUDA kernels of the op `avg_pool` (avg_pool.c). Windows of 2 x 2 side by side: a thread for two windows
 * (pool.cuh). Others: a thread per window, and per element of dx. */
#include "ops/layers/pool.cuh"

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

static __global__ void average_halves(rm_pool_shape s, int64_t pairs, const float *x, float *y) {
    RM_EACH(e, pairs) {
        const rm_pool_pair p = rm_pool_pair_at(s, e);
        const rm_pool_pixels pixels = rm_pool_load(s, p, x);
        RM_UNROLL for (int window = 0; window < 2; window++) {
            const int64_t at = rm_pool_window_of(s, p, window);
            float sum = 0;
            RM_UNROLL for (int k = 0; k < 4; k++) sum += rm_pool_pixel(pixels, window, k);
            if (at >= 0) y[at] = sum * (1 / 4.0f);
        }
    }
}

static __global__ void spread_halves(rm_pool_shape s, int64_t pairs, const float *dy, float *dx) {
    RM_EACH(e, pairs) {
        const rm_pool_pair p = rm_pool_pair_at(s, e);
        rm_pool_pixels pixels;
        RM_UNROLL for (int window = 0; window < 2; window++) {
            const int64_t at = rm_pool_window_of(s, p, window);
            const float d = at < 0 ? 0 : 0 + dy[at] * (1 / 4.0f);
            RM_UNROLL for (int k = 0; k < 4; k++) rm_pool_pixel(pixels, window, k) = d;
        }
        rm_pool_store(s, p, dx, pixels);
    }
}

void rm_avg_pool_forward_cuda(const remat_call *call) {
    rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->y.desc);
    const float *x = (const float *)call->x[0].data;
    if (rm_pool_halves(s))
        RM_LAUNCH_EACH(average_halves, rm_pool_pairs(s), call->queue, s, rm_pool_pairs(s), x, (float *)call->y.data);
    else
        RM_LAUNCH_EACH(average, count, call->queue, s, count, x, (float *)call->y.data);
}

void rm_avg_pool_backward_cuda(const remat_call *call) {
    rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->x[0].desc);
    const float *dy = (const float *)call->dy.data;
    float *dx = (float *)call->dx[0].data;
    if (!dx) return;
    if (rm_pool_halves(s))
        RM_LAUNCH_EACH(spread_halves, rm_pool_pairs(s), call->queue, s, rm_pool_pairs(s), dy, dx);
    else
        RM_LAUNCH_EACH(spread, count, call->queue, s, count, dy, dx);
}

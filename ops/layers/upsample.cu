/* upsample.cu: the CUDA kernels of the op `upsample` (upsample.c): a thread per element of y, and of dx. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/layers/upsample.h"
}

static __global__ void enlarge(rm_upsample_shape s, int64_t count, const float *x, float *y) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.out[1]), plane = rm_row_of(row, s.out[0]);
        rm_upsample_source down = rm_upsample_source_of(&s, 0, row - plane * s.out[0]);
        rm_upsample_source across = rm_upsample_source_of(&s, 1, e - row * s.out[1]);
        const float *low = x + (plane * s.in[0] + down.low) * s.in[1], *high = x + (plane * s.in[0] + down.high) * s.in[1];
        float above = (1 - across.part) * low[across.low] + across.part * low[across.high];
        float below = (1 - across.part) * high[across.low] + across.part * high[across.high];
        y[e] = (1 - down.part) * above + down.part * below;
    }
}

static __global__ void gather(rm_upsample_shape s, int64_t count, const float *dy, float *dx) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.in[1]), j = e - row * s.in[1], plane = rm_row_of(row, s.in[0]), i = row - plane * s.in[0];
        const float *above = dy + plane * s.out[0] * s.out[1];
        float sum = 0;
        for (int64_t r = rm_upsample_first(&s, 0, i); r < rm_upsample_end(&s, 0, i); r++) {
            float share = rm_upsample_share(&s, 0, r, i), of_row = 0;
            if (share == 0) continue;
            for (int64_t q = rm_upsample_first(&s, 1, j); q < rm_upsample_end(&s, 1, j); q++)
                of_row += rm_upsample_share(&s, 1, q, j) * above[r * s.out[1] + q];
            sum += share * of_row;
        }
        dx[e] = sum;
    }
}

void rm_upsample_forward_cuda(const remat_call *call) {
    rm_upsample_shape s = rm_upsample_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(enlarge, count, call->queue, s, count, (const float *)call->x[0].data, (float *)call->y.data);
}

void rm_upsample_backward_cuda(const remat_call *call) {
    rm_upsample_shape s = rm_upsample_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->x[0].desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(gather, count, call->queue, s, count, (const float *)call->dy.data, (float *)call->dx[0].data);
}

/* pad.cu: the CUDA kernels of the op `pad` (pad.c): a thread per element written. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/layout/pad.h"
}

static __global__ void surround(rm_pad_shape s, int64_t count, const float *x, float *y) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.out[1]), j = e - row * s.out[1] - s.before[1];
        int64_t plane = rm_row_of(row, s.out[0]), i = row - plane * s.out[0] - s.before[0];
        bool inside = i >= 0 && i < s.in[0] && j >= 0 && j < s.in[1];
        y[e] = inside ? x[(plane * s.in[0] + i) * s.in[1] + j] : 0;
    }
}

static __global__ void cut_out(rm_pad_shape s, int64_t count, const float *dy, float *dx) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.in[1]), j = e - row * s.in[1] + s.before[1];
        int64_t plane = rm_row_of(row, s.in[0]), i = row - plane * s.in[0] + s.before[0];
        dx[e] = dy[(plane * s.out[0] + i) * s.out[1] + j];
    }
}

void rm_pad_forward_cuda(const remat_call *call) {
    int64_t count = rm_desc_count(&call->y.desc);
    RM_LAUNCH_EACH(surround, count, call->queue, rm_pad_shape_of(&call->x[0].desc, call->attr), count,
                   (const float *)call->x[0].data, (float *)call->y.data);
}

void rm_pad_backward_cuda(const remat_call *call) {
    int64_t count = rm_desc_count(&call->x[0].desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_EACH(cut_out, count, call->queue, rm_pad_shape_of(&call->x[0].desc, call->attr), count,
                   (const float *)call->dy.data, (float *)call->dx[0].data);
}

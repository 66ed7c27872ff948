/* transpose.cu: the CUDA kernels of the op `transpose` (transpose.c): a thread per element written. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/layout/transpose.h"
}

/* s: the shape of `from` */
static __global__ void turn(rm_transpose_shape s, int64_t count, const float *from, float *to) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.inner), k = e - row * s.inner;
        int64_t up = rm_row_of(row, s.one), a = row - up * s.one;
        int64_t higher = rm_row_of(up, s.middle), m = up - higher * s.middle;
        int64_t n = rm_row_of(higher, s.other), b = higher - n * s.other;
        to[e] = from[(((n * s.one + a) * s.middle + m) * s.other + b) * s.inner + k];
    }
}

static void launch(const remat_call *call, const remat_desc *desc, const void *from, void *to) {
    int64_t count = rm_desc_count(desc);
    if (to) RM_LAUNCH_EACH(turn, count, call->queue, rm_transpose_shape_of(desc, call->attr), count, (const float *)from, (float *)to);
}

void rm_transpose_forward_cuda(const remat_call *call) { launch(call, &call->x[0].desc, call->x[0].data, call->y.data); }
void rm_transpose_backward_cuda(const remat_call *call) { launch(call, &call->dy.desc, call->dy.data, call->dx[0].data); }

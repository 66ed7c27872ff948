/* concat.cu: the CUDA kernel of the op `concat` (concat.c): copies columns, with one launch per input. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/layout/concat.h"
}

/* n elements in rows of `width`; rows of `from` and `to` start from_ld and to_ld elements apart. */
static __global__ void copy(int64_t n, int64_t width, const float *from, int64_t from_ld, float *to, int64_t to_ld) {
    RM_EACH(i, n) {
        int64_t r = rm_row_of(i, width);
        to[r * to_ld + i - r * width] = from[r * from_ld + i - r * width];
    }
}

void rm_concat_forward_cuda(const remat_call *call) {
    int64_t rows = rm_concat_rows(&call->y.desc, call->attr), wide = rm_desc_count(&call->y.desc) / rows, at = 0;
    for (int i = 0; i < RM_CONCAT_MOST; i++) {
        if (call->x[i].desc.rank < 0) continue;
        int64_t width = rm_desc_count(&call->x[i].desc) / rows, n = rows * width;
        RM_LAUNCH_EACH(copy, n, call->queue, n, width, (const float *)call->x[i].data, width,
                       (float *)call->y.data + at, wide);
        at += width;
    }
}

void rm_concat_backward_cuda(const remat_call *call) {
    int64_t rows = rm_concat_rows(&call->dy.desc, call->attr), wide = rm_desc_count(&call->dy.desc) / rows, at = 0;
    for (int i = 0; i < RM_CONCAT_MOST; i++) {
        if (call->x[i].desc.rank < 0) continue;
        int64_t width = rm_desc_count(&call->x[i].desc) / rows, n = rows * width;
        if (call->dx[i].data)
            RM_LAUNCH_EACH(copy, n, call->queue, n, width, (const float *)call->dy.data + at, wide,
                           (float *)call->dx[i].data, width);
        at += width;
    }
}

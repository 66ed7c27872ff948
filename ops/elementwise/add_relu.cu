/* add_relu.cu: the CUDA kernels of the op `add_relu` (add_relu.c): a thread for four elements. */
#include "ops/cuda/fours.cuh"

#include "ops/elementwise/activation.h"

static __global__ void forward(int64_t n, const float *a, const float *b, float *y) {
    rm_map_two(n, a, b, y, [](int64_t, float v, float w) { return rm_relu(v + w); });
}

/* db: NULL, or the other gradient, which is the same. */
static __global__ void backward(int64_t n, const float *dy, const float *y, float *da, float *db) {
    RM_EACH_FOUR(i, n) {
        rm_four d = rm_load_four(dy + i, n - i);
        const rm_four kept = rm_load_four(y + i, n - i);
        RM_UNROLL for (int k = 0; k < 4; k++) d.v[k] = rm_relu_backward(d.v[k], kept.v[k]);
        rm_store_four(da + i, n - i, d);
        if (db) rm_store_four(db + i, n - i, d);
    }
}

void rm_add_relu_forward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->y.desc);
    RM_LAUNCH_FOURS(forward, n, call->queue, n, (const float *)call->x[0].data, (const float *)call->x[1].data,
                    (float *)call->y.data);
}

void rm_add_relu_backward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->dy.desc);
    float *da = (float *)call->dx[0].data, *db = (float *)call->dx[1].data;
    if (!da) da = db, db = NULL;
    if (da)
        RM_LAUNCH_FOURS(backward, n, call->queue, n, (const float *)call->dy.data, (const float *)call->y.data, da, db);
}

/* embedding.cu: the CUDA kernels of the op `embedding` (embedding.c). */
#include "ops/cuda/scatter.cuh"

static __global__ void gather(int64_t n, int64_t c, const int32_t *token, const float *weight, float *y) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, c);
        y[i] = weight[token[row] * c + i - row * c];
    }
}

void rm_embedding_forward_cuda(const remat_call *call) {
    int64_t c = call->x[1].desc.dim[1], n = rm_desc_count(&call->x[0].desc) * c;
    RM_LAUNCH_EACH(gather, n, call->queue, n, c, (const int32_t *)call->x[0].data, (const float *)call->x[1].data,
                   (float *)call->y.data);
}

void rm_embedding_backward_cuda(const remat_call *call) {
    rm_scatter s;
    if (!call->dx[1].data) return;
    s.rows = rm_desc_count(&call->x[0].desc), s.v = call->x[1].desc.dim[0];
    s.columns = s.ld = call->x[1].desc.dim[1], s.turn = 0;
    rm_launch_scatter(call->queue, s, (const int32_t *)call->x[0].data, (const float *)call->dy.data,
                      (float *)call->dx[1].data);
}

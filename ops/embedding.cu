/* embedding.cu: the CUDA kernels of the op `embedding` (embedding.c). */
#include "ops/kernel.cuh"

static __global__ void gather(int64_t n, int64_t c, const int32_t *token, const float *weight, float *y) {
    RM_EACH(i, n) y[i] = weight[token[i / c] * c + i % c];
}

/* dweight[token[r],:] += dy[r,:], rows in order. A token may occur in many rows, so blocks share out the vocabulary and
 * columns, not rows: a block looks through all tokens for its `group` of the vocabulary, and a thread has one column. */
static __global__ void scatter(int64_t rows, int64_t c, int64_t v, int64_t group, const int32_t *token, const float *dy,
                               float *dweight) {
    int64_t tiles = (c + blockDim.x - 1) / blockDim.x;
    int64_t column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    int64_t from = blockIdx.x / tiles * group, to = from + group < v ? from + group : v;
    if (column >= c) return;
    for (int64_t r = 0; r < rows; r++)
        if (token[r] >= from && token[r] < to) dweight[token[r] * c + column] += dy[r * c + column];
}

void rm_embedding_forward_cuda(const rm_call *call) {
    int64_t c = call->x[1].desc.dim[1], n = rm_desc_count(&call->x[0].desc) * c;
    RM_LAUNCH_EACH(gather, n, call->queue, n, c, (const int32_t *)call->x[0].data, (const float *)call->x[1].data,
                   (float *)call->y.data);
}

void rm_embedding_backward_cuda(const rm_call *call) {
    enum { THREADS = 128, GROUPS = 512 };
    int64_t rows = rm_desc_count(&call->x[0].desc), v = call->x[1].desc.dim[0], c = call->x[1].desc.dim[1];
    int64_t group = rm_blocks_of(v, GROUPS);
    if (!call->dx[1].data) return;
    RM_LAUNCH(scatter, rm_blocks_of(v, group) * rm_blocks_of(c, THREADS), THREADS, call->queue, rows, c, v, group,
              (const int32_t *)call->x[0].data, (const float *)call->dy.data, (float *)call->dx[1].data);
}

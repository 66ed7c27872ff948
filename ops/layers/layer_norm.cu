/* layer_norm.cu: the CUDA kernels of the op `layer_norm` (layer_norm.c): norm.cuh's, with a gain and a bias for each element of a
 * row. `bias` may be NULL. Backward reads rows of up to 4,096 elements once for all gradients (norm.h), longer ones twice. */
#include "ops/layers/norm.cuh"

enum { X, GAIN, BIAS };

struct vectors_of_row {
    int64_t c;
    const float *gains, *biases;
    __device__ rm_four gain(int64_t, int64_t i) const { return rm_load_four(gains + i, c - i); }
    __device__ rm_four bias(int64_t, int64_t i) const { return biases ? rm_load_four(biases + i, c - i) : rm_four{}; }
    __device__ int64_t row_of(int64_t outer, int64_t) const { return outer; }
};

static vectors_of_row vectors_of(const remat_call *call, int64_t c) {
    return {c, (const float *)call->x[GAIN].data, (const float *)call->x[BIAS].data};
}

void rm_layer_norm_forward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->x[X].desc;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    RM_LAUNCH_ROWS(rm_norm_forward, rows, c, call->queue, vectors_of(call, c), rows, c,
                   ((const rm_layer_norm_attr *)call->attr)->epsilon, (const float *)call->x[X].data,
                   (float *)call->y.data, (rm_norm_facts *)call->aux);
}

void rm_layer_norm_backward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->dy.desc;
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    const rm_norm_facts *facts = (const rm_norm_facts *)call->aux;
    float *dx = (float *)call->dx[X].data, *dgain = (float *)call->dx[GAIN].data;
    float *dbias = (float *)call->dx[BIAS].data;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    const vectors_of_row v = vectors_of(call, c);
    if ((dgain || dbias) && c <= RM_NORM_COLUMNS) {
        float *partial = (float *)call->scratch;
        RM_LAUNCH_NORM_ROWS(rm_norm_backward_with_sums, rows, c, call->queue, v, rows, c, x, dy, facts, dx, partial);
        rm_join_norm_sums(call->queue, partial, rows, c, 2, 0, dgain);
        rm_join_norm_sums(call->queue, partial, rows, c, 2, 1, dbias);
        return;
    }
    if (dx) RM_LAUNCH_ROWS(rm_norm_backward, rows, c, call->queue, v, rows, c, x, dy, facts, dx);
    if (dgain || dbias)
        rm_launch_channels(call->queue, rm_norm_vector_gradients<vectors_of_row>{v, x, dy, facts, dgain, dbias}, rows,
                           c, 1, c);
}

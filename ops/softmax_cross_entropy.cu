/* softmax_cross_entropy.cu: the CUDA kernels of the op `softmax_cross_entropy` (softmax_cross_entropy.c), whose exp they
 * share (exp.h). Forward: a warp a row, a block BLOCK rows, whose losses are added in order. Logits are read three times,
 * and stored nowhere. */
#include "ops/reduce.cuh"

#include "ops/exp.h"

enum { LOGITS, TARGETS, BLOCK = 16 }; /* BLOCK: softmax_cross_entropy.c's, which sized the scratch */

/* Per row, in aux. p[v] = exp(x[v] - largest) / sum. */
typedef struct {
    float largest, sum;
} row_facts;

/* One row's loss in nats, for all lanes of the warp alike; x (V). */
static __device__ double row_loss(const float *x, int64_t v, int32_t target, double smoothing, row_facts *facts) {
    int64_t lane = threadIdx.x % RM_WARP;
    float largest = x[0];
    double sum = 0, below = 0;
    for (int64_t i = lane; i < v; i += RM_WARP) largest = x[i] > largest ? x[i] : largest;
    largest = rm_warp_largest(largest);
    for (int64_t i = lane; i < v; i += RM_WARP) sum += rm_exp_nonpositive(x[i] - largest);
    sum = rm_warp_sum(sum);
    double loss = log(sum) + (1 - smoothing) * ((double)largest - x[target]);
    if (smoothing > 0) { /* none of largest - x is negative: nothing is lost to cancellation */
        for (int64_t i = lane; i < v; i += RM_WARP) below += largest - x[i];
        loss += smoothing / (double)v * rm_warp_sum(below);
    }
    if (facts && lane == 0) *facts = {largest, (float)sum};
    return loss;
}

static __global__ void forward(int64_t rows, int64_t v, double smoothing, const float *x, const int32_t *target,
                               row_facts *facts, double *partial) {
    __shared__ double loss[BLOCK];
    int64_t warp = threadIdx.x / RM_WARP, r = (int64_t)blockIdx.x * BLOCK + warp;
    double mine = 0, sum = 0;
    if (r < rows) mine = row_loss(x + r * v, v, target[r], smoothing, facts ? facts + r : NULL);
    if (threadIdx.x % RM_WARP == 0) loss[warp] = mine;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int k = 0; k < BLOCK; k++) sum += loss[k];
    partial[blockIdx.x] = sum;
}

/* loss[r] = log(sum over i of exp(x[i])) - sum over i of q[i] x[i], q = (1 - e) [target] + e/V */
static __global__ void backward(int64_t n, int64_t v, double total, double e, const float *x, const int32_t *target,
                                const row_facts *facts, const float *dy, float *dx) {
    double scale = *dy / total;
    float to_target = (float)(scale * (1 - e)), to_all = (float)(scale * e / (double)v);
    RM_EACH(i, n) {
        int64_t r = i / v;
        float slope = rm_exp_nonpositive(x[i] - facts[r].largest) * (float)(scale / facts[r].sum) - to_all;
        dx[i] = i % v == target[r] ? slope - to_target : slope;
    }
}

static double smoothing_of(const rm_call *call) {
    const rm_cross_entropy_attr *a = (const rm_cross_entropy_attr *)call->attr;
    return a && call->training ? a->smoothing : 0;
}

void rm_softmax_cross_entropy_forward_cuda(const rm_call *call) {
    const rm_desc *shape = &call->x[LOGITS].desc;
    int64_t rows = rm_desc_rows(shape), v = rm_desc_last(shape), blocks = rm_blocks_of(rows, BLOCK);
    double total = rm_call_total(call, shape, rows), *partial = (double *)call->scratch; /* (blocks) */
    RM_LAUNCH_TOGETHER(forward, blocks, BLOCK * RM_WARP, call->queue, rows, v, smoothing_of(call),
                       (const float *)call->x[LOGITS].data, (const int32_t *)call->x[TARGETS].data,
                       (row_facts *)call->aux, partial);
    RM_LAUNCH_TOGETHER(rm_add_partials, 1, RM_SUM_THREADS, call->queue, partial, blocks, total, (float *)call->y.data);
}

void rm_softmax_cross_entropy_backward_cuda(const rm_call *call) {
    const rm_desc *shape = &call->x[LOGITS].desc;
    int64_t rows = rm_desc_rows(shape), v = rm_desc_last(shape), n = rows * v;
    double total = rm_call_total(call, shape, rows);
    if (!call->dx[LOGITS].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, v, total, smoothing_of(call), (const float *)call->x[LOGITS].data,
                   (const int32_t *)call->x[TARGETS].data, (const row_facts *)call->aux, (const float *)call->dy.data,
                   (float *)call->dx[LOGITS].data);
}

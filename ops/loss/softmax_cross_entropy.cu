/* softmax_cross_entropy.cu: the CUDA kernels of the op `softmax_cross_entropy` (softmax_cross_entropy.c), whose exp they
 * share (exp.h). Forward: a warp a row, a block BLOCK rows, whose losses are added in order. Logits are read three times,
 * and stored nowhere. */
#include "ops/cuda/reduce.cuh"

#include "ops/math/exp.h"

enum { LOGITS, TARGETS, BLOCK = 16 }; /* BLOCK: softmax_cross_entropy.c's, which sized the scratch */

/* Per row, in aux. p[v] = exp(x[v] - largest) inverse: the sum is divided by once for a row, not for each logit. */
typedef struct {
    float largest, inverse;
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
    if (facts && lane == 0) *facts = {largest, (float)(1 / sum)};
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

/* Of the logits: what p, the target and every logit are multiplied by, before dy. */
typedef struct {
    float p, to_target, to_all;
} shares;

/* loss[r] = log(sum over i of exp(x[i])) - sum over i of q[i] x[i], q = (1 - e) [target] + e/V. In float alone: a product more
 * than with the divisions in double, and so half a unit in the last place, where many cards make 64 products in the time of one
 * in double. */
static __global__ void backward(int64_t n, int64_t v, shares s, const float *__restrict__ x,
                                const int32_t *__restrict__ target, const row_facts *__restrict__ facts,
                                const float *__restrict__ dy, float *__restrict__ dx) {
    float all = *dy * s.p, to_target = *dy * s.to_target, to_all = *dy * s.to_all;
    RM_EACH(i, n) {
        int64_t r = rm_row_of(i, v);
        row_facts row = facts[r];
        float slope = rm_exp_nonpositive(x[i] - row.largest) * (all * row.inverse) - to_all;
        dx[i] = i - r * v == target[r] ? slope - to_target : slope;
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
    double total = rm_call_total(call, shape, rows), e = smoothing_of(call);
    shares s = {(float)(1 / total), (float)((1 - e) / total), (float)(e / (double)v / total)};
    if (!call->dx[LOGITS].data) return;
    RM_LAUNCH_EACH(backward, n, call->queue, n, v, s, (const float *)call->x[LOGITS].data,
                   (const int32_t *)call->x[TARGETS].data, (const row_facts *)call->aux, (const float *)call->dy.data,
                   (float *)call->dx[LOGITS].data);
}

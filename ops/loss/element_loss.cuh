/* element_loss.cuh: the CUDA kernels of the losses that element_loss.h describes; a file that includes this says which by VALUE,
 * SLOPE and TARGET_SLOPE. A block sums BLOCK elements in double; then the blocks' sums are added, in an order that follows from the shape. */
#include "ops/cuda/reduce.cuh"

#include "ops/loss/element_loss_math.h"

enum { X, TARGET, BLOCK = 4096 }; /* BLOCK: element_loss.h's, which sized the scratch */

static __global__ void forward(int64_t n, double delta, const float *x, const float *target, double *partial) {
    int64_t from = (int64_t)blockIdx.x * BLOCK, to = from + BLOCK < n ? from + BLOCK : n;
    double sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) sum += VALUE((double)x[i], (double)target[i], delta);
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

static __global__ void backward(int64_t n, double total, float delta, const float *x, const float *target,
                                const float *dy, float *dx, float *dtarget) {
    float factor = (float)(*dy / total);
    RM_EACH(i, n) { /* y = sum over i of value(x[i], target[i]) / total */
        if (dx) dx[i] = SLOPE(x[i], target[i], delta) * factor;
        if (dtarget) dtarget[i] = TARGET_SLOPE(x[i], target[i], delta) * factor;
    }
}

static double delta_of(const rm_call *call) { return call->attr ? ((const rm_huber_attr *)call->attr)->delta : 1; }

static void launch_forward(const rm_call *call) {
    int64_t n = rm_desc_count(&call->x[X].desc), blocks = rm_blocks_of(n, BLOCK);
    double total = rm_call_total(call, &call->x[X].desc, n), *partial = (double *)call->scratch; /* (blocks) */
    RM_LAUNCH_TOGETHER(forward, blocks, RM_SUM_THREADS, call->queue, n, delta_of(call), (const float *)call->x[X].data,
                       (const float *)call->x[TARGET].data, partial);
    RM_LAUNCH_TOGETHER(rm_add_partials, 1, RM_SUM_THREADS, call->queue, partial, blocks, total, (float *)call->y.data);
}

static void launch_backward(const rm_call *call) {
    int64_t n = rm_desc_count(&call->x[X].desc);
    double total = rm_call_total(call, &call->x[X].desc, n);
    RM_LAUNCH_EACH(backward, n, call->queue, n, total, (float)delta_of(call), (const float *)call->x[X].data,
                   (const float *)call->x[TARGET].data, (const float *)call->dy.data, (float *)call->dx[X].data,
                   (float *)call->dx[TARGET].data);
}

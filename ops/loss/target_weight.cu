/* target_weight.cu: the CUDA kernels of the op `target_weight` (target_weight.c). A block sums BLOCK targets in double;
 * then the sums of the blocks are added in an order that depends on the shape alone. */
#include "ops/cuda/reduce.cuh"

#include "ops/loss/class_weight.h"

enum { TARGETS, WEIGHTS, BLOCK = 4096 }; /* BLOCK: target_weight.c's, which sized the scratch */

static __global__ void forward(int64_t n, rm_counted c, const int32_t *target, const float *weight, double *partial) {
    int64_t from = (int64_t)blockIdx.x * BLOCK, to = from + BLOCK < n ? from + BLOCK : n;
    double sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) sum += rm_class_weight(c, weight, target[i]);
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* A thread per class; each reads the targets in order. */
static __global__ void backward(int64_t n, rm_counted c, const int32_t *target, const float *dy, float *dweight) {
    RM_EACH(k, c.classes) {
        double count = 0;
        for (int64_t i = 0; i < n; i++) count += target[i] == k && rm_class_weight(c, NULL, target[i]) > 0;
        dweight[k] += (float)(*dy * count);
    }
}

static rm_counted counted(const remat_call *call) {
    const rm_target_weight_attr *a = (const rm_target_weight_attr *)call->attr;
    return {a->classes, a->ignored, true};
}

void rm_target_weight_forward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[TARGETS].desc), blocks = rm_blocks_of(n, BLOCK);
    double *partial = (double *)call->scratch; /* (blocks) */
    RM_LAUNCH_TOGETHER(forward, blocks, RM_SUM_THREADS, call->queue, n, counted(call),
                       (const int32_t *)call->x[TARGETS].data, (const float *)call->x[WEIGHTS].data, partial);
    RM_LAUNCH_TOGETHER(rm_add_partials, 1, RM_SUM_THREADS, call->queue, partial, blocks, 1.0, (float *)call->y.data);
}

void rm_target_weight_backward_cuda(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[TARGETS].desc);
    rm_counted c = counted(call);
    if (!call->dx[WEIGHTS].data) return;
    RM_LAUNCH_EACH(backward, c.classes, call->queue, n, c, (const int32_t *)call->x[TARGETS].data,
                   (const float *)call->dy.data, (float *)call->dx[WEIGHTS].data);
}

/* element_loss.cuh: CUDA kernels of the losses of element_loss.h. The including file selects the loss by VALUE,
 * SLOPE and TARGET_SLOPE. A block sums BLOCK elements in double; then the sums of the blocks are added in an order that
 * depends on the shape alone. */
#include "ops/cuda/fours.cuh"

#include "ops/loss/element_loss_math.h"

enum { X, TARGET, PADDING, TOTAL, BLOCK = 4096 }; /* BLOCK: element_loss.h's, which sized the scratch */

/* Which rows of `v` elements count, and the divisor of the sum (element_loss.h). */
typedef struct {
    const int32_t *padding; /* (rows); NULL: all `elements` count */
    const float *total;     /* () */
    int64_t v;
    double elements;
} counting;

static __device__ inline bool counts(const counting &c, int64_t i) {
    return !c.padding || !c.padding[rm_row_of(i, c.v)];
}
static __device__ inline double divided(const counting &c, double sum) {
    if (!c.total) return sum / c.elements;
    return *c.total != 0 ? sum / (*c.total * (double)c.v) : 0;
}

static __global__ void forward(int64_t n, counting c, double delta, const float *x, const float *target,
                               double *partial) {
    int64_t from = (int64_t)blockIdx.x * BLOCK, to = from + BLOCK < n ? from + BLOCK : n;
    double sum = 0;
    for (int64_t i = from + 4 * threadIdx.x; i < to; i += 4 * RM_SUM_THREADS) {
        const rm_four a = rm_load_four(x + i, to - i), b = rm_load_four(target + i, to - i);
        RM_UNROLL for (int k = 0; k < 4; k++) if (i + k < to && counts(c, i + k)) sum +=
            VALUE((double)a.v[k], (double)b.v[k], delta);
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = divided(c, sum);
}

static __global__ void backward(int64_t n, counting c, float delta, const float *x, const float *target,
                                const float *dy, float *dx, float *dtarget) {
    float factor = (float)divided(c, *dy);
    RM_EACH_FOUR(i, n) { /* y = sum over i that count of value(x[i], target[i]) / their number */
        const rm_four a = rm_load_four(x + i, n - i), b = rm_load_four(target + i, n - i);
        rm_four da = {}, db = {};
        RM_UNROLL for (int k = 0; k < 4; k++) if (i + k < n && counts(c, i + k)) {
            if (dx) da.v[k] = SLOPE(a.v[k], b.v[k], delta) * factor;
            if (dtarget) db.v[k] = TARGET_SLOPE(a.v[k], b.v[k], delta) * factor;
        }
        if (dx) rm_store_four(dx + i, n - i, da);
        if (dtarget) rm_store_four(dtarget + i, n - i, db);
    }
}

/* Rarely needed, so simple: one block reads all elements in a fixed order. */
static __global__ void total_gradient(int64_t n, counting c, double delta, const float *x, const float *target,
                                      const float *dy, float *dtotal) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        if (counts(c, i)) sum += VALUE((double)x[i], (double)target[i], delta);
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0 && *c.total != 0) *dtotal -= (float)(divided(c, sum * *dy) / *c.total);
}

static double delta_of(const remat_call *call) { return call->attr ? ((const rm_huber_attr *)call->attr)->delta : 1; }

static counting counting_of(const remat_call *call) {
    const remat_desc *shape = &call->x[X].desc;
    return {(const int32_t *)call->x[PADDING].data, (const float *)call->x[TOTAL].data, rm_desc_last(shape),
            rm_call_total(call, shape, rm_desc_count(shape))};
}

static void launch_forward(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[X].desc), blocks = rm_blocks_of(n, BLOCK);
    double *partial = (double *)call->scratch; /* (blocks) */
    RM_LAUNCH_TOGETHER(forward, blocks, RM_SUM_THREADS, call->queue, n, counting_of(call), delta_of(call),
                       (const float *)call->x[X].data, (const float *)call->x[TARGET].data, partial);
    RM_LAUNCH_TOGETHER(rm_add_partials, 1, RM_SUM_THREADS, call->queue, partial, blocks, 1.0, (float *)call->y.data);
}

static void launch_backward(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[X].desc);
    const float *x = (const float *)call->x[X].data, *target = (const float *)call->x[TARGET].data;
    const float *dy = (const float *)call->dy.data;
    float *dtotal = (float *)call->dx[TOTAL].data;
    if (dtotal)
        RM_LAUNCH_TOGETHER(total_gradient, 1, RM_SUM_THREADS, call->queue, n, counting_of(call), delta_of(call), x,
                           target, dy, dtotal);
    RM_LAUNCH_FOURS(backward, n, call->queue, n, counting_of(call), (float)delta_of(call), x, target, dy,
                    (float *)call->dx[X].data, (float *)call->dx[TARGET].data);
}

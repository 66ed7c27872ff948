/* dice.cu: the CUDA kernels of the op `dice` (dice.c). A block sums BLOCK pixels of one image, for one class after the
 * other; their sums are added in order. Backward has a thread per pixel. */
#include "ops/cuda/reduce.cuh"

#include "ops/loss/dice.h"
#include "ops/math/exp.h"

enum { LOGITS, TARGETS, BLOCK = 1024 /* dice.c's, which sized the scratch */, EACH = BLOCK / RM_SUM_THREADS };

typedef struct {
    float largest, inverse;
} row_facts;

static __device__ row_facts facts_of(const float *x, int64_t classes) {
    float largest = x[0], sum = 0;
    for (int64_t k = 1; k < classes; k++) largest = x[k] > largest ? x[k] : largest;
    for (int64_t k = 0; k < classes; k++) sum += rm_exp_nonpositive(x[k] - largest);
    return {largest, 1 / sum};
}

static __device__ inline float probability(const float *x, int64_t k, row_facts row) {
    return rm_exp_nonpositive(x[k] - row.largest) * row.inverse;
}

static __device__ inline bool counts(const rm_dice_shape &s, int32_t target) {
    return rm_class_weight(s.counted, NULL, target) != 0;
}

/* A block per block of pixels; partial (images,blocks,sets). */
static __global__ void sum_blocks(rm_dice_shape s, int64_t blocks, const float *logits, const int32_t *target,
                                  rm_overlap *partial) {
    const int64_t K = s.counted.classes, first = blockIdx.x / blocks * s.pixels, from = blockIdx.x % blocks * BLOCK;
    row_facts row[EACH];
    bool mine[EACH];
    for (int i = 0; i < EACH; i++) {
        int64_t pixel = from + threadIdx.x + i * RM_SUM_THREADS, r = first + pixel;
        mine[i] = pixel < s.pixels && counts(s, target[r]);
        if (mine[i]) row[i] = facts_of(logits + r * K, K);
    }
    for (int64_t set = 0; set < s.sets; set++) {
        rm_overlap sum = {0, 0};
        int64_t end = s.sets == 1 ? K : set + 1;
        for (int i = 0; i < EACH; i++) {
            int64_t r = first + from + threadIdx.x + i * RM_SUM_THREADS;
            for (int64_t k = set; mine[i] && k < end; k++)
                rm_overlap_add(&sum, probability(logits + r * K, k, row[i]), k == target[r]);
        }
        sum.both = rm_block_sum(sum.both);
        sum.either = rm_block_sum(sum.either);
        if (threadIdx.x == 0) partial[blockIdx.x * s.sets + set] = sum;
    }
}

/* A thread per image and set; sum (images,sets). */
static __global__ void join_blocks(rm_dice_shape s, int64_t blocks, const rm_overlap *partial, rm_overlap *sum) {
    RM_EACH(i, s.images * s.sets) {
        rm_overlap all = {0, 0};
        for (int64_t b = 0; b < blocks; b++)
            rm_overlap_join(&all, partial[(i / s.sets * blocks + b) * s.sets + i % s.sets]);
        sum[i] = all;
    }
}

/* One block. */
static __global__ void mean_loss(int64_t n, double divisor, const rm_overlap *sum, float *y) {
    double loss = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) loss += 1 - rm_overlap_dice(sum[i]);
    loss = rm_block_sum(loss);
    if (threadIdx.x == 0) *y = (float)(loss / divisor);
}

static __global__ void slopes(int64_t n, const rm_overlap *sum, rm_dice_slope *slope) {
    RM_EACH(i, n) slope[i] = rm_dice_slope_of(sum[i]);
}

static __global__ void backward(rm_dice_shape s, double divisor, const float *logits, const int32_t *target,
                                const rm_dice_slope *slope, const float *dy, float *dx) {
    const int64_t K = s.counted.classes;
    const float scale = (float)(-*dy / divisor);
    RM_EACH(r, s.images * s.pixels) {
        const float *x = logits + r * K;
        const rm_dice_slope *set = slope + r / s.pixels * s.sets;
        bool counted = counts(s, target[r]);
        int64_t is = counted ? target[r] : 0;
        row_facts row = facts_of(x, K);
        float mean = (float)set[rm_dice_set(&s, is)].of_target * probability(x, is, row);
        for (int64_t k = 0; k < K; k++) mean += (float)set[rm_dice_set(&s, k)].of_all * probability(x, k, row);
        for (int64_t k = 0; k < K; k++) {
            const rm_dice_slope one = set[rm_dice_set(&s, k)];
            float g = (float)(k == is ? one.of_target + one.of_all : one.of_all);
            dx[r * K + k] = counted ? scale * probability(x, k, row) * (g - mean) : 0;
        }
    }
}

/* Fills the sums (images,sets) at the start of the scratch; see dice.c. */
static rm_overlap *launch_sums(const remat_call *call, const rm_dice_shape &s) {
    int64_t blocks = rm_blocks_of(s.pixels, BLOCK), sets = s.images * s.sets;
    rm_overlap *sum = (rm_overlap *)call->scratch, *partial = sum + sets;
    RM_LAUNCH_TOGETHER(sum_blocks, s.images * blocks, RM_SUM_THREADS, call->queue, s, blocks,
                       (const float *)call->x[LOGITS].data, (const int32_t *)call->x[TARGETS].data, partial);
    RM_LAUNCH_EACH(join_blocks, sets, call->queue, s, blocks, partial, sum);
    return sum;
}

static double divisor_of(const remat_call *call, const rm_dice_shape &s) {
    return (double)s.sets * rm_call_total(call, &call->x[LOGITS].desc, s.images);
}

void rm_dice_forward_cuda(const remat_call *call) {
    const rm_dice_shape s = rm_dice_shape_of(&call->x[LOGITS].desc, call->attr);
    const rm_overlap *sum = launch_sums(call, s);
    RM_LAUNCH_TOGETHER(mean_loss, 1, RM_SUM_THREADS, call->queue, s.images * s.sets, divisor_of(call, s), sum,
                       (float *)call->y.data);
}

void rm_dice_backward_cuda(const remat_call *call) {
    const rm_dice_shape s = rm_dice_shape_of(&call->x[LOGITS].desc, call->attr);
    float *dx = (float *)call->dx[LOGITS].data;
    if (!dx) return;
    const rm_overlap *sum = launch_sums(call, s);
    rm_dice_slope *slope = (rm_dice_slope *)(sum + s.images * s.sets); /* over the partial sums */
    RM_LAUNCH_EACH(slopes, s.images * s.sets, call->queue, s.images * s.sets, sum, slope);
    RM_LAUNCH_EACH(backward, s.images * s.pixels, call->queue, s, divisor_of(call, s),
                   (const float *)call->x[LOGITS].data, (const int32_t *)call->x[TARGETS].data, slope,
                   (const float *)call->dy.data, dx);
}

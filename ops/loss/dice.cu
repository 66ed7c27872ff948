/* dice.cu: the CUDA kernels of the op `dice` (dice.c). A block sums BLOCK pixels of one image, for one class after the
 * other; their sums are added in order. Backward has a thread per pixel. With 2, 3 or 4 classes a thread reads its pixel
 * once, and holds it. */
#include "ops/cuda/fours.cuh"

#include "ops/loss/dice.h"
#include "ops/math/exp.h"

enum { LOGITS, TARGETS, BLOCK = 1024 /* dice.c's, which sized the scratch */, EACH = BLOCK / RM_SUM_THREADS };

/* The probabilities of a pixel's K classes. */
template <int K> struct softmax_of {
    float p[K];

    __device__ void read(const float *x, int64_t) {
        const rm_four four = rm_load_four(x, K);
        float largest = four.v[0], sum = 0;
        RM_UNROLL for (int k = 1; k < K; k++) largest = four.v[k] > largest ? four.v[k] : largest;
        RM_UNROLL for (int k = 0; k < K; k++) sum += p[k] = rm_exp_nonpositive(four.v[k] - largest);
        const float inverse = 1 / sum;
        RM_UNROLL for (int k = 0; k < K; k++) p[k] *= inverse;
    }
    /* f(k, probability of k) for from <= k < to */
    template <typename F> __device__ void each(int64_t from, int64_t to, F f) const {
        RM_UNROLL for (int k = 0; k < K; k++) if (from <= k && k < to) f(k, p[k]);
    }
    /* y[k] = f(k, probability of k) for all k */
    template <typename F> __device__ void map(float *y, F f) const {
        rm_four four = {};
        RM_UNROLL for (int k = 0; k < K; k++) four.v[k] = f(k, p[k]);
        rm_store_four(y, K, four);
    }
};

/* Any number of classes: they are read again each time. */
template <> struct softmax_of<0> {
    const float *x;
    int64_t classes;
    float largest, inverse;

    __device__ void read(const float *logits, int64_t K) {
        float sum = 0;
        x = logits, classes = K, largest = x[0];
        for (int64_t k = 1; k < K; k++) largest = x[k] > largest ? x[k] : largest;
        for (int64_t k = 0; k < K; k++) sum += rm_exp_nonpositive(x[k] - largest);
        inverse = 1 / sum;
    }
    template <typename F> __device__ void each(int64_t from, int64_t to, F f) const {
        for (int64_t k = from; k < to; k++) f(k, rm_exp_nonpositive(x[k] - largest) * inverse);
    }
    template <typename F> __device__ void map(float *y, F f) const {
        for (int64_t k = 0; k < classes; k++) y[k] = f(k, rm_exp_nonpositive(x[k] - largest) * inverse);
    }
};

/* f<K> where a pixel's K classes are held, else f<0> */
#define FOR_CLASSES(f, K) ((K) == 2 ? f<2> : (K) == 3 ? f<3> : (K) == 4 ? f<4> : f<0>)

static __device__ inline bool counts(const rm_dice_shape &s, int32_t target) {
    return rm_class_weight(s.counted, NULL, target) != 0;
}

/* A block per block of pixels; partial (images,blocks,sets). */
template <int HELD>
static __global__ void __launch_bounds__(RM_SUM_THREADS, 3) /* 80 registers */
    sum_blocks(rm_dice_shape s, int64_t blocks, const float *logits, const int32_t *target, rm_overlap *partial) {
    const int64_t K = s.counted.classes, first = blockIdx.x / blocks * s.pixels, from = blockIdx.x % blocks * BLOCK;
    softmax_of<HELD> pixel[EACH];
    int32_t is[EACH];
    bool mine[EACH];
    RM_UNROLL for (int i = 0; i < EACH; i++) {
        const int64_t at = from + threadIdx.x + i * RM_SUM_THREADS, r = first + at;
        is[i] = at < s.pixels ? target[r] : 0;
        mine[i] = at < s.pixels && counts(s, is[i]);
        if (mine[i]) pixel[i].read(logits + r * K, K);
    }
    for (int64_t set = 0; set < s.sets; set++) {
        rm_overlap sum = {0, 0};
        const int64_t end = s.sets == 1 ? K : set + 1;
        RM_UNROLL for (int i = 0; i < EACH; i++) {
            if (!mine[i]) continue;
            pixel[i].each(set, end, [&](int64_t k, float p) { rm_overlap_add(&sum, p, k == is[i]); });
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

template <int HELD>
static __global__ void backward(rm_dice_shape s, double divisor, const float *logits, const int32_t *target,
                                const rm_dice_slope *slope, const float *dy, float *dx) {
    const int64_t K = s.counted.classes;
    const float scale = (float)(-*dy / divisor);
    RM_EACH(r, s.images * s.pixels) {
        const rm_dice_slope *set = slope + rm_row_of(r, s.pixels) * s.sets;
        const bool counted = counts(s, target[r]);
        const int64_t is = counted ? target[r] : 0;
        softmax_of<HELD> pixel;
        float mean = 0;
        pixel.read(logits + r * K, K);
        pixel.each(is, is + 1, [&](int64_t k, float p) { mean = (float)set[rm_dice_set(&s, k)].of_target * p; });
        pixel.each(0, K, [&](int64_t k, float p) { mean += (float)set[rm_dice_set(&s, k)].of_all * p; });
        pixel.map(dx + r * K, [&](int64_t k, float p) {
            const rm_dice_slope one = set[rm_dice_set(&s, k)];
            const float g = (float)(k == is ? one.of_target + one.of_all : one.of_all);
            return counted ? scale * p * (g - mean) : 0;
        });
    }
}

/* Fills the sums (images,sets) at the start of the scratch; see dice.c. */
template <int HELD> static rm_overlap *launch_sums(const remat_call *call, const rm_dice_shape &s) {
    int64_t blocks = rm_blocks_of(s.pixels, BLOCK), sets = s.images * s.sets;
    rm_overlap *sum = (rm_overlap *)call->scratch, *partial = sum + sets;
    RM_LAUNCH_TOGETHER(sum_blocks<HELD>, s.images * blocks, RM_SUM_THREADS, call->queue, s, blocks,
                       (const float *)call->x[LOGITS].data, (const int32_t *)call->x[TARGETS].data, partial);
    RM_LAUNCH_EACH(join_blocks, sets, call->queue, s, blocks, partial, sum);
    return sum;
}

static double divisor_of(const remat_call *call, const rm_dice_shape &s) {
    return (double)s.sets * rm_call_total(call, &call->x[LOGITS].desc, s.images);
}

void rm_dice_forward_cuda(const remat_call *call) {
    const rm_dice_shape s = rm_dice_shape_of(&call->x[LOGITS].desc, call->attr);
    const rm_overlap *sum = FOR_CLASSES(launch_sums, s.counted.classes)(call, s);
    RM_LAUNCH_TOGETHER(mean_loss, 1, RM_SUM_THREADS, call->queue, s.images * s.sets, divisor_of(call, s), sum,
                       (float *)call->y.data);
}

template <int HELD> static void launch_backward(const remat_call *call, const rm_dice_shape &s) {
    const rm_overlap *sum = launch_sums<HELD>(call, s);
    rm_dice_slope *slope = (rm_dice_slope *)(sum + s.images * s.sets); /* over the partial sums */
    RM_LAUNCH_EACH(slopes, s.images * s.sets, call->queue, s.images * s.sets, sum, slope);
    RM_LAUNCH_EACH(backward<HELD>, s.images * s.pixels, call->queue, s, divisor_of(call, s),
                   (const float *)call->x[LOGITS].data, (const int32_t *)call->x[TARGETS].data, slope,
                   (const float *)call->dy.data, (float *)call->dx[LOGITS].data);
}

void rm_dice_backward_cuda(const remat_call *call) {
    const rm_dice_shape s = rm_dice_shape_of(&call->x[LOGITS].desc, call->attr);
    if (call->dx[LOGITS].data) FOR_CLASSES(launch_backward, s.counted.classes)(call, s);
}

/* softmax_cross_entropy.cu: the CUDA kernels of the op `softmax_cross_entropy` (softmax_cross_entropy.c), with the same
 * exp (exp.h). Forward: a warp or a block per row (fours.cuh); the losses of BLOCK rows are added in order. */
#include "ops/cuda/fours.cuh"

#include "ops/loss/class_weight.h"
#include "ops/math/exp.h"

enum { LOGITS, TARGETS, WEIGHTS, TOTAL, BLOCK = 16 }; /* BLOCK: softmax_cross_entropy.c's, which sized the scratch */

/* Of a row, in aux: p[v] = exp(x[v] - largest) inverse, so that there is one division per row instead of one per
 * logit. */
typedef struct {
    float largest, inverse;
} row_facts;

/* Weights of rows and classes (softmax_cross_entropy.c), and the divisor: total, or the number of rows if all count
 * equally. */
typedef struct {
    rm_counted counted;
    const float *weight, *total; /* (V), (); NULL: not given */
    double rows, to_target, to_each;
} weighing;

static __device__ inline bool counts(const weighing &w, int32_t target) {
    return rm_class_weight(w.counted, NULL, target) != 0;
}
static __device__ inline double weight_at(const weighing &w, int64_t i) { return w.weight ? w.weight[i] : 1; }

/* The loss of one row in nats, valid in all W threads; x (V). */
template <int W>
static __device__ double row_loss(const float *x, int64_t v, int32_t target, const weighing &w, row_facts *facts) {
    const rm_held<RM_ROW_FOURS> held = rm_hold<W, RM_ROW_FOURS>(x, v);
    float largest = x[0];
    double sum = 0, each = 0;
    rm_each_of_row<W>(held, x, v, [&](int64_t, float a) { largest = a > largest ? a : largest; });
    largest = rm_row_largest<W>(largest);
    rm_each_of_row<W>(held, x, v, [&](int64_t, float a) { sum += rm_exp_nonpositive(a - largest); });
    sum = rm_row_sum<W>(sum);
    if (facts && threadIdx.x % W == 0) *facts = {largest, (float)(1 / sum)};
    double log_sum = log(sum), loss = w.to_target * weight_at(w, target) * (log_sum + ((double)largest - x[target]));
    if (w.to_each > 0) { /* largest - x is never negative, so there is no cancellation */
        rm_each_of_row<W>(held, x, v, [&](int64_t i, float a) { each += weight_at(w, i) * (log_sum + (largest - a)); });
        loss += w.to_each * rm_row_sum<W>(each);
    }
    return loss;
}

static __device__ double divided(weighing w, double sum) {
    if (!w.total) return sum / w.rows;
    return *w.total != 0 ? sum / *w.total : 0;
}

/* BLOCK rows a block: a warp for each, or all threads for one after the other. */
template <int W>
static __global__ void __launch_bounds__(W == RM_WARP ? BLOCK * RM_WARP : W)
    forward(int64_t rows, int64_t v, weighing w, const float *x, const int32_t *target, row_facts *facts,
            double *partial) {
    __shared__ double loss[BLOCK];
    const int64_t first = W == RM_WARP ? threadIdx.x / RM_WARP : 0, last = W == RM_WARP ? first : BLOCK - 1;
    double sum = 0;
    for (int64_t k = first; k <= last; k++) {
        const int64_t r = (int64_t)blockIdx.x * BLOCK + k;
        double mine = 0;
        if (r < rows) {
            bool counted = counts(w, target[r]);
            mine = row_loss<W>(x + r * v, v, counted ? target[r] : 0, w, facts ? facts + r : NULL);
            mine = counted ? mine : 0;
        }
        if (threadIdx.x % W == 0) loss[k] = mine;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int k = 0; k < BLOCK; k++) sum += loss[k];
    partial[blockIdx.x] = sum;
}

/* *y = (sum of the blocks' sums) / divisor; one block. */
static __global__ void add_up(const double *partial, int64_t blocks, weighing w, float *y) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += blockDim.x) sum += partial[i];
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) *y = (float)divided(w, sum);
}

/* Factors of p, of the target and of every logit in the gradient, before dy and weights. */
typedef struct {
    float p, to_target, to_each;
} shares;

/* In float alone: it needs one product more than with divisions in double, which costs half an ulp, but many cards
 * compute 64 float products in the time of one in double. With smoothing and weights, each thread sums the weights,
 * which are cached. */
static __global__ void backward(int64_t n, int64_t v, shares s, weighing w, const float *__restrict__ x,
                                const int32_t *__restrict__ target, const row_facts *__restrict__ facts,
                                const float *__restrict__ dy, float *__restrict__ dx) {
    float one = w.total ? (float)divided(w, *dy) : *dy, all = one * s.p, to_target = one * s.to_target,
          to_each = one * s.to_each, together = 0;
    for (int64_t i = 0; i < v && w.weight && s.to_each > 0; i++) together += w.weight[i];
    RM_EACH_FOUR(i, n) {
        rm_four four = rm_load_four(x + i, n - i);
        int64_t r = rm_row_of(i, v), class_at = i - r * v;
        RM_UNROLL for (int k = 0; k < 4; k++) if (i + k < n) {
            row_facts row = facts[r];
            bool counted = counts(w, target[r]);
            float of_target = counted ? to_target * (float)weight_at(w, target[r]) : 0;
            float of_p = w.weight ? of_target + to_each * together : all;
            float slope = rm_exp_nonpositive(four.v[k] - row.largest) * (of_p * row.inverse) -
                          to_each * (float)weight_at(w, class_at);
            slope = class_at == target[r] ? slope - of_target : slope;
            four.v[k] = counted ? slope : 0;
            if (++class_at == v) class_at = 0, r++;
        }
        rm_store_four(dx + i, n - i, four);
    }
}

/* -log p of a class, recomputed. */
static __device__ double loss_again(const float *x, int64_t i, row_facts row) {
    return row.largest - log((double)row.inverse) - x[i];
}

/* See shared_gradients in softmax_cross_entropy.c. A thread per class, and one for the total; each reads the rows in
 * order. */
static __global__ void shared_gradients(int64_t rows, int64_t v, weighing w, const float *x, const int32_t *target,
                                        const row_facts *facts, const float *dy, float *dweight, float *dtotal) {
    double scale = divided(w, *dy);
    RM_EACH(k, v + 1) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) {
            if (!counts(w, target[r])) continue;
            const float *row = x + r * v;
            for (int64_t i = k < v ? k : 0; i <= (k < v ? k : v - 1); i++) {
                double share = (i == target[r] ? w.to_target : 0) + w.to_each;
                if (share > 0) sum += share * (k < v ? 1 : weight_at(w, i)) * loss_again(row, i, facts[r]);
            }
        }
        if (k < v && dweight) dweight[k] += (float)(scale * sum);
        if (k == v && dtotal) *dtotal -= (float)divided(w, scale * sum);
    }
}

static double smoothing_of(const remat_call *call) {
    const rm_cross_entropy_attr *a = (const rm_cross_entropy_attr *)call->attr;
    return a && call->training ? a->smoothing : 0;
}

static weighing weighing_of(const remat_call *call) {
    const rm_cross_entropy_attr *a = (const rm_cross_entropy_attr *)call->attr;
    const remat_desc *shape = &call->x[LOGITS].desc;
    double e = smoothing_of(call);
    return {{rm_desc_last(shape), a ? a->ignored : 0, a && a->ignores},
            (const float *)call->x[WEIGHTS].data,
            (const float *)call->x[TOTAL].data,
            rm_call_total(call, shape, rm_desc_rows(shape)),
            1 - e,
            e / (double)rm_desc_last(shape)};
}

void rm_softmax_cross_entropy_forward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->x[LOGITS].desc;
    int64_t rows = rm_desc_rows(shape), v = rm_desc_last(shape), blocks = rm_blocks_of(rows, BLOCK);
    double *partial = (double *)call->scratch; /* (blocks) */
    weighing w = weighing_of(call);
    const float *x = (const float *)call->x[LOGITS].data;
    const int32_t *target = (const int32_t *)call->x[TARGETS].data;
    row_facts *facts = (row_facts *)call->aux;
    if (v <= 4 * RM_ROW_FOURS * RM_WARP)
        RM_LAUNCH_TOGETHER(forward<RM_WARP>, blocks, BLOCK * RM_WARP, call->queue, rows, v, w, x, target, facts,
                           partial);
    else
        RM_LAUNCH_TOGETHER(forward<RM_ROW_MOST>, blocks, RM_ROW_MOST, call->queue, rows, v, w, x, target, facts,
                           partial);
    RM_LAUNCH_TOGETHER(add_up, 1, RM_SUM_THREADS, call->queue, partial, blocks, w, (float *)call->y.data);
}

void rm_softmax_cross_entropy_backward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->x[LOGITS].desc;
    int64_t rows = rm_desc_rows(shape), v = rm_desc_last(shape), n = rows * v;
    weighing w = weighing_of(call);
    const float *x = (const float *)call->x[LOGITS].data, *dy = (const float *)call->dy.data;
    const int32_t *target = (const int32_t *)call->x[TARGETS].data;
    const row_facts *facts = (const row_facts *)call->aux;
    float *dweight = (float *)call->dx[WEIGHTS].data, *dtotal = (float *)call->dx[TOTAL].data;
    double total = w.total ? 1 : w.rows;
    shares s = {(float)(1 / total), (float)(w.to_target / total), (float)(w.to_each / total)};
    if (dweight || dtotal)
        RM_LAUNCH_EACH(shared_gradients, v + 1, call->queue, rows, v, w, x, target, facts, dy, dweight, dtotal);
    if (!call->dx[LOGITS].data) return;
    RM_LAUNCH_FOURS(backward, n, call->queue, n, v, s, w, x, target, facts, dy, (float *)call->dx[LOGITS].data);
}

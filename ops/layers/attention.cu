/* attention.cu: the op `attention` (attention.c) on CUDA: larger blocks of rows than on the CPU, for many heads at once.
 * Products are batches by the queue's `multiply`, a product for each head; between them are kernels with a warp per
 * row.
 *
 *     scratch    (heads, rows, keys)    probabilities; in backward also their gradients */
#include "ops/cuda/reduce.cuh"

#include "engine/rng.h"
#include "ops/elementwise/activation.h"
#include "ops/math/exp.h"

extern "C" {
#include "ops/layers/attention.h"
}

enum {
    Q = RM_ATTENTION_Q,
    K = RM_ATTENTION_K,
    V = RM_ATTENTION_V,
    PADDING = RM_ATTENTION_PADDING,
    BIAS = RM_ATTENTION_BIAS,
    ROWS = 8 /* per block of threads */
};
typedef rm_attention_shape shape;

/* Rows from .. from + rows - 1 of the scores of some heads, and `keys` columns from key `first` on: all keys that they attend to.
 * The heads have different k and v: those of k and v are group .. group + count - 1, and of the heads of q that share
 * one, `member` is meant. */
typedef struct {
    int64_t group, count, member, from, rows, first, keys;
} block;

/* The number of head i of a block. */
static __device__ inline int64_t head_of(const shape &s, const block &b, int64_t i) {
    return (b.group + i) * s.share + b.member;
}

/* The score of key i, or its mask; `padding`: marks of the keys, `batch` elements apart; `bias`: of the keys. NULL:
 * none. */
static __device__ float score_of(const int32_t *padding, int64_t batch, const float *bias, int64_t i, float score) {
    return padding && padding[i * batch] ? -INFINITY : bias ? score + bias[i] : score;
}

/* Of a bias (heads,rows,columns). */
typedef struct {
    int64_t rows, columns;
} bias_extent;

/* Turns scores into probabilities, in place. Row r of a head attends to the columns up to `ends` + r, but at most to all of
 * them; with a window to the last of these. */
static __global__ void softmax(shape s, block b, int64_t ends, const int32_t *padding, const float *bias,
                               bias_extent extent, float *p) {
    int64_t lane = threadIdx.x % RM_WARP, row = (int64_t)blockIdx.x * ROWS + threadIdx.x / RM_WARP;
    if (row >= b.count * b.rows) return; /* whole warps */
    int64_t i_head = rm_row_of(row, b.rows), r = row - i_head * b.rows, keys = b.keys;
    const float scale = (float)s.scale;
    if (padding) padding += b.first * s.batch + head_of(s, b, i_head) / s.heads;
    if (bias) bias += (head_of(s, b, i_head) % s.heads * extent.rows + b.from + r) * extent.columns + b.first;
    int64_t near = s.causal && ends + r > s.window ? ends + r - s.window : 0;
    float *x = p + row * keys, largest = score_of(padding, s.batch, bias, near, x[near] * scale);
    int64_t n = ends + r < keys ? ends + r : keys;
    /* A lane has the same elements in each loop, or it would read others'. */
    int64_t first = near - near % RM_WARP + lane;
    double sum = 0;
    if (first < near) first += RM_WARP;
    for (int64_t i = first; i < n; i += RM_WARP) {
        float score = score_of(padding, s.batch, bias, i, x[i] * scale);
        largest = score > largest ? score : largest;
    }
    largest = rm_warp_largest(largest);
    bool none = padding && largest == -INFINITY;
    for (int64_t i = first; i < n; i += RM_WARP)
        sum += x[i] = none ? 0 : rm_exp_nonpositive(score_of(padding, s.batch, bias, i, x[i] * scale) - largest);
    sum = rm_warp_sum(sum);
    float inverse = none ? 0 : (float)(1 / sum);
    for (int64_t i = lane; i < keys; i += RM_WARP) x[i] = i >= near && i < n ? x[i] * inverse : 0;
}

/* Replaces dp by p (dp - sum over the row of p dp) scale. */
static __global__ void score_gradients(int64_t rows, int64_t keys, float scale, const float *p, float *dp) {
    int64_t lane = threadIdx.x % RM_WARP, r = (int64_t)blockIdx.x * ROWS + threadIdx.x / RM_WARP;
    if (r >= rows) return;
    double sum = 0;
    for (int64_t i = lane; i < keys; i += RM_WARP) sum += p[r * keys + i] * dp[r * keys + i];
    sum = rm_warp_sum(sum);
    for (int64_t i = lane; i < keys; i += RM_WARP)
        dp[r * keys + i] = p[r * keys + i] * (dp[r * keys + i] - (float)sum) * scale;
}

/* dbias += the gradients of the scores of a block, head by head in the order of rows of the batch. Then multiplies them
 * by the scale. */
static __global__ void add_bias(int64_t jobs, shape s, block b, float *dp, float *dbias, bias_extent extent) {
    RM_EACH(job, jobs) { /* (heads of k, rows, keys) */
        const int64_t kv_heads = s.heads / s.share, matrix = b.rows * b.keys, kv = job / matrix, at = job - kv * matrix;
        float sum = 0;
        for (int64_t i = kv; i < b.count; i += kv_heads) {
            float *d = dp + i * matrix + at;
            sum += *d, *d *= (float)s.scale;
        }
        const int64_t head = head_of(s, b, kv) % s.heads, r = at / b.keys, j = at - r * b.keys;
        dbias[(head * extent.rows + b.from + r) * extent.columns + b.first + j] += sum;
    }
}

/* The draws of a block's rows, which are the CPU's. */
typedef struct {
    remat_key key;
    int64_t groups, before, all; /* of four keys: of this block, before it, and of a whole row */
    uint32_t threshold;
    float scale;
} mask;

/* A thread drops four weights. in and out may be the same. */
static __global__ void drop(int64_t jobs, shape s, block b, mask m, const float *in, float *out) {
    RM_EACH(job, jobs) {
        int64_t row = rm_row_of(job, m.groups), group = job - row * m.groups, at = row * b.keys,
                i_head = rm_row_of(row, b.rows);
        rm_philox draw = rm_random4(m.key.seed, m.key.step, m.key.node, (uint32_t)(b.from + row - i_head * b.rows),
                                    (uint32_t)(head_of(s, b, i_head) * m.all + m.before + group));
        for (int64_t i = 0, j = 4 * group; i < 4 && j + i < b.keys; i++)
            out[at + j + i] = rm_dropout(in[at + j + i], draw.word[i], m.threshold, m.scale);
    }
}

static __global__ void clear(int64_t n, float *to) { RM_EACH(i, n) to[i] = 0; }

static shape shape_of(const remat_call *call) {
    const remat_desc x[] = {call->x[Q].desc, call->x[K].desc, call->x[V].desc};
    shape s = rm_attention_shape_of(x, call->attr);
    if (!call->training) s.dropout = 0;
    return s;
}

/* The matrices of a block's heads, `stride` numbers apart. */
typedef struct {
    float *data;
    int64_t ld, stride;
} matrix;

static matrix of_queries(const remat_tensor *t, const shape *s, block b) {
    matrix m = {(float *)t->data + (b.group * s->share + b.member) * s->width + b.from * s->ld, s->ld,
                s->share * s->width};
    return m;
}

static matrix of_keys(const remat_tensor *t, const shape *s, block b) {
    matrix m = {(float *)t->data + b.group * s->width + b.first * s->kv_ld, s->kv_ld, s->width};
    return m;
}

static matrix of_scores(float *p, block b) {
    matrix m = {p, b.keys, b.rows * b.keys};
    return m;
}

/* c (m,n) = a b for each head, each as stored or transposed */
static void multiply(const remat_call *call, block block, int64_t m, int64_t n, int64_t k, matrix a, bool transpose_a,
                     matrix b, bool transpose_b, bool add, matrix c) {
    const rm_cuda_queue *queue = (const rm_cuda_queue *)call->queue;
    rm_cuda_product product = {a.data, b.data,      c.data,      m,   n,           k,        a.ld,     b.ld,    c.ld,
                               0,      transpose_a, transpose_b, add, block.count, a.stride, b.stride, c.stride};
    queue->multiply(queue, &product);
}

static bias_extent extent_of(const remat_call *call) {
    bias_extent e = {call->x[BIAS].desc.dim[1], call->x[BIAS].desc.dim[2]};
    return e;
}

static void probabilities(const remat_call *call, const shape *s, block b, matrix p) {
    int64_t ends = s->causal ? b.from + 1 - b.first : b.keys;
    multiply(call, b, b.rows, b.keys, s->width, of_queries(&call->x[Q], s, b), false, of_keys(&call->x[K], s, b), true,
             false, p);
    RM_LAUNCH_TOGETHER(softmax, rm_blocks_of(b.count * b.rows, ROWS), ROWS * RM_WARP, call->queue, *s, b, ends,
                       (const int32_t *)call->x[PADDING].data, (const float *)call->x[BIAS].data, extent_of(call),
                       p.data);
}

static void launch_drop(const remat_call *call, const shape *s, block b, const float *in, float *out) {
    mask m = {call->key,
              (b.keys + 3) / 4,
              b.first / 4,
              rm_attention_groups(s),
              rm_dropout_threshold(s->dropout),
              rm_dropout_scale(s->dropout)};
    int64_t jobs = b.count * b.rows * m.groups;
    RM_LAUNCH_EACH(drop, jobs, call->queue, jobs, *s, b, m, in, out);
}

static void forward_block(const remat_call *call, const shape *s, block b) {
    matrix p = of_scores((float *)call->scratch, b);
    probabilities(call, s, b, p);
    if (s->dropout > 0) launch_drop(call, s, b, p.data, p.data);
    multiply(call, b, b.rows, s->width, b.keys, p, false, of_keys(&call->x[V], s, b), false, false,
             of_queries(&call->y, s, b));
}

/* With a window no block attends to every key. */
static bool has_window(const shape *s) { return s->causal && s->window < s->keys; }

/* Gradients from one block: all of its dq, and its share of dk and dv, which the first call for a head of k overwrites
 * and later calls add to; with a window all calls add, to zeros. */
static void backward_block(const remat_call *call, const shape *s, block b) {
    const remat_tensor *dq = &call->dx[Q], *dk = &call->dx[K], *dv = &call->dx[V];
    float *dbias = (float *)call->dx[BIAS].data;
    const bool add = has_window(s) || b.member > 0 || b.from + b.rows < s->steps;
    matrix p = of_scores((float *)call->scratch, b), dp = of_scores(p.data + b.count * p.stride, b);
    matrix dy = of_queries(&call->dy, s, b);
    probabilities(call, s, b, p);
    if (dv->data && s->dropout > 0) launch_drop(call, s, b, p.data, dp.data);
    if (dv->data)
        multiply(call, b, b.keys, s->width, b.rows, s->dropout > 0 ? dp : p, true, dy, false, add, of_keys(dv, s, b));
    if (!dq->data && !dk->data && !dbias) return;
    multiply(call, b, b.rows, b.keys, s->width, dy, false, of_keys(&call->x[V], s, b), true, false, dp);
    if (s->dropout > 0) launch_drop(call, s, b, dp.data, dp.data);
    RM_LAUNCH_TOGETHER(score_gradients, rm_blocks_of(b.count * b.rows, ROWS), ROWS * RM_WARP, call->queue,
                       b.count * b.rows, b.keys, dbias ? 1 : (float)s->scale, p.data, dp.data);
    if (dbias) {
        const int64_t kv_heads = s->heads / s->share, jobs = (b.count < kv_heads ? b.count : kv_heads) * dp.stride;
        RM_LAUNCH_EACH(add_bias, jobs, call->queue, jobs, *s, b, dp.data, dbias, extent_of(call));
    }
    if (dq->data)
        multiply(call, b, b.rows, s->width, b.keys, dp, false, of_keys(&call->x[K], s, b), false, false,
                 of_queries(dq, s, b));
    if (dk->data)
        multiply(call, b, b.keys, s->width, b.rows, dp, true, of_queries(&call->x[Q], s, b), false, add,
                 of_keys(dk, s, b));
}

/* From the last rows to the first, because the last ones attend to every key. */
static void each_block(const remat_call *call, void (*visit)(const remat_call *, const shape *, block)) {
    const shape s = shape_of(call);
    const int64_t together = rm_attention_together(&s), groups = s.batch * s.heads / s.share;
    const int64_t last = (s.steps - 1) / RM_ATTENTION_ROWS_CUDA * RM_ATTENTION_ROWS_CUDA;
    for (int64_t group = 0; group < groups; group += together)
        for (int64_t member = 0; member < s.share; member++)
            for (int64_t from = last; from >= 0; from -= RM_ATTENTION_ROWS_CUDA) {
                int64_t end = from + RM_ATTENTION_ROWS_CUDA < s.steps ? from + RM_ATTENTION_ROWS_CUDA : s.steps;
                int64_t count = groups - group < together ? groups - group : together;
                int64_t first = rm_attention_block_first(&s, from);
                block b = {group, count, member, from, end - from, first, rm_attention_keys(&s, end) - first};
                visit(call, &s, b);
            }
}

void rm_attention_forward_cuda(const remat_call *call) { each_block(call, forward_block); }
void rm_attention_backward_cuda(const remat_call *call) {
    const shape s = shape_of(call);
    const int64_t count = s.keys * s.kv_ld;
    for (int i = K; has_window(&s) && i <= V; i++)
        if (call->dx[i].data) RM_LAUNCH_EACH(clear, count, call->queue, count, (float *)call->dx[i].data);
    each_block(call, backward_block);
}

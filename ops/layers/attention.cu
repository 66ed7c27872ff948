/* attention.cu: the op `attention` (attention.c) on CUDA: larger blocks of rows than on the CPU, products by the
 * queue's `multiply`, and between them kernels with a warp per row. */
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
    ROWS = 8 /* per block of threads */
};
typedef rm_attention_shape shape;

/* The score of key i, or its mask; `padding`: marks of the keys, `batch` elements apart. NULL: no padding. */
static __device__ float score_of(const int32_t *padding, int64_t batch, int64_t i, float score) {
    return padding && padding[i * batch] ? -INFINITY : score;
}

/* Turns scores into probabilities, in place. Row r attends to `first` + r keys, but at most to all of them. */
static __global__ void softmax(int64_t rows, int64_t keys, int64_t first, float scale, const int32_t *padding,
                               int64_t batch, float *p) {
    int64_t lane = threadIdx.x % RM_WARP, r = (int64_t)blockIdx.x * ROWS + threadIdx.x / RM_WARP;
    if (r >= rows) return; /* whole warps */
    float *x = p + r * keys, largest = score_of(padding, batch, 0, x[0] * scale);
    int64_t n = first + r < keys ? first + r : keys;
    double sum = 0;
    for (int64_t i = lane; i < n; i += RM_WARP) {
        float score = score_of(padding, batch, i, x[i] * scale);
        largest = score > largest ? score : largest;
    }
    largest = rm_warp_largest(largest);
    bool none = padding && largest == -INFINITY;
    for (int64_t i = lane; i < n; i += RM_WARP)
        sum += x[i] = none ? 0 : rm_exp_nonpositive(score_of(padding, batch, i, x[i] * scale) - largest);
    sum = rm_warp_sum(sum);
    float inverse = none ? 0 : (float)(1 / sum);
    for (int64_t i = lane; i < keys; i += RM_WARP) x[i] = i < n ? x[i] * inverse : 0;
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

/* The draws of a block's rows, which are the CPU's. */
typedef struct {
    remat_key key;
    int64_t from, first, keys, groups; /* first: counter of the head's first group; groups: of this block's keys */
    uint32_t threshold;
    float scale;
} mask;

/* A thread drops four weights. in and out may be the same. */
static __global__ void drop(int64_t jobs, mask m, const float *in, float *out) {
    RM_EACH(job, jobs) {
        int64_t r = job / m.groups, group = job % m.groups, at = r * m.keys;
        rm_philox draw =
            rm_random4(m.key.seed, m.key.step, m.key.node, (uint32_t)(m.from + r), (uint32_t)(m.first + group));
        for (int64_t i = 0, j = 4 * group; i < 4 && j + i < m.keys; i++)
            out[at + j + i] = rm_dropout(in[at + j + i], draw.word[i], m.threshold, m.scale);
    }
}

static shape shape_of(const remat_call *call) {
    const remat_desc x[] = {call->x[Q].desc, call->x[K].desc, call->x[V].desc};
    shape s = rm_attention_shape_of(x, call->attr);
    if (!call->training) s.dropout = 0;
    return s;
}

/* Rows from .. from + rows - 1 of one head's scores, and the first `keys` columns: all keys that they attend to. */
typedef struct {
    int64_t head, at, kv, from, rows, keys; /* at, kv: offset of the head in q and in k */
    const int32_t *padding;                 /* of its keys, as in score_of */
} block;

static block block_of(const remat_call *call, const shape *s, int64_t head, int64_t from) {
    int64_t most = RM_ATTENTION_ROWS_CUDA, left = s->steps - from, rows = left < most ? left : most;
    const int32_t *padding = (const int32_t *)call->x[PADDING].data;
    block b = {head,
               head * s->width,
               rm_attention_kv_at(s, head),
               from,
               rows,
               rm_attention_keys(s, from + rows),
               padding ? padding + head / s->heads : NULL};
    return b;
}

typedef struct {
    const float *data;
    int64_t ld;
} matrix;

/* c (m,n) = a b, each as stored or transposed */
static void multiply(const remat_call *call, int64_t m, int64_t n, int64_t k, matrix a, bool transpose_a, matrix b,
                     bool transpose_b, bool add, float *c, int64_t ldc) {
    const rm_cuda_queue *queue = (const rm_cuda_queue *)call->queue;
    rm_cuda_product product = {};
    product.a = a.data, product.b = b.data, product.c = c;
    product.m = m, product.n = n, product.k = k;
    product.lda = a.ld, product.ldb = b.ld, product.ldc = ldc;
    product.transpose_a = transpose_a, product.transpose_b = transpose_b, product.add = add;
    queue->multiply(queue, &product);
}

static matrix part(const remat_tensor *t, int64_t at, int64_t ld) {
    matrix m = {(const float *)t->data + at, ld};
    return m;
}

static void probabilities(const remat_call *call, const shape *s, block b, float *p) {
    int64_t first = s->causal ? b.from + 1 : b.keys;
    matrix q = part(&call->x[Q], b.at + b.from * s->ld, s->ld), k = part(&call->x[K], b.kv, s->kv_ld);
    multiply(call, b.rows, b.keys, s->width, q, false, k, true, false, p, b.keys);
    RM_LAUNCH_TOGETHER(softmax, rm_blocks_of(b.rows, ROWS), ROWS * RM_WARP, call->queue, b.rows, b.keys, first,
                       (float)s->scale, b.padding, s->batch, p);
}

static void launch_drop(const remat_call *call, const shape *s, block b, const float *in, float *out) {
    mask m = {call->key,
              b.from,
              b.head * rm_attention_groups(s),
              b.keys,
              (b.keys + 3) / 4,
              rm_dropout_threshold(s->dropout),
              rm_dropout_scale(s->dropout)};
    int64_t jobs = b.rows * m.groups;
    RM_LAUNCH_EACH(drop, jobs, call->queue, jobs, m, in, out);
}

void rm_attention_forward_cuda(const remat_call *call) {
    const shape s = shape_of(call);
    float *p = (float *)call->scratch;
    for (int64_t head = 0; head < s.batch * s.heads; head++)
        for (int64_t from = 0; from < s.steps; from += RM_ATTENTION_ROWS_CUDA) {
            block b = block_of(call, &s, head, from);
            matrix probability = {p, b.keys};
            probabilities(call, &s, b, p);
            if (s.dropout > 0) launch_drop(call, &s, b, p, p);
            multiply(call, b.rows, s.width, b.keys, probability, false, part(&call->x[V], b.kv, s.kv_ld), false, false,
                     (float *)call->y.data + b.at + from * s.ld, s.ld);
        }
}

/* Gradients from one block of rows: all of its dq, and its share of dk and dv, which the first call overwrites and
 * later calls add to. */
static void backward_block(const remat_call *call, const shape *s, block b, bool first) {
    const int64_t here = b.at + b.from * s->ld;
    float *dq = (float *)call->dx[Q].data, *dk = (float *)call->dx[K].data, *dv = (float *)call->dx[V].data;
    float *p = (float *)call->scratch, *dp = p + b.rows * b.keys;
    matrix dy = part(&call->dy, here, s->ld), probability = {s->dropout > 0 ? dp : p, b.keys}, slope = {dp, b.keys};
    probabilities(call, s, b, p);
    if (dv && s->dropout > 0) launch_drop(call, s, b, p, dp);
    if (dv) multiply(call, b.keys, s->width, b.rows, probability, true, dy, false, !first, dv + b.kv, s->kv_ld);
    if (!dq && !dk) return;
    multiply(call, b.rows, b.keys, s->width, dy, false, part(&call->x[V], b.kv, s->kv_ld), true, false, dp, b.keys);
    if (s->dropout > 0) launch_drop(call, s, b, dp, dp);
    RM_LAUNCH_TOGETHER(score_gradients, rm_blocks_of(b.rows, ROWS), ROWS * RM_WARP, call->queue, b.rows, b.keys,
                       (float)s->scale, p, dp);
    if (dq)
        multiply(call, b.rows, s->width, b.keys, slope, false, part(&call->x[K], b.kv, s->kv_ld), false, false,
                 dq + here, s->ld);
    if (dk)
        multiply(call, b.keys, s->width, b.rows, slope, true, part(&call->x[Q], here, s->ld), false, !first, dk + b.kv,
                 s->kv_ld);
}

/* From the last block to the first, because the last one attends to every key. */
void rm_attention_backward_cuda(const remat_call *call) {
    const shape s = shape_of(call);
    int64_t last = (s.steps - 1) / RM_ATTENTION_ROWS_CUDA * RM_ATTENTION_ROWS_CUDA;
    for (int64_t head = 0; head < s.batch * s.heads; head++)
        for (int64_t from = last; from >= 0; from -= RM_ATTENTION_ROWS_CUDA)
            backward_block(call, &s, block_of(call, &s, head, from), from == last && head % s.share == 0);
}

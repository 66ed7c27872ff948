/* attention.c: the op `attention`: scaled dot-product attention. For each head
 *
 *   y[t] = sum over s of p[t,s] v[s],   p[t] = softmax over s of q[t] . k[s] / sqrt(D)
 *
 * with D = C / heads features; head h has columns h D .. h D + D - 1. Causal attention sums over s <= t only; with a
 * window, over the last `window` of these. k and v may have fewer heads, each shared by a group of neighbouring
 * query heads (Ainslie et al. 2023, "GQA"), and a different length, S. Keys marked in `padding`, I32 (S,B), are
 * masked, and keys after the last unmasked key of a row are skipped. If all keys are masked, y is 0. A `bias`
 * (heads,P,R), P >= T, R >= S, the same for all rows of the batch, is added to the scores; its gradient is the sum
 * of theirs, in the order of rows. In training p[t,s] is dropped out before it meets v; the mask is a function of
 * (seed, step, node, t, head, s), so backward draws it again. Scratch holds only a block of rows of the (T,S) scores
 * at a time. Backward recomputes the block from q and k, so nothing else is saved. */
#include "ops/real.h"

#include <string.h>

#include "engine/rng.h"
#include "ops/elementwise/activation.h"
#include "ops/layers/attention.h"
#include "ops/layers/attention_row.h"
#include "ops/math/gemm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum {
    Q = RM_ATTENTION_Q,
    K = RM_ATTENTION_K,
    V = RM_ATTENTION_V,
    PADDING = RM_ATTENTION_PADDING,
    BIAS = RM_ATTENTION_BIAS
};
typedef rm_attention_shape shape;

#ifndef RM_REAL_DOUBLE
int64_t rm_attention_most_floats = 1 << 23;
#endif

static remat_status want_bias(const remat_desc *x, int64_t heads) {
    char text[REMAT_DESC_TEXT];
    const remat_desc *b = &x[BIAS];
    if (b->rank < 0) return REMAT_OK;
    TRY(rm_want_real("attention", "bias", b));
    REQUIRE(b->rank == 3 && b->dim[0] == heads && b->dim[1] >= x[Q].dim[0] && b->dim[2] >= x[K].dim[0], INVALID,
            "attention: bias is %s; for %lld heads, %lld timesteps and %lld keys it must be at least (%lld,%lld,%lld)",
            rm_desc_text(b, text), (long long)heads, (long long)x[Q].dim[0], (long long)x[K].dim[0], (long long)heads,
            (long long)x[Q].dim[0], (long long)x[K].dim[0]);
    return REMAT_OK;
}

/* Checks padding and the lengths of q, k and v. */
static remat_status want_lengths(const remat_desc *x, bool causal) {
    char text[REMAT_DESC_TEXT], other[REMAT_DESC_TEXT];
    REQUIRE(!causal || x[K].dim[0] == x[Q].dim[0], INVALID,
            "attention: q is %s and k is %s; with causal they must have the same number of timesteps",
            rm_desc_text(&x[Q], text), rm_desc_text(&x[K], other));
    REQUIRE(x[PADDING].rank < 0 || (x[PADDING].dtype == REMAT_I32 && x[PADDING].rank == 2 &&
                                    x[PADDING].dim[0] == x[K].dim[0] && x[PADDING].dim[1] == x[K].dim[1]),
            INVALID, "attention: padding is %s; for k, %s, it must be i32 (%lld,%lld)", rm_desc_text(&x[PADDING], text),
            rm_desc_text(&x[K], other), (long long)x[K].dim[0], (long long)x[K].dim[1]);
    return REMAT_OK;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    char text[REMAT_DESC_TEXT], k_text[REMAT_DESC_TEXT];
    const rm_attention_attr *a = attr;
    TRY(rm_want_real("attention", "q", &x[Q]));
    TRY(rm_want_rank("attention", "q", &x[Q], 3, 3));
    TRY(rm_want_real("attention", "k", &x[K]));
    TRY(rm_want_rank("attention", "k", &x[K], 3, 3));
    TRY(rm_want_same("attention", "k", &x[K], "v", &x[V]));
    REQUIRE(a && a->heads >= 1 && x[Q].dim[2] % a->heads == 0, INVALID,
            "attention: q is %s, whose %lld features cannot be split into %lld heads; use a number of heads that "
            "divides them",
            rm_desc_text(&x[Q], text), (long long)x[Q].dim[2], (long long)(a ? a->heads : 0));
    int64_t width = x[Q].dim[2] / a->heads;
    REQUIRE(x[K].dim[1] == x[Q].dim[1] && x[K].dim[2] % width == 0 && x[Q].dim[2] % x[K].dim[2] == 0, INVALID,
            "attention: q is %s and k is %s; k and v must have q's batch size and heads of %lld features, and their "
            "number of heads must divide %lld",
            rm_desc_text(&x[Q], text), rm_desc_text(&x[K], k_text), (long long)width, (long long)a->heads);
    REQUIRE(a->causal == 0 || a->causal == 1, INVALID, "attention: causal is %lld; it must be 0 or 1",
            (long long)a->causal);
    REQUIRE(a->window == 0 || (a->window > 0 && a->causal), INVALID,
            "attention: the window is %lld; it must be at least 1, and the attention causal", (long long)a->window);
    REQUIRE(a->dropout >= 0 && a->dropout < 1, INVALID,
            "attention: the probability of dropout is %g; it must be at least 0 and below 1", a->dropout);
    TRY(want_lengths(x, a->causal));
    TRY(want_bias(x, a->heads));
    *y = x[Q];
    return REMAT_OK;
}

static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass) {
    const shape s = rm_attention_shape_of(x, attr);
    int64_t rows = s.steps < RM_ATTENTION_ROWS ? s.steps : RM_ATTENTION_ROWS;
    return (uint64_t)(rows * rm_attention_columns(&s, rows)) * sizeof(real) * (pass == REMAT_BACKWARD ? 2 : 1);
}

static uint64_t cuda_scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    const shape s = rm_attention_shape_of(x, attr);
    int64_t rows = s.steps < RM_ATTENTION_ROWS_CUDA ? s.steps : RM_ATTENTION_ROWS_CUDA;
    (void)aux, (void)threads;
    return (uint64_t)(rows * rm_attention_columns(&s, rows) * rm_attention_together(&s)) * sizeof(real) *
           (pass == REMAT_BACKWARD ? 2 : 1);
}

/* Pairs of a timestep and a key that it sees, in each head. */
static double pairs_of(const shape *s) {
    double steps = (double)s->steps, window = (double)s->window;
    return s->causal ? steps * window - window * (window - 1) / 2 : steps * (double)s->keys;
}

/* A product takes 2 D operations per pair of timesteps; there are two products in forward and five in backward. */
static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const shape s = rm_attention_shape_of(x, attr);
    double pairs = (double)(s.batch * s.heads) * pairs_of(&s);
    double products = pass == REMAT_BACKWARD ? 5 : 2, streams = pass == REMAT_BACKWARD ? 7 : 4;
    *out = rm_cost_streaming(y, 0, streams / 2);
    out->moved_bytes += rm_cost_streaming(&x[K], 0, streams / 2).moved_bytes;
    if (x[BIAS].rank >= 0)
        out->moved_bytes += (double)s.batch * (double)rm_desc_bytes(&x[BIAS]) * (pass == REMAT_BACKWARD ? 3 : 1);
    out->flops = pairs * (products * 2 * (double)s.width + 20); /* an exp is about 16 operations */
    out->scratch_bytes = scratch_bytes(x, attr, pass);
    if (2 * sizeof(real) * (size_t)s.keys > out->scratch_bytes) /* the definition's row */
        out->scratch_bytes = 2 * sizeof(real) * (uint64_t)s.keys;
}

/* Values of padding: 0 for a key, 1 for padding. */
static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)x, (void)attr;
    return input == PADDING ? 2 : 0;
}

static shape shape_of(const remat_call *call) {
    const remat_desc x[] = {call->x[Q].desc, call->x[K].desc, call->x[V].desc};
    shape s = rm_attention_shape_of(x, call->attr);
    if (!call->training) s.dropout = 0;
    return s;
}

/* ---- The definition ---------------------------------------------------------------------------------------------- */

/* The padding marks of the keys in this head's batch row, `batch` elements apart; NULL: no padding. */
static const int32_t *padding_of(const remat_call *call, const shape *s, int64_t head) {
    const int32_t *padding = call->x[PADDING].data;
    return padding ? padding + head / s->heads : NULL;
}

/* A bias or its gradient, from this head's key 0 of timestep t on; NULL: it is not there. */
static real *bias_at(const remat_tensor *bias, const shape *s, int64_t head, int64_t t) {
    real *data = bias->data;
    return data ? data + (head % s->heads * bias->desc.dim[1] + t) * bias->desc.dim[2] : NULL;
}

/* What weight j of timestep t is multiplied by. */
static real define_mask(const remat_call *call, const shape *s, int64_t head, int64_t t, int64_t j) {
    const remat_key *key = &call->key;
    uint64_t element = (uint64_t)(head * 4 * rm_attention_groups(s) + j);
    uint32_t word = rm_random(key->seed, key->step, key->node, (uint32_t)t, element);
    return s->dropout == 0 ? 1 : rm_uniform(word) >= s->dropout ? (real)(1 / (1 - s->dropout)) : 0;
}

/* Fills in p[s] of timestep t for the keys up to the last that it attends to; returns their number. */
static int64_t define_row(const remat_call *call, const shape *s, int64_t head, int64_t t, real *p) {
    const real *q = (const real *)call->x[Q].data + head * s->width;
    const real *k = (const real *)call->x[K].data + rm_attention_kv_at(s, head);
    const int32_t *padding = padding_of(call, s, head);
    const real *bias = bias_at(&call->x[BIAS], s, head, t);
    int64_t n = rm_attention_keys(s, t + 1), first = rm_attention_first(s, t);
    real largest = 0, sum = 0;
    memset(p, 0, (size_t)first * sizeof *p);
    for (int64_t j = first; j < n; j++) {
        real score = 0;
        for (int64_t i = 0; i < s->width; i++) score += q[t * s->ld + i] * k[j * s->kv_ld + i];
        score = score * (real)s->scale + (bias ? bias[j] : 0);
        p[j] = padding && padding[j * s->batch] ? -INFINITY : score;
        largest = j == first || p[j] > largest ? p[j] : largest;
    }
    if (padding && largest == -INFINITY) return memset(p, 0, (size_t)n * sizeof *p), n;
    for (int64_t j = first; j < n; j++) sum += p[j] = real_exp(p[j] - largest);
    for (int64_t j = first; j < n; j++) p[j] /= sum;
    return n;
}

static void define_forward(const remat_call *call) {
    const shape s = shape_of(call);
    real *p = call->scratch; /* (S) */
    for (int64_t head = 0; head < s.batch * s.heads; head++) {
        int64_t at = head * s.width, kv = rm_attention_kv_at(&s, head);
        const real *v = (const real *)call->x[V].data + kv;
        real *y = (real *)call->y.data + at;
        for (int64_t t = 0; t < s.steps; t++) {
            int64_t n = define_row(call, &s, head, t, p);
            for (int64_t j = 0; j < n; j++) p[j] *= define_mask(call, &s, head, t, j);
            for (int64_t i = 0; i < s.width; i++) {
                real sum = 0;
                for (int64_t j = 0; j < n; j++) sum += p[j] * v[j * s.kv_ld + i];
                y[t * s.ld + i] = sum;
            }
        }
    }
}

/* The share of one timestep; p and dp have n elements. */
static void define_backward_row(const remat_call *call, const shape *s, int64_t head, int64_t t, int64_t n,
                                const real *p, real *dp) {
    int64_t at = head * s->width, kv = rm_attention_kv_at(s, head);
    const real *q = (const real *)call->x[Q].data + at, *k = (const real *)call->x[K].data + kv;
    const real *v = (const real *)call->x[V].data + kv, *dy = (const real *)call->dy.data + at;
    real *dq = call->dx[Q].data, *dk = call->dx[K].data, *dv = call->dx[V].data, mean = 0;
    real *dbias = bias_at(&call->dx[BIAS], s, head, t);
    for (int64_t j = 0; j < n; j++) {
        dp[j] = 0; /* y[t] = sum over j of p[j] mask[j] v[j] */
        for (int64_t i = 0; i < s->width; i++) dp[j] += dy[t * s->ld + i] * v[j * s->kv_ld + i];
        dp[j] *= define_mask(call, s, head, t, j);
        mean += p[j] * dp[j];
    }
    for (int64_t j = 0; j < n; j++) {
        real d = p[j] * (dp[j] - mean) * (real)s->scale; /* of q[t] . k[j] */
        if (dbias) dbias[j] += p[j] * (dp[j] - mean);
        real kept = p[j] * define_mask(call, s, head, t, j);
        for (int64_t i = 0; i < s->width; i++) {
            if (dq) dq[at + t * s->ld + i] += d * k[j * s->kv_ld + i];
            if (dk) dk[kv + j * s->kv_ld + i] += d * q[t * s->ld + i];
            if (dv) dv[kv + j * s->kv_ld + i] += kept * dy[t * s->ld + i];
        }
    }
}

static void define_backward(const remat_call *call) {
    const shape s = shape_of(call);
    real *p = call->scratch; /* (S), followed by dp */
    for (int i = Q; i <= V; i++)
        if (call->dx[i].data) memset(call->dx[i].data, 0, rm_desc_bytes(&call->dx[i].desc));
    for (int64_t head = 0; head < s.batch * s.heads; head++) {
        for (int64_t t = 0; t < s.steps; t++) {
            int64_t n = define_row(call, &s, head, t, p);
            define_backward_row(call, &s, head, t, n, p, p + s.keys);
        }
    }
}

/* ---- The fast version: matrix products over a block of rows at a time ------------------------------------------- */

/* Rows from .. from + rows - 1 of one head's scores, and `keys` columns from `first` on: all keys that they attend to, at
 * least one. */
typedef struct {
    int64_t head, at, kv, from, rows, first, keys; /* at: offset of the head in q; kv: of its first key in k */
    const int32_t *padding;                        /* as above, from the first key on */
} block;

static block block_of(const remat_call *call, const shape *s, int64_t head, int64_t from) {
    int64_t left = s->steps - from, rows = left < RM_ATTENTION_ROWS ? left : RM_ATTENTION_ROWS;
    const int32_t *padding = padding_of(call, s, head);
    int64_t first = rm_attention_block_first(s, from), keys = rm_attention_keys(s, from + rows) - first;
    if (padding) padding += first * s->batch;
    while (padding && keys > 1 && padding[(keys - 1) * s->batch]) keys--;
    return (block){head, head * s->width, rm_attention_kv_at(s, head) + first * s->kv_ld, from, rows, first,
                   keys, padding};
}

/* Masks padding among scores from .. n - 1 of a row, so that the exponentials are 0. Returns false if all keys are
 * masked. */
static bool leave_out(const shape *s, block b, int64_t from, int64_t n, real *x) {
    bool left = !b.padding;
    for (int64_t j = from; b.padding && j < n; j++) {
        bool padding = b.padding[j * s->batch];
        x[j] = padding ? -INFINITY : x[j];
        left |= !padding;
    }
    return left;
}

/* Computes p (rows,keys). Forward and backward get the same bits. */
static void probabilities(const remat_call *call, const shape *s, block b, real *p) {
    const real *q = (const real *)call->x[Q].data + b.at + b.from * s->ld, *k = (const real *)call->x[K].data + b.kv;
    rm_gemm(call->threads, RM_PLAIN, RM_TRANSPOSED, b.rows, b.keys, s->width, (real)s->scale, q, s->ld, k, s->kv_ld, 0,
            p, b.keys);
    RM_PARALLEL_FOR(
        call->threads, b.rows * b.keys > RM_PARALLEL_MIN_HEAVY, for (int64_t r = 0; r < b.rows; r++) {
            int64_t seen = rm_attention_keys(s, b.from + r + 1) - b.first, n = seen < b.keys ? seen : b.keys;
            int64_t near = rm_attention_first(s, b.from + r) - b.first;
            real *row = p + r * b.keys;
            const real *bias = bias_at(&call->x[BIAS], s, b.head, b.from + r);
            for (int64_t j = near; bias && j < n; j++) row[j] += bias[b.first + j];
            bool any = near < n && leave_out(s, b, near, n, row);
            memset(row, 0, (size_t)(any ? near : b.keys) * sizeof *row);
            if (any) rm_attention_softmax(row + near, n - near, b.keys - near);
        });
}

/* to = from times the mask, for the first `rows` rows of a block; they may be the same. */
static void drop(const remat_call *call, const shape *s, block b, int64_t rows, const real *from, real *to) {
    const remat_key *key = &call->key;
    const uint32_t threshold = rm_dropout_threshold(s->dropout);
    const real scale = rm_dropout_scale(s->dropout);
    RM_PARALLEL_FOR(
        call->threads, rows * b.keys > RM_PARALLEL_MIN_HEAVY, for (int64_t r = 0; r < rows; r++) {
            for (int64_t j = 0; j < b.keys; j += 4) {
                rm_philox draw = rm_random4(key->seed, key->step, key->node, (uint32_t)(b.from + r),
                                            (uint32_t)(b.head * rm_attention_groups(s) + (b.first + j) / 4));
                for (int64_t i = 0; i < 4 && j + i < b.keys; i++)
                    to[r * b.keys + j + i] = rm_dropout(from[r * b.keys + j + i], draw.word[i], threshold, scale);
            }
        });
}

static void forward(const remat_call *call) {
    const shape s = shape_of(call);
    real *p = call->scratch;
    for (int64_t head = 0; head < s.batch * s.heads; head++)
        for (int64_t from = 0; from < s.steps; from += RM_ATTENTION_ROWS) {
            block b = block_of(call, &s, head, from);
            const real *v = (const real *)call->x[V].data + b.kv;
            real *y = (real *)call->y.data + b.at + from * s.ld;
            probabilities(call, &s, b, p);
            if (s.dropout > 0) drop(call, &s, b, b.rows, p, p);
            rm_gemm(call->threads, RM_PLAIN, RM_PLAIN, b.rows, s.width, b.keys, 1, p, b.keys, v, s.kv_ld, 0, y, s.ld);
        }
}

/* The rows of a block up to the last one with a nonzero gradient: timesteps after the end of the targets have none. */
static int64_t rows_with_gradient(const remat_call *call, const shape *s, block b) {
    const real *dy = (const real *)call->dy.data + b.at + b.from * s->ld;
    for (int64_t r = b.rows; r > 0; r--)
        for (int64_t i = 0; i < s->width; i++)
            if (!(dy[(r - 1) * s->ld + i] == 0)) return r;
    return 0;
}

/* Clears timesteps from .. end - 1 of one head. */
static void clear(real *d, int64_t ld, int64_t width, int64_t from, int64_t end) {
    for (int64_t t = from; d && t < end; t++) memset(d + t * ld, 0, (size_t)width * sizeof *d);
}

/* Turns `rows` rows of dp into gradients of the products of q and k, and adds those of the scores to dbias. */
static void score_gradients(const remat_call *call, const shape *s, block b, int64_t rows, const real *p, real *dp) {
    RM_PARALLEL_FOR(
        call->threads, rows * b.keys > RM_PARALLEL_MIN, for (int64_t r = 0; r < rows; r++) {
            real *d = dp + r * b.keys, *dbias = bias_at(&call->dx[BIAS], s, b.head, b.from + r);
            rm_attention_score_gradients(p + r * b.keys, d, b.keys, dbias ? 1 : (real)s->scale);
            for (int64_t j = 0; dbias && j < b.keys; j++) dbias[b.first + j] += d[j], d[j] *= (real)s->scale;
        });
}

/* Gradients from the first `rows` rows of a block; the other rows have none. Computes all of its dq and its share of dk
 * and dv, which are written or added to. */
static void backward_block(const remat_call *call, const shape *s, block b, int64_t rows, bool writes) {
    const int64_t here = b.at + b.from * s->ld, ld = s->ld, kv_ld = s->kv_ld;
    const real *q = (const real *)call->x[Q].data + here, *dy = (const real *)call->dy.data + here;
    const real *k = (const real *)call->x[K].data + b.kv, *v = (const real *)call->x[V].data + b.kv;
    real *dq = call->dx[Q].data, *dk = call->dx[K].data, *dv = call->dx[V].data;
    real *p = call->scratch, *dp = p + b.rows * b.keys, onto = writes ? 0 : 1;
    clear(dq ? dq + here : NULL, ld, s->width, rows, b.rows);
    if (!rows) return;
    probabilities(call, s, b, p);
    if (dv && s->dropout > 0) drop(call, s, b, rows, p, dp);
    if (dv)
        rm_gemm(call->threads, RM_TRANSPOSED, RM_PLAIN, b.keys, s->width, rows, 1, s->dropout > 0 ? dp : p, b.keys, dy,
                ld, onto, dv + b.kv, kv_ld);
    if (!dq && !dk && !call->dx[BIAS].data) return;
    rm_gemm(call->threads, RM_PLAIN, RM_TRANSPOSED, rows, b.keys, s->width, 1, dy, ld, v, kv_ld, 0, dp, b.keys);
    if (s->dropout > 0) drop(call, s, b, rows, dp, dp);
    score_gradients(call, s, b, rows, p, dp);
    if (dq)
        rm_gemm(call->threads, RM_PLAIN, RM_PLAIN, rows, s->width, b.keys, 1, dp, b.keys, k, kv_ld, 0, dq + here, ld);
    if (dk)
        rm_gemm(call->threads, RM_TRANSPOSED, RM_PLAIN, b.keys, s->width, rows, 1, dp, b.keys, q, ld, onto, dk + b.kv,
                kv_ld);
}

static void clear_keys(const remat_call *call, const shape *s, int64_t kv) {
    real *dk = call->dx[K].data, *dv = call->dx[V].data;
    clear(dk ? dk + kv : NULL, s->kv_ld, s->width, 0, s->keys);
    clear(dv ? dv + kv : NULL, s->kv_ld, s->width, 0, s->keys);
}

/* From the last block to the first. The last block attends to every key, so if it has gradients for all of them it
 * writes dk and dv, and the other blocks add to them. */
static void backward(const remat_call *call) {
    const shape s = shape_of(call);
    int64_t last = (s.steps - 1) / RM_ATTENTION_ROWS * RM_ATTENTION_ROWS;
    for (int64_t head = 0; head < s.batch * s.heads; head++)
        for (int64_t from = last; from >= 0; from -= RM_ATTENTION_ROWS) {
            block b = block_of(call, &s, head, from);
            int64_t rows = rows_with_gradient(call, &s, b);
            bool first = from == last && head % s.share == 0, writes = first && rows && b.keys == s.keys;
            if (first && !writes) clear_keys(call, &s, rm_attention_kv_at(&s, head));
            backward_block(call, &s, b, rows, writes);
        }
}

#define SHAPES(t, b, c) GROUPED(t, b, c, c)
#define GROUPED(t, b, c, kv)                                                                                           \
    { RM_SHAPE3(RM_REAL, t, b, c), RM_SHAPE3(RM_REAL, t, b, kv), RM_SHAPE3(RM_REAL, t, b, kv), RM_ABSENT, RM_ABSENT }
static const remat_sample samples[] = {
    {.name = "two heads", .sequence = true, .x = SHAPES(5, 2, 6), .attr = &(rm_attention_attr){2, 0, 0, 0}},
    {.name = "causal", .sequence = true, .x = SHAPES(23, 2, 6), .attr = &(rm_attention_attr){3, 1, 0, 0}},
    {.name = "four heads, two of k and v",
     .sequence = true,
     .x = GROUPED(9, 2, 8, 4),
     .attr = &(rm_attention_attr){4, 1, 0, 0}},
    {.name = "one of k and v, several blocks",
     .sequence = true,
     .x = GROUPED(260, 1, 3, 1),
     .attr = &(rm_attention_attr){3, 0, 0, 0}},
    {.name = "dropout", .sequence = true, .x = GROUPED(7, 2, 8, 4), .attr = &(rm_attention_attr){4, 1, 0.3, 0}},
    {.name = "a window", .sequence = true, .x = GROUPED(9, 2, 8, 4), .attr = &(rm_attention_attr){4, 1, 0.3, 3}},
    {.name = "a window and several blocks",
     .sequence = true,
     .x = SHAPES(520, 1, 1), /* also of blocks on CUDA */
     .attr = &(rm_attention_attr){1, 1, 0, 7}},
    {.name = "one timestep", .sequence = true, .x = SHAPES(1, 3, 2), .attr = &(rm_attention_attr){1, 1, 0, 0}},
    {.name = "several blocks", .sequence = true, .x = SHAPES(515, 1, 1), .attr = &(rm_attention_attr){1, 1, 0, 0}},
    {.name = "over another sequence, with fewer heads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 3, 4, 6), RM_SHAPE3(RM_REAL, 5, 4, 3), RM_SHAPE3(RM_REAL, 5, 4, 3),
           RM_SHAPE2(REMAT_I32, 5, 4), RM_ABSENT},
     .attr = &(rm_attention_attr){2, 0, 0, 0}},
    {.name = "rows of padding alone",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 2, 8, 3), RM_SHAPE3(RM_REAL, 1, 8, 3), RM_SHAPE3(RM_REAL, 1, 8, 3),
           RM_SHAPE2(REMAT_I32, 1, 8), RM_ABSENT},
     .attr = &(rm_attention_attr){1, 0, 0, 0}},
    {.name = "a bias, padding and fewer heads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 4, 8), RM_SHAPE3(RM_REAL, 5, 4, 4), RM_SHAPE3(RM_REAL, 5, 4, 4),
           RM_SHAPE2(REMAT_I32, 5, 4), RM_SHAPE3(RM_REAL, 4, 50, 50)},
     .attr = &(rm_attention_attr){4, 0, 0, 0}},
    {.name = "large enough for the library",
     .sequence = true,
     .x = SHAPES(136, 1, 64),
     .attr = &(rm_attention_attr){1, 0, 0, 0}},
};

const remat_op RM_OP(attention) = {
    .struct_bytes = sizeof(remat_op),
    .name = "attention",
    .doc = "y = softmax(q k^T / sqrt(C/heads)) v in each head; q (T,B,C), k, v (S,B,C) or with fewer heads",
    .n_in = 5,
    .optional = 1u << PADDING | 1u << BIAS,
    .shared = 1u << BIAS,
    .discrete = 1u << PADDING,
    .attr_bytes = sizeof(rm_attention_attr),
    .time = REMAT_TIME_FULL,
    .saves = {.in = 1u << Q | 1u << K | 1u << V | 1u << PADDING | 1u << BIAS},
    .infer = infer,
    .cost = cost,
    .bound = bound,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward},
           {.forward = RM_CUDA(attention, forward),
            .backward = RM_CUDA(attention, backward),
            .scratch_bytes = cuda_scratch_bytes}},
    .random = 1,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

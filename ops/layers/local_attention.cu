/* local_attention.cu: the op `local_attention` (local_attention.c, which says what a row is) on CUDA. A thread computes
 * an element; a warp the softmax of a timestep in one head. The scores of a timestep have a slot for each of the `window`
 * rows that it may see: slot m of timestep t is row t + m, and the last n of them are seen.
 *
 *     scratch    visible (tau,B) | angles (past + tau, 2 half) | rotated q (tau,B,C) | rotated k (past + tau, B, KV) |
 *                probabilities (tau,B,heads,window) | in backward their gradients */
#include "ops/cuda/reduce.cuh"
#include "ops/math/exp.h"

extern "C" {
#include "ops/layers/local_attention.h"
}

enum { Q = RM_LOCAL_Q, K = RM_LOCAL_K, V = RM_LOCAL_V, RESET = RM_LOCAL_RESET, PER_BLOCK = 8 /* warps */ };
enum { KEYS = RM_LOCAL_KEYS, VALUES = RM_LOCAL_VALUES, SEEN = RM_LOCAL_SEEN };
typedef rm_local_shape shape;

/* Rows of keys or values: those of the state, NULL for zeros, then the tile's. */
typedef struct {
    const float *state, *x;
} rows;

typedef struct {
    int32_t *visible;
    float *angle, *q, *k, *p, *dp;
} scratch;

static shape shape_of(const remat_call *call) {
    return rm_local_shape_of(&call->x[Q].desc, &call->x[K].desc, call->attr);
}

static rows rows_of(const remat_call *call, int which) {
    rows r = {(const float *)call->state_in[KEYS + which].data, (const float *)call->x[K + which].data};
    return r;
}

static scratch scratch_of(const remat_call *call, const shape &s) {
    scratch w;
    w.visible = (int32_t *)call->scratch;
    w.angle = (float *)call->scratch + s.tau * s.batch;
    w.q = w.angle + (s.past + s.tau) * 2 * s.half;
    w.k = w.q + s.tau * s.batch * s.ld;
    w.p = w.k + (s.past + s.tau) * s.batch * s.kv_ld;
    w.dp = w.p + s.tau * s.batch * s.heads * (s.past + 1);
    return w;
}

static __device__ inline float element(const shape &s, const rows &r, int64_t j, int64_t b, int64_t c) {
    if (j >= s.past) return r.x[((j - s.past) * s.batch + b) * s.kv_ld + c];
    return r.state ? r.state[(b * s.past + j) * s.kv_ld + c] : 0;
}

/* The first slot that timestep t sees. */
static __device__ inline int64_t first_slot(const shape &s, const int32_t *visible, int64_t t, int64_t b) {
    return s.past + 1 - visible[t * s.batch + b];
}

/* The first row that later tiles may see. */
static __device__ inline int64_t first_kept(const shape &s, const int32_t *visible, int64_t b) {
    return s.past + s.tau - rm_local_seen(&s, visible[(s.tau - 1) * s.batch + b]);
}

static __global__ void count_visible(shape s, const float *seen, const float *reset, int32_t *visible) {
    RM_EACH(b, s.batch) {
        int32_t n = rm_local_seen(&s, seen ? (double)seen[b] : 0);
        for (int64_t t = 0; t < s.tau; t++)
            n = visible[t * s.batch + b] = rm_local_visible(&s, n, reset && reset[t * s.batch + b] > 0);
    }
}

static __global__ void angles(shape s, float *table) {
    RM_EACH(n, (s.past + s.tau) * s.half) {
        int64_t j = rm_row_of(n, s.half), i = n - j * s.half;
        double angle = (double)(j - s.past) * rm_rotary_speed(s.base, i, 2 * s.half);
        table[j * 2 * s.half + i] = (float)cos(angle), table[j * 2 * s.half + s.half + i] = (float)sin(angle);
    }
}

/* Feature i of a head after the rotation by a row's angles; way -1: back. */
static __device__ inline float turned(const shape &s, const float *angle, float way, int64_t i, float own,
                                      float other) {
    if (i >= 2 * s.half) return own;
    if (i < s.half) return own * angle[i] - way * other * angle[s.half + i];
    return own * angle[i - s.half] + way * other * angle[i];
}
/* The feature that i is paired with. */
static __device__ inline int64_t partner(const shape &s, int64_t i) {
    return i >= 2 * s.half ? i : i < s.half ? i + s.half : i - s.half;
}

static __global__ void turn_q(shape s, const float *angle, const float *q, float *to) {
    RM_EACH(n, s.tau * s.batch * s.ld) {
        int64_t head = rm_row_of(n, s.width), i = n - head * s.width, t = head / (s.batch * s.heads);
        to[n] = turned(s, angle + (s.past + t) * 2 * s.half, 1, i, q[n], q[n - i + partner(s, i)]);
    }
}

static __global__ void turn_k(shape s, const float *angle, rows k, float *to) {
    RM_EACH(n, (s.past + s.tau) * s.batch * s.kv_ld) {
        int64_t at = rm_row_of(n, s.kv_ld), c = n - at * s.kv_ld, j = at / s.batch, b = at - j * s.batch;
        int64_t i = c % s.width;
        to[n] =
            turned(s, angle + j * 2 * s.half, 1, i, element(s, k, j, b, c), element(s, k, j, b, c - i + partner(s, i)));
    }
}

/* The products of rotated q and k, times scale, for each slot that is seen. */
static __global__ void scores(shape s, scratch w) {
    RM_EACH(n, s.tau * s.batch * s.heads * (s.past + 1)) {
        int64_t row = rm_row_of(n, s.past + 1), m = n - row * (s.past + 1), at = row / s.heads;
        int64_t t = at / s.batch, b = at - t * s.batch, head = row - at * s.heads;
        if (m < first_slot(s, w.visible, t, b)) continue;
        const float *q = w.q + row * s.width;
        const float *k = w.k + ((t + m) * s.batch + b) * s.kv_ld + head / s.share * s.width;
        float sum = 0;
        for (int64_t i = 0; i < s.width; i++) sum += q[i] * k[i];
        w.p[n] = sum * (float)s.scale;
    }
}

static __global__ void softmax(shape s, scratch w) {
    int64_t lane = threadIdx.x % RM_WARP, row = (int64_t)blockIdx.x * PER_BLOCK + threadIdx.x / RM_WARP;
    if (row >= s.tau * s.batch * s.heads) return; /* whole warps */
    int64_t at = row / s.heads, t = at / s.batch, first = first_slot(s, w.visible, t, at - t * s.batch);
    float *p = w.p + row * (s.past + 1), largest = p[first];
    double sum = 0;
    for (int64_t m = first + lane; m <= s.past; m += RM_WARP) largest = p[m] > largest ? p[m] : largest;
    largest = rm_warp_largest(largest);
    for (int64_t m = first + lane; m <= s.past; m += RM_WARP) sum += p[m] = rm_exp_nonpositive(p[m] - largest);
    float inverse = (float)(1 / rm_warp_sum(sum));
    for (int64_t m = first + lane; m <= s.past; m += RM_WARP) p[m] *= inverse;
}

static __global__ void results(shape s, scratch w, rows v, float *y) {
    RM_EACH(n, s.tau * s.batch * s.ld) {
        int64_t row = rm_row_of(n, s.width), i = n - row * s.width, at = row / s.heads;
        int64_t t = at / s.batch, b = at - t * s.batch, c = (row - at * s.heads) / s.share * s.width + i;
        float sum = 0;
        for (int64_t m = first_slot(s, w.visible, t, b); m <= s.past; m++)
            sum += w.p[row * (s.past + 1) + m] * element(s, v, t + m, b, c);
        y[n] = sum;
    }
}

static __global__ void pass_on(shape s, const int32_t *visible, rows from, float *state) {
    RM_EACH(n, s.batch * s.past * s.kv_ld) {
        int64_t at = rm_row_of(n, s.kv_ld), c = n - at * s.kv_ld, b = at / s.past, j = s.tau + at - b * s.past;
        state[n] = j >= first_kept(s, visible, b) ? element(s, from, j, b, c) : 0;
    }
}
static __global__ void pass_count_on(shape s, const int32_t *visible, float *seen) {
    RM_EACH(b, s.batch) seen[b] = (float)rm_local_seen(&s, visible[(s.tau - 1) * s.batch + b]);
}

/* The gradients of the probabilities. */
static __global__ void probability_gradients(shape s, scratch w, rows v, const float *dy) {
    RM_EACH(n, s.tau * s.batch * s.heads * (s.past + 1)) {
        int64_t row = rm_row_of(n, s.past + 1), m = n - row * (s.past + 1), at = row / s.heads;
        int64_t t = at / s.batch, b = at - t * s.batch, c = (row - at * s.heads) / s.share * s.width;
        if (m < first_slot(s, w.visible, t, b)) continue;
        float sum = 0;
        for (int64_t i = 0; i < s.width; i++) sum += dy[row * s.width + i] * element(s, v, t + m, b, c + i);
        w.dp[n] = sum;
    }
}

/* Replaces dp by p (dp - sum over the row of p dp) scale. */
static __global__ void score_gradients(shape s, scratch w) {
    int64_t lane = threadIdx.x % RM_WARP, row = (int64_t)blockIdx.x * PER_BLOCK + threadIdx.x / RM_WARP;
    if (row >= s.tau * s.batch * s.heads) return;
    int64_t at = row / s.heads, t = at / s.batch, first = first_slot(s, w.visible, t, at - t * s.batch);
    float *p = w.p + row * (s.past + 1), *dp = w.dp + row * (s.past + 1);
    double sum = 0;
    for (int64_t m = first + lane; m <= s.past; m += RM_WARP) sum += p[m] * dp[m];
    sum = rm_warp_sum(sum);
    for (int64_t m = first + lane; m <= s.past; m += RM_WARP) dp[m] = p[m] * (dp[m] - (float)sum) * (float)s.scale;
}

/* The gradient of the rotated q. */
static __global__ void turned_q_gradients(shape s, scratch w, float *dq) {
    RM_EACH(n, s.tau * s.batch * s.ld) {
        int64_t row = rm_row_of(n, s.width), i = n - row * s.width, at = row / s.heads;
        int64_t t = at / s.batch, b = at - t * s.batch, c = (row - at * s.heads) / s.share * s.width + i;
        float sum = 0;
        for (int64_t m = first_slot(s, w.visible, t, b); m <= s.past; m++)
            sum += w.dp[row * (s.past + 1) + m] * w.k[((t + m) * s.batch + b) * s.kv_ld + c];
        dq[n] = sum;
    }
}

/* Rotates q's gradients back, in place: a thread for each pair. */
static __global__ void turn_q_back(shape s, const float *angle, float *dq) {
    RM_EACH(n, s.tau * s.batch * s.heads * s.half) {
        int64_t row = rm_row_of(n, s.half), i = n - row * s.half, t = row / (s.batch * s.heads);
        const float *a = angle + (s.past + t) * 2 * s.half;
        float *d = dq + row * s.width + i, first = d[0], second = d[s.half];
        d[0] = turned(s, a, -1, i, first, second), d[s.half] = turned(s, a, -1, s.half + i, second, first);
    }
}

/* The sum over the timesteps that see row j, and the heads of q that read this head, of weight[t,head,slot] x[t,head]. */
static __device__ float sum_over_readers(const shape &s, const int32_t *visible, const float *weight, const float *x,
                                         int64_t j, int64_t b, int64_t c) {
    int64_t kv = c / s.width, i = c - kv * s.width, last = j < s.tau - 1 ? j : s.tau - 1;
    float sum = 0;
    for (int64_t t = j > s.past ? j - s.past : 0; t <= last; t++) {
        if (j - t < first_slot(s, visible, t, b)) continue;
        for (int64_t head = kv * s.share; head < (kv + 1) * s.share; head++) {
            int64_t row = (t * s.batch + b) * s.heads + head;
            sum += weight[row * (s.past + 1) + j - t] * x[row * s.width + i];
        }
    }
    return sum;
}

static __global__ void key_gradients(shape s, scratch w, const float *weight, const float *x, float *to) {
    RM_EACH(n, (s.past + s.tau) * s.batch * s.kv_ld) {
        int64_t at = rm_row_of(n, s.kv_ld), c = n - at * s.kv_ld, j = at / s.batch, b = at - j * s.batch;
        to[n] = sum_over_readers(s, w.visible, weight, x, j, b, c);
    }
}

/* Writes the gradients d of all rows, rotated back if there are angles, with what later tiles have passed back. */
static __global__ void hand_out(shape s, const int32_t *visible, const float *angle, const float *d, const float *later,
                                float *dx, float *dstate) {
    RM_EACH(n, (s.past + s.tau) * s.batch * s.kv_ld) {
        int64_t at = rm_row_of(n, s.kv_ld), c = n - at * s.kv_ld, j = at / s.batch, b = at - j * s.batch;
        int64_t i = c % s.width;
        float sum = angle ? turned(s, angle + j * 2 * s.half, -1, i, d[n], d[n - i + partner(s, i)]) : d[n];
        if (later && j >= first_kept(s, visible, b)) sum += later[(b * s.past + j - s.tau) * s.kv_ld + c];
        if (j >= s.past && dx) dx[((j - s.past) * s.batch + b) * s.kv_ld + c] = sum;
        if (j < s.past && dstate) dstate[(b * s.past + j) * s.kv_ld + c] = sum;
    }
}

static __global__ void clear(int64_t n, float *to) { RM_EACH(i, n) to[i] = 0; }

static void probabilities(const remat_call *call, const shape &s, const scratch &w) {
    const int64_t heads = s.tau * s.batch * s.heads, all = s.past + s.tau;
    RM_LAUNCH_EACH(count_visible, s.batch, call->queue, s, (const float *)call->state_in[SEEN].data,
                   (const float *)call->x[RESET].data, w.visible);
    RM_LAUNCH_EACH(angles, all * s.half, call->queue, s, w.angle);
    RM_LAUNCH_EACH(turn_q, heads * s.width, call->queue, s, w.angle, (const float *)call->x[Q].data, w.q);
    RM_LAUNCH_EACH(turn_k, all * s.batch * s.kv_ld, call->queue, s, w.angle, rows_of(call, 0), w.k);
    RM_LAUNCH_EACH(scores, heads * (s.past + 1), call->queue, s, w);
    RM_LAUNCH_TOGETHER(softmax, rm_blocks_of(heads, PER_BLOCK), PER_BLOCK * RM_WARP, call->queue, s, w);
}

void rm_local_attention_forward_cuda(const remat_call *call) {
    const shape s = shape_of(call);
    const scratch w = scratch_of(call, s);
    probabilities(call, s, w);
    RM_LAUNCH_EACH(results, s.tau * s.batch * s.ld, call->queue, s, w, rows_of(call, 1), (float *)call->y.data);
    for (int which = 0; which < 2; which++)
        RM_LAUNCH_EACH(pass_on, s.batch * s.past * s.kv_ld, call->queue, s, w.visible, rows_of(call, which),
                       (float *)call->state_out[KEYS + which].data);
    RM_LAUNCH_EACH(pass_count_on, s.batch, call->queue, s, w.visible, (float *)call->state_out[SEEN].data);
}

/* The gradients of k (which = 0) or v; `weight` and x: those of sum_over_readers. They overwrite the rotated k. */
static void backward_keys(const remat_call *call, const shape &s, const scratch &w, int which, const float *weight,
                          const float *x) {
    const int64_t count = (s.past + s.tau) * s.batch * s.kv_ld;
    float *dx = (float *)call->dx[K + which].data, *dstate = (float *)call->dstate_in[KEYS + which].data;
    if (!dx && !dstate) return;
    RM_LAUNCH_EACH(key_gradients, count, call->queue, s, w, weight, x, w.k);
    RM_LAUNCH_EACH(hand_out, count, call->queue, s, w.visible, which ? (const float *)NULL : w.angle, w.k,
                   (const float *)call->dstate_out[KEYS + which].data, dx, dstate);
}

void rm_local_attention_backward_cuda(const remat_call *call) {
    const shape s = shape_of(call);
    const scratch w = scratch_of(call, s);
    const int64_t heads = s.tau * s.batch * s.heads;
    const float *dy = (const float *)call->dy.data;
    float *dq = (float *)call->dx[Q].data, *dreset = (float *)call->dx[RESET].data;
    float *dseen = (float *)call->dstate_in[SEEN].data;
    probabilities(call, s, w);
    RM_LAUNCH_EACH(probability_gradients, heads * (s.past + 1), call->queue, s, w, rows_of(call, 1), dy);
    RM_LAUNCH_TOGETHER(score_gradients, rm_blocks_of(heads, PER_BLOCK), PER_BLOCK * RM_WARP, call->queue, s, w);
    if (dq) RM_LAUNCH_EACH(turned_q_gradients, heads * s.width, call->queue, s, w, dq);
    if (dq) RM_LAUNCH_EACH(turn_q_back, heads * s.half, call->queue, s, w.angle, dq);
    backward_keys(call, s, w, 1, w.p, dy);
    backward_keys(call, s, w, 0, w.dp, w.q);
    if (dseen) RM_LAUNCH_EACH(clear, s.batch, call->queue, s.batch, dseen);
    if (dreset) RM_LAUNCH_EACH(clear, s.tau * s.batch, call->queue, s.tau * s.batch, dreset);
}

/* local_attention.c: the op `local_attention`: causal attention to the last `window` timesteps, with rotary positions,
 * as a recurrence: its states are the keys and values of the last window - 1 timesteps. Attention of RecurrentGemma and
 * Griffin (De et al. 2024). For each head
 *
 *   y[t] = sum over s of p[t,s] v[s],   p[t] = softmax over s of rotated q[t] . rotated k[s] / sqrt(D),
 *
 * over the last `window` timesteps s <= t. Heads and shared k and v are those of attention.c. Only the distance in time counts in a
 * product of a rotated q and a rotated k (rotary.c). The states therefore hold k as it came, and each call counts time
 * from its own tile: no position has to be carried.
 *
 * The third state is the number of timesteps that there have been, at most window - 1. A state of zeros, as at the start
 * or after a reset, thus has no keys. Where reset[t,b] > 0, keys before t are not seen from there on.
 *
 * Scratch holds a block of rows of scores at a time. Backward recomputes it, so nothing is saved but the inputs and
 * the states at the tile's start. */
#include "ops/real.h"

#include <string.h>

#include "ops/layers/attention_row.h"
#include "ops/layers/local_attention.h"
#include "ops/math/gemm.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { Q = RM_LOCAL_Q, K = RM_LOCAL_K, V = RM_LOCAL_V, RESET = RM_LOCAL_RESET };
enum { KEYS = RM_LOCAL_KEYS, VALUES = RM_LOCAL_VALUES, SEEN = RM_LOCAL_SEEN };
enum { ROWS = 128 /* of scores at a time */, ALIGN = 64 };
typedef rm_local_shape shape;

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    char text[REMAT_DESC_TEXT], k_text[REMAT_DESC_TEXT];
    const rm_local_attention_attr *a = attr;
    TRY(rm_want_real("local_attention", "q", &x[Q]));
    TRY(rm_want_rank("local_attention", "q", &x[Q], 3, 3));
    TRY(rm_want_real("local_attention", "k", &x[K]));
    TRY(rm_want_rank("local_attention", "k", &x[K], 3, 3));
    TRY(rm_want_same("local_attention", "k", &x[K], "v", &x[V]));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("local_attention", &x[RESET], &x[Q]));
    REQUIRE(a && a->heads >= 1 && x[Q].dim[2] % a->heads == 0, INVALID,
            "local_attention: q is %s, whose %lld features cannot be split into %lld heads; use a number of heads that "
            "divides them",
            rm_desc_text(&x[Q], text), (long long)x[Q].dim[2], (long long)(a ? a->heads : 0));
    int64_t width = x[Q].dim[2] / a->heads;
    REQUIRE(x[K].dim[0] == x[Q].dim[0] && x[K].dim[1] == x[Q].dim[1] && x[K].dim[2] % width == 0 &&
                x[Q].dim[2] % x[K].dim[2] == 0,
            INVALID,
            "local_attention: q is %s and k is %s; k and v must have q's timesteps, batch size and heads of %lld "
            "features, and their number of heads must divide %lld",
            rm_desc_text(&x[Q], text), rm_desc_text(&x[K], k_text), (long long)width, (long long)a->heads);
    REQUIRE(a->window >= 2 && a->window <= INT32_MAX, INVALID,
            "local_attention: the window is %lld; it must be at least 2 and below 2^31", (long long)a->window);
    REQUIRE(a->rotary >= 0 && a->rotary % 2 == 0 && a->rotary <= width, INVALID,
            "local_attention: %lld features of each head are rotated; it must be an even number of at most %lld",
            (long long)a->rotary, (long long)width);
    REQUIRE(a->rotary == 0 || (a->base > 0 && isfinite(a->base)), INVALID,
            "local_attention: base is %g; it must be above 0", a->base);
    *y = x[Q];
    for (int i = KEYS; i <= VALUES; i++)
        state[i] = rm_desc_make(RM_REAL, 3, (int64_t[]){x[K].dim[1], a->window - 1, x[K].dim[2]});
    state[SEEN] = rm_desc_make(RM_REAL, 1, (int64_t[]){x[K].dim[1]});
    return REMAT_OK;
}

static shape shape_of(const remat_call *call) {
    return rm_local_shape_of(&call->x[Q].desc, &call->x[K].desc, call->attr);
}

static uint64_t aligned(int64_t bytes) { return ((uint64_t)bytes + ALIGN - 1) / ALIGN * ALIGN; }
static int64_t block_rows(const shape *s) { return s->tau < ROWS ? s->tau : ROWS; }

/* Products over pairs of a timestep and a key in each head: two in forward, five in backward. */
static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const shape s = rm_local_shape_of(&x[Q], &x[K], attr);
    const bool back = pass == REMAT_BACKWARD;
    double pairs = (double)s.tau * (double)(s.batch * s.heads) * (double)(s.past + 1), products = back ? 5 : 2;
    int64_t rows = block_rows(&s), all = s.past + s.tau, keys = rows + s.past;
    *out = rm_cost_streaming(y, 3, back ? 4 : 2);
    out->moved_bytes += rm_cost_streaming(&x[K], 0, back ? 4 : 2).moved_bytes;
    out->moved_bytes += (double)(s.batch * s.past * s.kv_ld) * sizeof(real) * (back ? 6 : 4);
    out->flops += pairs * (products * 2 * (double)s.width + 20); /* an exp is about 16 operations */
    int64_t floats = all * 2 * s.half + all * s.width * (back ? 4 : 2) + rows * s.width * (back ? 2 : 1);
    floats += rows * keys * (back ? 2 : 1);
    out->scratch_bytes = aligned(s.tau * s.batch * (int64_t)sizeof(int32_t)) + (uint64_t)floats * sizeof(real);
}

/* local_attention.cu's arrays. */
static uint64_t cuda_scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    const shape s = rm_local_shape_of(&x[Q], &x[K], attr);
    int64_t all = s.past + s.tau, scores = s.tau * s.batch * s.heads * (s.past + 1);
    (void)aux, (void)threads;
    return sizeof(float) * (uint64_t)(s.tau * s.batch * (1 + s.ld) + all * (2 * s.half + s.batch * s.kv_ld) +
                                      (pass == REMAT_BACKWARD ? 2 : 1) * scores);
}

/* Fills in how many keys each timestep sees, (tau,B). */
static const int32_t *count_visible(const remat_call *call, const shape *s) {
    const real *reset = call->x[RESET].data, *seen = call->state_in[SEEN].data;
    int32_t *visible = call->scratch;
    for (int64_t b = 0; b < s->batch; b++) {
        int32_t n = rm_local_seen(s, seen ? (double)seen[b] : 0);
        for (int64_t t = 0; t < s->tau; t++)
            n = visible[t * s->batch + b] = rm_local_visible(s, n, reset && reset[t * s->batch + b] > 0);
    }
    return visible;
}

/* The outgoing number of keys; and the first row that later timesteps may see. */
static int32_t kept(const shape *s, const int32_t *visible, int64_t b) {
    return rm_local_seen(s, visible[(s->tau - 1) * s->batch + b]);
}
static int64_t first_kept(const shape *s, const int32_t *visible, int64_t b) {
    return s->past + s->tau - kept(s, visible, b);
}

/* Row j of batch row b of the keys (which = 0) or values (1), all heads; NULL: zeros. */
static const real *row_of(const remat_call *call, const shape *s, int which, int64_t j, int64_t b) {
    const real *state = call->state_in[KEYS + which].data, *x = call->x[K + which].data;
    if (j >= s->past) return x + ((j - s->past) * s->batch + b) * s->kv_ld;
    return state ? state + (b * s->past + j) * s->kv_ld : NULL;
}

static void pass_on(const remat_call *call, const shape *s, const int32_t *visible) {
    real *seen = call->state_out[SEEN].data;
    for (int64_t b = 0; b < s->batch; b++) seen[b] = (real)kept(s, visible, b);
    for (int which = 0; which < 2; which++)
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t p = 0; p < s->past; p++) {
                int64_t j = s->tau + p;
                const real *from = j >= first_kept(s, visible, b) ? row_of(call, s, which, j, b) : NULL;
                real *to = (real *)call->state_out[KEYS + which].data + (b * s->past + p) * s->kv_ld;
                if (from)
                    memcpy(to, from, (size_t)s->kv_ld * sizeof *to);
                else
                    memset(to, 0, (size_t)s->kv_ld * sizeof *to);
            }
}

/* The gradient of row j's keys or values that later tiles have passed back; NULL: zeros. */
static const real *passed_back(const remat_call *call, const shape *s, const int32_t *visible, int which, int64_t j,
                               int64_t b) {
    const real *d = call->dstate_out[KEYS + which].data;
    return d && j >= first_kept(s, visible, b) ? d + (b * s->past + j - s->tau) * s->kv_ld : NULL;
}

/* Where the gradient of row j's keys or values goes; NULL: not wanted. */
static real *gradient_of(const remat_call *call, const shape *s, int which, int64_t j, int64_t b) {
    real *state = call->dstate_in[KEYS + which].data, *x = call->dx[K + which].data;
    if (j < s->past) return state ? state + (b * s->past + j) * s->kv_ld : NULL;
    return x ? x + ((j - s->past) * s->batch + b) * s->kv_ld : NULL;
}

static void clear_counts(const remat_call *call, const shape *s) {
    real *dseen = call->dstate_in[SEEN].data, *dreset = call->dx[RESET].data;
    if (dseen) memset(dseen, 0, (size_t)s->batch * sizeof *dseen);
    if (dreset) memset(dreset, 0, (size_t)(s->tau * s->batch) * sizeof *dreset);
}

/* ---- The definition ---------------------------------------------------------------------------------------------- */

/* Feature i of a head's q or k after a rotation by `distance` timesteps. */
static real turned(const shape *s, const real *x, int64_t i, double distance) {
    if (i >= 2 * s->half) return x[i];
    int64_t pair = i % s->half;
    double angle = distance * rm_rotary_speed(s->base, pair, 2 * s->half), cosine = cos(angle), sine = sin(angle);
    return (real)(i < s->half ? x[pair] * cosine - x[s->half + pair] * sine
                              : x[s->half + pair] * cosine + x[pair] * sine);
}

/* Computes the probabilities of the n keys that end at row `past` + t. */
static void define_row(const remat_call *call, const shape *s, int64_t b, int64_t head, int64_t t, int64_t n, real *p) {
    const real *q = (const real *)call->x[Q].data + (t * s->batch + b) * s->ld + head * s->width;
    int64_t at = head / s->share * s->width;
    real largest = 0, sum = 0;
    for (int64_t m = 0; m < n; m++) {
        const real *k = row_of(call, s, 0, s->past + t - n + 1 + m, b);
        p[m] = 0;
        for (int64_t i = 0; k && i < s->width; i++) p[m] += turned(s, q, i, (double)(n - 1 - m)) * k[at + i];
        p[m] *= (real)s->scale;
        largest = m == 0 || p[m] > largest ? p[m] : largest;
    }
    for (int64_t m = 0; m < n; m++) sum += p[m] = real_exp(p[m] - largest);
    for (int64_t m = 0; m < n; m++) p[m] /= sum;
}

/* After the numbers of keys in scratch. */
static real *numbers_of(const remat_call *call, const shape *s) {
    return (real *)((char *)call->scratch + aligned(s->tau * s->batch * (int64_t)sizeof(int32_t)));
}

static void define_forward(const remat_call *call) {
    const shape s = shape_of(call);
    const int32_t *visible = count_visible(call, &s);
    real *p = numbers_of(call, &s);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t head = 0; head < s.heads; head++)
            for (int64_t t = 0; t < s.tau; t++) {
                int64_t n = visible[t * s.batch + b], at = head / s.share * s.width;
                real *y = (real *)call->y.data + (t * s.batch + b) * s.ld + head * s.width;
                define_row(call, &s, b, head, t, n, p);
                for (int64_t i = 0; i < s.width; i++) {
                    y[i] = 0;
                    for (int64_t m = 0; m < n; m++) {
                        const real *v = row_of(call, &s, 1, s.past + t - n + 1 + m, b);
                        y[i] += v ? p[m] * v[at + i] : 0;
                    }
                }
            }
    pass_on(call, &s, visible);
}

/* Every gradient of k, v and states begins with what later tiles have passed back. */
static void define_begin(const remat_call *call, const shape *s, const int32_t *visible) {
    for (int which = 0; which < 2; which++)
        for (int64_t b = 0; b < s->batch; b++)
            for (int64_t j = 0; j < s->past + s->tau; j++) {
                const real *from = passed_back(call, s, visible, which, j, b);
                real *to = gradient_of(call, s, which, j, b);
                for (int64_t i = 0; to && i < s->kv_ld; i++) to[i] = from ? from[i] : 0;
            }
}

static void define_backward_row(const remat_call *call, const shape *s, int64_t b, int64_t head, int64_t t, int64_t n,
                                const real *p, real *dp) {
    const int64_t here = (t * s->batch + b) * s->ld + head * s->width, at = head / s->share * s->width;
    const real *q = (const real *)call->x[Q].data + here, *dy = (const real *)call->dy.data + here;
    real *dq = call->dx[Q].data, mean = 0;
    for (int64_t m = 0; m < n; m++) {
        const real *v = row_of(call, s, 1, s->past + t - n + 1 + m, b);
        dp[m] = 0; /* y[t] = sum over m of p[m] v[m] */
        for (int64_t i = 0; v && i < s->width; i++) dp[m] += dy[i] * v[at + i];
        mean += p[m] * dp[m];
    }
    for (int64_t i = 0; dq && i < s->width; i++) dq[here + i] = 0;
    for (int64_t m = 0; m < n; m++) {
        const int64_t j = s->past + t - n + 1 + m;
        const double distance = (double)(n - 1 - m);
        const real d = p[m] * (dp[m] - mean) * (real)s->scale, *k = row_of(call, s, 0, j, b);
        real *dk = gradient_of(call, s, 0, j, b), *dv = gradient_of(call, s, 1, j, b);
        for (int64_t i = 0; i < s->width; i++) {
            if (dq && k) dq[here + i] += d * turned(s, k + at, i, -distance);
            if (dk) dk[at + i] += d * turned(s, q, i, distance);
            if (dv) dv[at + i] += p[m] * dy[i];
        }
    }
}

static void define_backward(const remat_call *call) {
    const shape s = shape_of(call);
    const int32_t *visible = count_visible(call, &s);
    real *p = numbers_of(call, &s);
    define_begin(call, &s, visible);
    clear_counts(call, &s);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t head = 0; head < s.heads; head++)
            for (int64_t t = 0; t < s.tau; t++) {
                int64_t n = visible[t * s.batch + b];
                define_row(call, &s, b, head, t, n, p);
                define_backward_row(call, &s, b, head, t, n, p, p + s.past + 1);
            }
}

/* ---- The fast version: rows of one head of k and v side by side, and matrix products over a block of timesteps ----- */

typedef struct {
    const int32_t *visible; /* (tau,B) */
    int64_t lowest;         /* no timestep sees a row before it, so these are left out */
    real *angle;            /* (past + tau, 2 half): the cosines of each row's angles, then their sines */
    real *k, *v, *dk, *dv;  /* (past + tau, D): k rotated. Gradients in backward only */
    real *q, *dq;           /* (ROWS, D): q rotated */
    real *p, *dp;           /* (ROWS, keys) */
} scratch;

static scratch scratch_of(const remat_call *call, const shape *s, bool back) {
    int64_t rows = block_rows(s), all = s->past + s->tau;
    scratch w = {.visible = count_visible(call, s), .lowest = s->past, .angle = numbers_of(call, s)};
    for (int64_t b = 0; b < s->batch; b++) /* later timesteps see no row before these */
        w.lowest = s->past + 1 - w.visible[b] < w.lowest ? s->past + 1 - w.visible[b] : w.lowest;
    w.k = w.angle + all * 2 * s->half, w.v = w.k + all * s->width;
    w.dk = w.v + all * s->width, w.dv = back ? w.dk + all * s->width : w.dk;
    w.q = back ? w.dv + all * s->width : w.dk;
    w.dq = w.q + rows * s->width;
    w.p = back ? w.dq + rows * s->width : w.dq;
    w.dp = w.p + rows * (rows + s->past);
    return w;
}

static void fill_angles(const remat_call *call, const shape *s, const scratch *w) {
    int64_t all = s->past + s->tau, half = s->half;
    RM_PARALLEL_FOR(
        call->threads, all * half > RM_PARALLEL_MIN_HEAVY / 8, for (int64_t i = 0; i < half; i++) {
            double speed = rm_rotary_speed(s->base, i, 2 * half);
            for (int64_t j = w->lowest; j < all; j++) {
                double a = (double)(j - s->past) * speed;
                w->angle[j * 2 * half + i] = (real)cos(a), w->angle[j * 2 * half + half + i] = (real)sin(a);
            }
        });
}

/* to = a head's features, rotated by the angles of its row, or back (way -1); they may be the same. */
static void turn(const shape *s, const real *angle, real way, const real *from, real *to) {
    const real *cosine = angle, *sine = angle + s->half;
    for (int64_t i = 0; i < s->half; i++) {
        real a = from[i], b = from[s->half + i];
        to[i] = a * cosine[i] - way * b * sine[i], to[s->half + i] = b * cosine[i] + way * a * sine[i];
    }
    if (to != from) memcpy(to + 2 * s->half, from + 2 * s->half, (size_t)(s->width - 2 * s->half) * sizeof *to);
}

/* Collects one head of k and v; in backward their gradients start at 0. */
static void collect(const remat_call *call, const shape *s, const scratch *w, int64_t b, int64_t head, bool back) {
    const int64_t all = s->past + s->tau, at = head * s->width, D = s->width;
    const size_t bytes = (size_t)D * sizeof(real);
    RM_PARALLEL_FOR(
        call->threads, all * D > RM_PARALLEL_MIN, for (int64_t j = w->lowest; j < all; j++) {
            const real *k = row_of(call, s, 0, j, b), *v = row_of(call, s, 1, j, b);
            const real *angle = w->angle + j * 2 * s->half;
            if (k)
                turn(s, angle, 1, k + at, w->k + j * D);
            else
                memset(w->k + j * D, 0, bytes);
            if (v)
                memcpy(w->v + j * D, v + at, bytes);
            else
                memset(w->v + j * D, 0, bytes);
            if (back) memset(w->dk + j * D, 0, bytes), memset(w->dv + j * D, 0, bytes);
        });
}

/* Timesteps from .. from + rows - 1 of one head of q; they see keys among rows first .. first + keys - 1. */
typedef struct {
    int64_t b, head, from, rows, first, keys;
} block;

static block block_of(const shape *s, const scratch *w, int64_t b, int64_t head, int64_t from) {
    int64_t rows = s->tau - from < ROWS ? s->tau - from : ROWS, first = s->past + from;
    for (int64_t t = from; t < from + rows; t++) {
        int64_t sees = s->past + t + 1 - w->visible[t * s->batch + b];
        first = sees < first ? sees : first;
    }
    return (block){b, head, from, rows, first, s->past + from + rows - first};
}

/* Computes the rotated q and the probabilities (rows,keys) of a block. Forward and backward get the same bits. */
static void probabilities(const remat_call *call, const shape *s, const scratch *w, block o) {
    const int64_t D = s->width;
    const real *q = (const real *)call->x[Q].data + o.b * s->ld + o.head * D;
    for (int64_t r = 0; r < o.rows; r++) {
        int64_t t = o.from + r;
        turn(s, w->angle + (s->past + t) * 2 * s->half, 1, q + t * s->batch * s->ld, w->q + r * D);
    }
    rm_gemm(call->threads, RM_PLAIN, RM_TRANSPOSED, o.rows, o.keys, D, (real)s->scale, w->q, D, w->k + o.first * D, D,
            0, w->p, o.keys);
    RM_PARALLEL_FOR(
        call->threads, o.rows * o.keys > RM_PARALLEL_MIN_HEAVY, for (int64_t r = 0; r < o.rows; r++) {
            int64_t n = w->visible[(o.from + r) * s->batch + o.b], near = s->past + o.from + r + 1 - n - o.first;
            real *row = w->p + r * o.keys;
            memset(row, 0, (size_t)near * sizeof *row);
            rm_attention_softmax(row + near, n, o.keys - near);
        });
}

static void forward(const remat_call *call) {
    const shape s = shape_of(call);
    const scratch w = scratch_of(call, &s, false);
    const int64_t D = s.width, ld = s.batch * s.ld;
    fill_angles(call, &s, &w);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t kv = 0; kv < s.kv_heads; kv++) {
            collect(call, &s, &w, b, kv, false);
            for (int64_t head = kv * s.share; head < (kv + 1) * s.share; head++)
                for (int64_t from = 0; from < s.tau; from += ROWS) {
                    block o = block_of(&s, &w, b, head, from);
                    real *y = (real *)call->y.data + (from * s.batch + b) * s.ld + head * D;
                    probabilities(call, &s, &w, o);
                    rm_gemm(call->threads, RM_PLAIN, RM_PLAIN, o.rows, D, o.keys, 1, w.p, o.keys, w.v + o.first * D, D,
                            0, y, ld);
                }
        }
    pass_on(call, &s, w.visible);
}

/* Adds a block's share to dk and dv, and computes all of its dq. */
static void backward_block(const remat_call *call, const shape *s, const scratch *w, block o) {
    const int64_t D = s->width, ld = s->batch * s->ld, here = (o.from * s->batch + o.b) * s->ld + o.head * D;
    const real *dy = (const real *)call->dy.data + here, *k = w->k + o.first * D, *v = w->v + o.first * D;
    real *dq = call->dx[Q].data;
    probabilities(call, s, w, o);
    rm_gemm(call->threads, RM_TRANSPOSED, RM_PLAIN, o.keys, D, o.rows, 1, w->p, o.keys, dy, ld, 1, w->dv + o.first * D,
            D);
    rm_gemm(call->threads, RM_PLAIN, RM_TRANSPOSED, o.rows, o.keys, D, 1, dy, ld, v, D, 0, w->dp, o.keys);
    RM_PARALLEL_FOR(call->threads, o.rows * o.keys > RM_PARALLEL_MIN,
                    for (int64_t r = 0; r < o.rows; r++)
                        rm_attention_score_gradients(w->p + r * o.keys, w->dp + r * o.keys, o.keys, (real)s->scale););
    rm_gemm(call->threads, RM_TRANSPOSED, RM_PLAIN, o.keys, D, o.rows, 1, w->dp, o.keys, w->q, D, 1,
            w->dk + o.first * D, D);
    if (!dq) return;
    rm_gemm(call->threads, RM_PLAIN, RM_PLAIN, o.rows, D, o.keys, 1, w->dp, o.keys, k, D, 0, w->dq, D);
    for (int64_t r = 0; r < o.rows; r++)
        turn(s, w->angle + (s->past + o.from + r) * 2 * s->half, -1, w->dq + r * D, dq + here + r * ld);
}

/* Writes the gradients of one head of k and v, with what later tiles have passed back. */
static void hand_out(const remat_call *call, const shape *s, const scratch *w, int64_t b, int64_t head) {
    const int64_t all = s->past + s->tau, at = head * s->width, D = s->width;
    RM_PARALLEL_FOR(
        call->threads, all * D > RM_PARALLEL_MIN, for (int64_t j = 0; j < all; j++) {
            const bool seen = j >= w->lowest;
            if (seen) turn(s, w->angle + j * 2 * s->half, -1, w->dk + j * D, w->dk + j * D);
            for (int which = 0; which < 2; which++) {
                const real *later = passed_back(call, s, w->visible, which, j, b), *d = which ? w->dv : w->dk;
                real *to = gradient_of(call, s, which, j, b);
                for (int64_t i = 0; to && i < D; i++)
                    to[at + i] = (seen ? d[j * D + i] : 0) + (later ? later[at + i] : 0);
            }
        });
}

static void backward(const remat_call *call) {
    const shape s = shape_of(call);
    const scratch w = scratch_of(call, &s, true);
    fill_angles(call, &s, &w);
    clear_counts(call, &s);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t kv = 0; kv < s.kv_heads; kv++) {
            collect(call, &s, &w, b, kv, true);
            for (int64_t head = kv * s.share; head < (kv + 1) * s.share; head++)
                for (int64_t from = 0; from < s.tau; from += ROWS)
                    backward_block(call, &s, &w, block_of(&s, &w, b, head, from));
            hand_out(call, &s, &w, b, kv);
        }
}

#define SHAPES(t, b, c, kv) RM_SHAPE3(RM_REAL, t, b, c), RM_SHAPE3(RM_REAL, t, b, kv), RM_SHAPE3(RM_REAL, t, b, kv)
static const remat_sample samples[] = {
    {.name = "half of the features rotated, one head of k and v",
     .sequence = true,
     .x = {SHAPES(9, 2, 8, 4), RM_ABSENT},
     .attr = &(rm_local_attention_attr){2, 4, 2, 10000}},
    {.name = "resets, all features rotated",
     .sequence = true,
     .x = {SHAPES(11, 3, 4, 4), RM_SHAPE2(RM_REAL, 11, 3)},
     .attr = &(rm_local_attention_attr){2, 3, 2, 100}},
    {.name = "shorter than the window, no rotation",
     .sequence = true,
     .x = {SHAPES(5, 2, 6, 3), RM_ABSENT},
     .attr = &(rm_local_attention_attr){2, 8, 0, 0}},
    {.name = "several blocks",
     .sequence = true,
     .x = {SHAPES(140, 1, 4, 4), RM_ABSENT},
     .attr = &(rm_local_attention_attr){1, 20, 2, 10}},
};

const remat_op RM_OP(local_attention) = {
    .struct_bytes = sizeof(remat_op),
    .name = "local_attention",
    .doc =
        "y (T,B,C): causal attention to the last `window` timesteps, with rotary positions, whose keys and values are "
        "carried states; q (T,B,C), k and v (T,B,C) or with fewer heads",
    .n_in = RM_LOCAL_INPUTS,
    .n_state = RM_LOCAL_STATES,
    .state_name = {"k", "v", "seen"},
    .optional = 1u << RESET,
    .resets = 1u << RESET,
    .attr_bytes = sizeof(rm_local_attention_attr),
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = 1u << Q | 1u << K | 1u << V | 1u << RESET, .state = true},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward},
           {.forward = RM_CUDA(local_attention, forward),
            .backward = RM_CUDA(local_attention, backward),
            .scratch_bytes = cuda_scratch_bytes}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

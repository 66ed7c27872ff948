/* m2rnn.c: the op `m2rnn`: M2RNN (2026), a recurrence of matrices that is not linear: for each head a matrix H (K,V), with
 * a square matrix W (V,V),
 *
 *   Z = tanh(H W + k v^T);  H' = f H + (1 - f) Z;  y = H'^T q             H is 0 where reset[t,b] > 0
 *
 *   inputs   q, k (tau,B,H K); v (tau,B,H V); f (tau,B,H); w (H,V,V); reset (tau,B) optional
 *   output   y (tau,B,H V); state H (B,H,K,V)
 *
 * No aux: of all H only that before the tile is saved, as it is as large as many timesteps of inputs. Backward makes the
 * others, and Z, again in scratch. A thread has heads of its own, and takes the rows of the batch one after the other, so
 * that no sum depends on the threads. The products are small_product's, the tanh that of the activations. */
#include "ops/real.h"

#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { Q, K, V, F, W, RESET, INPUTS };

typedef struct {
    int64_t tau, batch, heads, keys, values, matrix; /* matrix: K V */
} sizes;

static sizes sizes_of(const remat_desc *q, const remat_desc *w) {
    sizes s = {.tau = q->dim[0], .batch = q->dim[1], .heads = w->dim[0], .values = w->dim[1]};
    s.keys = q->dim[2] / s.heads, s.matrix = s.keys * s.values;
    return s;
}

static remat_status want_rows(const char *name, const remat_desc *x, const remat_desc *q, int64_t width) {
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real("m2rnn", name, x));
    REQUIRE(x->rank == 3 && x->dim[0] == q->dim[0] && x->dim[1] == q->dim[1] && x->dim[2] == width, INVALID,
            "m2rnn: %s is %s; it must be (%lld,%lld,%lld), by q and w", name, rm_desc_text(x, text),
            (long long)q->dim[0], (long long)q->dim[1], (long long)width);
    return REMAT_OK;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    char text[REMAT_DESC_TEXT];
    (void)attr;
    TRY(rm_want_real("m2rnn", "q", &x[Q]));
    TRY(rm_want_rank("m2rnn", "q", &x[Q], 3, 3));
    TRY(rm_want_real("m2rnn", "w", &x[W]));
    REQUIRE(x[W].rank == 3 && x[W].dim[1] == x[W].dim[2], INVALID, "m2rnn: w is %s; it must be (heads,V,V)",
            rm_desc_text(&x[W], text));
    REQUIRE(x[Q].dim[2] % x[W].dim[0] == 0, INVALID, "m2rnn: %lld features of q cannot be divided among %lld heads",
            (long long)x[Q].dim[2], (long long)x[W].dim[0]);
    sizes s = sizes_of(&x[Q], &x[W]);
    TRY(want_rows("k", &x[K], &x[Q], s.heads * s.keys));
    TRY(want_rows("v", &x[V], &x[Q], s.heads * s.values));
    TRY(want_rows("f", &x[F], &x[Q], s.heads));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("m2rnn", &x[RESET], &x[Q]));
    *y = x[V];
    *state = rm_desc_make(RM_REAL, 4, (int64_t[]){s.batch, s.heads, s.keys, s.values});
    return REMAT_OK;
}

enum { MOST_WORKERS = 32 }; /* workers have room of their own */
static int64_t workers_at_most(const sizes *s) { return s->heads < MOST_WORKERS ? s->heads : MOST_WORKERS; }

/* A worker's scratch. Forward: Z, and its argument. Backward: H before the tile and after every timestep, every Z, the
 * gradient of H, dP. */
static int64_t room_reals(const sizes *s, bool backward) { return s->matrix * (backward ? 2 * s->tau + 3 : 2); }

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    sizes s = sizes_of(&x[Q], &x[W]);
    bool backward = pass == REMAT_BACKWARD;
    double steps = (double)(s.tau * s.batch * s.heads), all = steps * (double)s.matrix;
    double bytes = (double)(2 * rm_desc_bytes(&x[Q]) + 2 * rm_desc_bytes(y) + rm_desc_bytes(&x[W]));
    *out = (remat_cost){.flops = all * (backward ? 6 * (double)s.values + 60 : 2 * (double)s.values + 30),
                        .moved_bytes = bytes * (backward ? 2 : 1),
                        .scratch_bytes = (uint64_t)(workers_at_most(&s) * room_reals(&s, backward)) * sizeof(real)};
}

/* ---- A head of a row of the batch ---------------------------------------------------------------------------------- */

typedef struct {
    const remat_call *call;
    sizes n;
    int64_t b, head;
} work;

static int64_t at_step(const work *w, int64_t t) { return (t * w->n.batch + w->b) * w->n.heads + w->head; }
static bool begins(const work *w, int64_t t) {
    const real *reset = w->call->x[RESET].data;
    return reset && reset[t * w->n.batch + w->b] > 0;
}
static const real *row_of(const work *w, int input, int64_t t, int64_t width) {
    return (const real *)w->call->x[input].data + at_step(w, t) * width;
}
static const real *weight_of(const work *w) {
    return (const real *)w->call->x[W].data + w->head * w->n.values * w->n.values;
}

static void copy(real *to, const real *from, int64_t n) {
    if (to && from) memcpy(to, from, (size_t)n * sizeof *to);
    if (to && !from) memset(to, 0, (size_t)n * sizeof *to);
}

/* C (m,n) += op(A) op(B); in double plain loops. */
static void multiply(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda,
                     const real *b, int64_t ldb, real *c) {
#ifdef RM_REAL_DOUBLE
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t l = 0; l < k; l++)
                c[i * n + j] +=
                    (a_transposed ? a[l * lda + i] : a[i * lda + l]) * (b_transposed ? b[j * ldb + l] : b[l * ldb + j]);
#else
    rm_small_product p = {a_transposed, b_transposed, m, n, k, 1, 1, a, b, lda, ldb, c, n};
    rm_cell_kernels_get()->small_product(&p);
#endif
}

static void squash(real *z, real *room, int64_t n) {
#ifdef RM_REAL_DOUBLE
    (void)room;
    for (int64_t i = 0; i < n; i++) z[i] = real_tanh(z[i]);
#else
    memcpy(room, z, (size_t)n * sizeof *z);
    rm_cell_kernels_get()->activation[RM_ACTIVATION_tanh].forward(room, z, n);
#endif
}

/* H' from H, which may be the same; Z is left in `z`, its argument after it. */
static void advance(const work *w, int64_t t, const real *from, real *to, real *z) {
    const int64_t keys = w->n.keys, values = w->n.values;
    const real *k = row_of(w, K, t, keys), *v = row_of(w, V, t, values), f = *row_of(w, F, t, 1);
    const bool anew = begins(w, t);
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < values; j++) z[i * values + j] = k[i] * v[j];
    if (!anew) multiply(false, false, keys, values, values, from, values, weight_of(w), values, z);
    if (to != from || anew) copy(to, anew ? NULL : from, w->n.matrix);
    squash(z, z + w->n.matrix, w->n.matrix);
    for (int64_t i = 0; i < w->n.matrix; i++) to[i] = f * to[i] + (1 - f) * z[i];
}

static void forward_head(const work *w, real *room) {
    const int64_t keys = w->n.keys, values = w->n.values, at = (w->b * w->n.heads + w->head) * w->n.matrix;
    const real *in = w->call->state_in[0].data;
    real *H = (real *)w->call->state_out[0].data + at, *y = w->call->y.data;
    copy(H, in ? in + at : NULL, w->n.matrix);
    for (int64_t t = 0; t < w->n.tau; t++) {
        const real *q = row_of(w, Q, t, keys);
        real *out = y + at_step(w, t) * values;
        advance(w, t, H, H, room);
        copy(out, NULL, values);
        for (int64_t i = 0; i < keys; i++)
            for (int64_t j = 0; j < values; j++) out[j] += q[i] * H[i * values + j];
    }
}

/* G: the gradient of H', then of H; dp: of Z's argument. Comments quote the forward lines. */
static void step_back(const work *w, int64_t t, const real *H, const real *after, const real *z, real *G, real *dp) {
    const int64_t keys = w->n.keys, values = w->n.values, s = at_step(w, t), square = values * values;
    const real *q = row_of(w, Q, t, keys), *k = row_of(w, K, t, keys), *v = row_of(w, V, t, values);
    const real *dy = (const real *)w->call->dy.data + s * values, f = *row_of(w, F, t, 1);
    const remat_tensor *dx = w->call->dx;
    real *dq = dx[Q].data, *dk = dx[K].data, *dv = dx[V].data, *df = dx[F].data, *dw = dx[W].data, by_f = 0;
    const bool anew = begins(w, t);
    if (dv) copy(dv + s * values, NULL, values);
    for (int64_t i = 0; i < keys; i++) {
        real by_q = 0, by_k = 0;
        for (int64_t j = 0; j < values; j++) {
            int64_t at = i * values + j;
            by_q += after[at] * dy[j]; /* y = H'^T q */
            G[at] += q[i] * dy[j];
            by_f += G[at] * ((anew ? 0 : H[at]) - z[at]);   /* H' = f H + (1 - f) Z */
            dp[at] = (1 - f) * G[at] * (1 - z[at] * z[at]); /* Z = tanh(H W + k v^T) */
            by_k += dp[at] * v[j];
            if (dv) dv[s * values + j] += dp[at] * k[i];
            G[at] = anew ? 0 : f * G[at];
        }
        if (dq) dq[s * keys + i] = by_q;
        if (dk) dk[s * keys + i] = by_k;
    }
    if (df) df[s] = by_f;
    if (anew) return;
    if (dw) multiply(true, false, values, values, keys, H, values, dp, values, dw + w->head * square);
    multiply(false, true, keys, values, values, dp, values, weight_of(w), values, G);
}

static void backward_head(const work *w, real *room) {
    const int64_t matrix = w->n.matrix, tau = w->n.tau, at = (w->b * w->n.heads + w->head) * matrix;
    const real *in = w->call->state_in[0].data, *d_out = w->call->dstate_out[0].data;
    real *H = room, *Z = H + (tau + 1) * matrix, *G = Z + tau * matrix, *dp = G + matrix;
    real *d_in = w->call->dstate_in[0].data;
    copy(H, in ? in + at : NULL, matrix);
    for (int64_t t = 0; t < tau; t++) advance(w, t, H + t * matrix, H + (t + 1) * matrix, Z + t * matrix);
    copy(G, d_out ? d_out + at : NULL, matrix);
    for (int64_t t = tau - 1; t >= 0; t--) step_back(w, t, H + t * matrix, H + (t + 1) * matrix, Z + t * matrix, G, dp);
    copy(d_in ? d_in + at : NULL, G, matrix);
}

/* ---- The op -------------------------------------------------------------------------------------------------------- */

static void run(const remat_call *call, bool backward) {
    const sizes n = sizes_of(&call->x[Q].desc, &call->x[W].desc);
    int64_t workers = workers_at_most(&n), room = room_reals(&n, backward);
    if (workers > call->threads) workers = call->threads;
    RM_PARALLEL_EVEN(
        call->threads, n.tau * n.batch * n.heads * n.matrix > RM_PARALLEL_MIN, for (int64_t i = 0; i < workers; i++) {
            for (int64_t head = n.heads * i / workers; head < n.heads * (i + 1) / workers; head++)
                for (int64_t b = 0; b < n.batch; b++) {
                    work w = {call, n, b, head};
                    if (backward)
                        backward_head(&w, (real *)call->scratch + i * room);
                    else
                        forward_head(&w, (real *)call->scratch + i * room);
                }
        });
    if (backward) copy(call->dx[RESET].data, NULL, n.tau * n.batch);
}

static void forward(const remat_call *call) { run(call, false); }
static void backward(const remat_call *call) { run(call, true); }

#define SHAPES(t, b, qk, v, h)                                                                                         \
    RM_SHAPE3(RM_REAL, t, b, qk), RM_SHAPE3(RM_REAL, t, b, qk), RM_SHAPE3(RM_REAL, t, b, v),                           \
        RM_SHAPE3(RM_REAL, t, b, h), RM_SHAPE3(RM_REAL, h, (v) / (h), (v) / (h))
static const remat_sample samples[] = {
    {.name = "resets", .sequence = true, .x = {SHAPES(5, 2, 12, 15, 3), RM_SHAPE2(RM_REAL, 5, 2)}},
    {.name = "one head", .sequence = true, .x = {SHAPES(7, 1, 3, 4, 1), RM_ABSENT}},
    {.name = "threads", .sequence = true, .x = {SHAPES(3, 3, 64, 68, 4), RM_ABSENT}},
};

const remat_op RM_OP(m2rnn) = {
    .struct_bytes = sizeof(remat_op),
    .name = "m2rnn",
    .doc = "M2RNN: y (T,B,HV) of q, k (T,B,HK), v, f (T,B,H), w (H,V,V); H = f H + (1 - f) tanh(H w + k v^T) (B,H,K,V) "
           "is carried",
    .n_in = INPUTS,
    .n_state = 1,
    .state_name = {"H"},
    .optional = 1u << RESET,
    .resets = 1u << RESET,
    .shared = 1u << W,
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = (1u << INPUTS) - 1, .state = true},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

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
 * that no sum depends on the threads. The products with W are small_product's; ops/cpu/m2rnn.c has the other loops. */
#include "ops/real.h"

#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"
#include "ops/recurrent/m2rnn.h"
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

/* Workers have room of their own. */
static int64_t workers_of(const sizes *s, int threads) { return s->heads < threads ? s->heads : threads; }

/* A worker's scratch. Forward: Z. Backward: H before the tile and after every timestep, every Z, the
 * gradient of H, dP. */
static int64_t room_reals(const sizes *s, bool backward) { return s->matrix * (backward ? 2 * s->tau + 3 : 1); }

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    sizes s = sizes_of(&x[Q], &x[W]);
    bool backward = pass == REMAT_BACKWARD;
    double steps = (double)(s.tau * s.batch * s.heads), all = steps * (double)s.matrix;
    double bytes = (double)(2 * rm_desc_bytes(&x[Q]) + 2 * rm_desc_bytes(y) + rm_desc_bytes(&x[W]));
    *out = (remat_cost){.flops = all * (backward ? 6 * (double)s.values + 60 : 2 * (double)s.values + 30),
                        .moved_bytes = bytes * (backward ? 2 : 1),
                        .scratch_bytes = (uint64_t)room_reals(&s, backward) * sizeof(real)};
}

static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    sizes s = sizes_of(&x[Q], &x[W]);
    (void)attr, (void)aux;
    return (uint64_t)(workers_of(&s, threads) * room_reals(&s, pass == REMAT_BACKWARD)) * sizeof(real);
}

static uint64_t cuda_scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {
    sizes s = sizes_of(&x[Q], &x[W]);
    (void)attr, (void)aux, (void)threads;
    int64_t each = pass == REMAT_BACKWARD ? rm_m2rnn_cuda_floats(s.tau, s.keys, s.values) : s.matrix;
    return (uint64_t)(s.batch * s.heads * each) * sizeof(float);
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

/* ---- The loops of a timestep: plain ones in double ------------------------------------------------------------------ */

#ifdef RM_REAL_DOUBLE
static void outer_plain(const rm_m2rnn_step *s, real *z) {
    for (int64_t at = 0; at < s->keys * s->values; at++) z[at] = s->k[at / s->values] * s->v[at % s->values];
}

static void mix_plain(const rm_m2rnn_step *s, const real *from, real *z, real *to) {
    for (int64_t at = 0; at < s->keys * s->values; at++) {
        z[at] = real_tanh(z[at]);
        to[at] = s->f * (from ? from[at] : 0) + (1 - s->f) * z[at];
    }
}

static void answer_plain(const rm_m2rnn_step *s, const real *by, const real *matrix, real *out) {
    copy(out, NULL, s->values);
    for (int64_t at = 0; at < s->keys * s->values; at++) out[at % s->values] += by[at / s->values] * matrix[at];
}

/* Comments quote the forward lines. */
static void back_plain(const rm_m2rnn_step *s, real *G, real *dp) {
    real by_f = 0;
    for (int64_t i = 0; i < s->keys; i++) {
        real by_q = 0, by_k = 0;
        for (int64_t j = 0; j < s->values; j++) {
            int64_t at = i * s->values + j;
            by_q += s->after[at] * s->dy[j]; /* y = H'^T q */
            G[at] += s->q[i] * s->dy[j];
            by_f += G[at] * ((s->before ? s->before[at] : 0) - s->z[at]); /* H' = f H + (1 - f) Z */
            dp[at] = (1 - s->f) * G[at] * (1 - s->z[at] * s->z[at]);      /* Z = tanh(H W + k v^T) */
            by_k += dp[at] * s->v[j];
            G[at] = s->before ? s->f * G[at] : 0;
        }
        if (s->dq) s->dq[i] = by_q;
        if (s->dk) s->dk[i] = by_k;
    }
    if (s->df) *s->df = by_f;
    if (s->dv) answer_plain(s, s->k, dp, s->dv);
}

static const rm_m2rnn_rows *rows(void) {
    static const rm_m2rnn_rows plain = {outer_plain, mix_plain, answer_plain, back_plain};
    return &plain;
}
#else
static const rm_m2rnn_rows *rows(void) { return rm_cell_kernels_get()->m2rnn; }
#endif

/* ---- All timesteps -------------------------------------------------------------------------------------------------- */

static rm_m2rnn_step step_at(const work *w, int64_t t) {
    return (rm_m2rnn_step){.keys = w->n.keys,
                           .values = w->n.values,
                           .q = row_of(w, Q, t, w->n.keys),
                           .k = row_of(w, K, t, w->n.keys),
                           .v = row_of(w, V, t, w->n.values),
                           .f = *row_of(w, F, t, 1)};
}

/* H' from H, which may be the same; Z is left in `z`. */
static void advance(const work *w, int64_t t, const real *from, real *to, real *z) {
    const rm_m2rnn_step s = step_at(w, t);
    rows()->outer(&s, z);
    if (begins(w, t)) from = NULL;
    if (from) multiply(false, false, s.keys, s.values, s.values, from, s.values, weight_of(w), s.values, z);
    rows()->mix(&s, from, z, to);
}

static void forward_head(const work *w, real *room) {
    const int64_t at = (w->b * w->n.heads + w->head) * w->n.matrix;
    const real *in = w->call->state_in[0].data;
    real *H = (real *)w->call->state_out[0].data + at, *y = w->call->y.data;
    copy(H, in ? in + at : NULL, w->n.matrix);
    for (int64_t t = 0; t < w->n.tau; t++) {
        const rm_m2rnn_step s = step_at(w, t);
        advance(w, t, H, H, room);
        rows()->answer(&s, s.q, H, y + at_step(w, t) * s.values);
    }
}

/* G: the gradient of H', then of H; dp: of Z's argument. */
static void step_back(const work *w, int64_t t, const real *H, const real *after, const real *z, real *G, real *dp) {
    const int64_t at = at_step(w, t), square = w->n.values * w->n.values;
    const remat_tensor *dx = w->call->dx;
    real *dq = dx[Q].data, *dk = dx[K].data, *dv = dx[V].data, *df = dx[F].data, *dw = dx[W].data;
    rm_m2rnn_step s = step_at(w, t);
    s.before = begins(w, t) ? NULL : H, s.after = after, s.z = z;
    s.dy = (const real *)w->call->dy.data + at * s.values;
    s.dq = dq ? dq + at * s.keys : NULL, s.dk = dk ? dk + at * s.keys : NULL;
    s.dv = dv ? dv + at * s.values : NULL, s.df = df ? df + at : NULL;
    rows()->back(&s, G, dp);
    if (!s.before) return;
    if (dw) multiply(true, false, s.values, s.values, s.keys, H, s.values, dp, s.values, dw + w->head * square);
    multiply(false, true, s.keys, s.values, s.values, dp, s.values, weight_of(w), s.values, G);
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
    int64_t workers = workers_of(&n, call->threads), room = room_reals(&n, backward);
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

/* On one thread, whose scratch cost has. */
static void on_one_thread(const remat_call *call, bool backward) {
    remat_call alone = *call;
    alone.threads = 1;
    run(&alone, backward);
}
static void define_forward(const remat_call *call) { on_one_thread(call, false); }
static void define_backward(const remat_call *call) { on_one_thread(call, true); }

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
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward, .scratch_bytes = scratch_bytes},
           {.forward = RM_CUDA(m2rnn, forward),
            .backward = RM_CUDA(m2rnn, backward),
            .scratch_bytes = cuda_scratch_bytes}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

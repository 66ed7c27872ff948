/* delta_scan.c: the op `delta_scan`: Gated DeltaNet (Yang et al. 2024) and Kimi Delta Attention, one timestep after
 * the other. Each head has a matrix S (K,V). At each timestep it decays and is corrected so that its answer to k moves
 * towards v:
 *
 *   q, k = x / sqrt(sum x^2 + 1e-6) for each head, q / sqrt(K)       beta = sigmoid(b)
 *   decay = exp(-exp(A_log) softplus(a + dt_bias))                   for each head, or for each of its keys (KDA)
 *   D = decay S;  S' = D + k (beta (v - D^T k))^T;  y = S'^T q       S is 0 where reset[t,b] > 0
 *
 *   inputs   q, k (tau,B,Hk K); v (tau,B,H V); a (tau,B,H), or (tau,B,H K); b (tau,B,H); A_log (H) optional: 0; dt_bias, as
 *            wide as a, optional: 0; reset (tau,B) optional. Hk divides H: H/Hk neighbouring heads share q and k
 *   output   y (tau,B,H V); state S (B,H,K,V)
 *
 * No aux. A state is as large as many timesteps of inputs, so only the state before the tile is saved. Backward
 * recomputes the others in scratch, some timesteps at a time. The chunked form of the papers needs fewer
 * operations, but its rounding depends on where time is cut. */
#include "ops/real.h"

#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { Q, K, V, A, B, A_LOG, DT_BIAS, RESET, INPUTS };
#define EPSILON ((real)1e-6)

typedef struct {
    int64_t tau, batch, rows, heads, shared, repeat, keys, values, rates; /* shared: Hk; rates: decay rates of a head, 1
                                                                             or K */
} sizes;

static sizes sizes_of(const remat_desc *x, const void *attr) {
    const rm_delta_scan_attr *a = attr;
    sizes s = {.tau = x[V].dim[0], .batch = x[V].dim[1], .heads = x[B].dim[2]};
    s.rows = s.tau * s.batch;
    s.shared = a && a->key_heads ? a->key_heads : s.heads;
    s.repeat = s.heads / (s.shared ? s.shared : 1);
    s.keys = x[Q].dim[2] / (s.shared ? s.shared : 1), s.values = x[V].dim[2] / s.heads;
    s.rates = x[A].dim[2] / s.heads;
    return s;
}

static remat_status want_rows(const char *name, const remat_desc *x, const remat_desc *v, int64_t width) {
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real("delta_scan", name, x));
    REQUIRE(x->rank == 3 && x->dim[0] == v->dim[0] && x->dim[1] == v->dim[1] && (!width || x->dim[2] == width), INVALID,
            "delta_scan: %s is %s; it must be a sequence like v, (%lld,%lld,%lld)", name, rm_desc_text(x, text),
            (long long)v->dim[0], (long long)v->dim[1], (long long)(width ? width : x->dim[2]));
    return REMAT_OK;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    TRY(rm_want_real("delta_scan", "v", &x[V]));
    TRY(rm_want_rank("delta_scan", "v", &x[V], 3, 3));
    TRY(want_rows("q", &x[Q], &x[V], 0));
    TRY(want_rows("k", &x[K], &x[V], x[Q].dim[2]));
    TRY(want_rows("a", &x[A], &x[V], 0));
    TRY(want_rows("b", &x[B], &x[V], 0));
    sizes s = sizes_of(x, attr);
    REQUIRE(s.shared > 0 && s.heads % s.shared == 0 && x[Q].dim[2] % s.shared == 0, INVALID,
            "delta_scan: %lld features of q and k cannot be divided among %lld heads, whose number must divide that of "
            "the values, %lld (the width of b)",
            (long long)x[Q].dim[2], (long long)s.shared, (long long)s.heads);
    REQUIRE(x[V].dim[2] % s.heads == 0, INVALID, "delta_scan: %lld features of v cannot be divided among %lld heads",
            (long long)x[V].dim[2], (long long)s.heads);
    REQUIRE(x[A].dim[2] == s.heads || x[A].dim[2] == s.heads * s.keys, INVALID,
            "delta_scan: a has %lld features; it must have one for each of %lld heads, or for each of their %lld keys",
            (long long)x[A].dim[2], (long long)s.heads, (long long)(s.heads * s.keys));
    if (x[A_LOG].rank >= 0) TRY(rm_want_vector("delta_scan", "A_log", &x[A_LOG], s.heads));
    if (x[DT_BIAS].rank >= 0) TRY(rm_want_vector("delta_scan", "dt_bias", &x[DT_BIAS], x[A].dim[2]));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("delta_scan", &x[RESET], &x[V]));
    *y = x[V];
    *state = rm_desc_make(RM_REAL, 4, (int64_t[]){s.batch, s.heads, s.keys, s.values});
    return REMAT_OK;
}

/* Scratch, in this order: q and k, normalised; decay; beta; in backward the gradients of these, those of q and k for
 * each head. */
static int64_t gate_reals(const sizes *s) { return s->rows * s->heads * (s->rates + 1); }
static int64_t part_reals(const sizes *s, remat_pass pass) {
    int64_t forward = 2 * s->rows * s->shared * s->keys + gate_reals(s);
    return pass == REMAT_BACKWARD ? forward + 2 * s->rows * s->heads * s->keys + gate_reals(s) : forward;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    sizes s = sizes_of(x, attr);
    bool backward = pass == REMAT_BACKWARD;
    double matrix = (double)(s.keys * s.values), all = (double)(s.rows * s.heads) * matrix;
    double bytes = (double)(rm_desc_bytes(&x[Q]) * 2 + rm_desc_bytes(y) * 2 + rm_desc_bytes(&x[A]));
    *out = (remat_cost){.flops = all * (backward ? 34 : 9) + 40 * (double)part_reals(&s, pass),
                        .moved_bytes = bytes * (backward ? 2 : 1),
                        .scratch_bytes = (uint64_t)part_reals(&s, pass) * sizeof(real)};
    if (backward) out->scratch_bytes += (uint64_t)((s.tau + 2) * s.keys * s.values) * sizeof(real);
}

/* ---- Before and after the scan ------------------------------------------------------------------------------------ */

typedef struct {
    sizes n;
    const real *v, *reset, *s_in;
    real *q, *k, *decay, *beta, *dq, *dk, *dlog_decay, *dbeta, *room;
} tile;

static real sigmoid(real x) { return 1 / (1 + real_exp(-x)); }
static real softplus(real x) { return x > 0 ? x + real_log1p(real_exp(-x)) : real_log1p(real_exp(x)); }

static real inverse_norm(const real *x, int64_t n) {
    real sum = EPSILON;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return 1 / (real)sqrt((double)sum);
}

static void normalise(const real *x, int64_t count, int64_t keys, real scale, real *to) {
    for (int64_t at = 0; at < count * keys; at += keys) {
        real factor = scale * inverse_norm(x + at, keys);
        for (int64_t i = 0; i < keys; i++) to[at + i] = factor * x[at + i];
    }
}

/* The terms of decay i: a + dt_bias, and e^A_log. */
static real raw_of(const remat_call *call, const sizes *n, int64_t i) {
    const real *a = call->x[A].data, *bias = call->x[DT_BIAS].data;
    return a[i] + (bias ? bias[i % (n->heads * n->rates)] : 0);
}
static real rate_of(const remat_call *call, const sizes *n, int64_t i) {
    const real *a_log = call->x[A_LOG].data;
    return a_log ? real_exp(a_log[i / n->rates % n->heads]) : 1;
}

static tile prepare(const remat_call *call, remat_pass pass) {
    remat_desc x[INPUTS];
    for (int i = 0; i < INPUTS; i++) x[i] = call->x[i].desc;
    tile s = {.n = sizes_of(x, call->attr), .v = call->x[V].data, .reset = call->x[RESET].data};
    const sizes *n = &s.n;
    int64_t shared = n->rows * n->shared, heads = n->rows * n->heads;
    s.s_in = call->state_in[0].data;
    s.q = call->scratch, s.k = s.q + shared * n->keys, s.decay = s.k + shared * n->keys;
    s.beta = s.decay + heads * n->rates, s.dq = s.beta + heads, s.dk = s.dq + heads * n->keys;
    s.dlog_decay = s.dk + heads * n->keys, s.dbeta = s.dlog_decay + heads * n->rates;
    s.room = (real *)call->scratch + part_reals(n, pass);
    normalise(call->x[Q].data, shared, n->keys, 1 / (real)sqrt((double)n->keys), s.q);
    normalise(call->x[K].data, shared, n->keys, 1, s.k);
    for (int64_t i = 0; i < heads * n->rates; i++)
        s.decay[i] = real_exp(-rate_of(call, n, i) * softplus(raw_of(call, n, i)));
    for (int64_t i = 0; i < heads; i++) s.beta[i] = sigmoid(((const real *)call->x[B].data)[i]);
    return s;
}

/* Computes dx from the gradients `d` of the normalised heads; each head of x has `repeat` of them, which are added in
 * order. */
static void normalise_back(const sizes *n, const real *x, const real *d, real scale, real *dx) {
    for (int64_t h = 0; h < n->rows * n->shared; h++) {
        const real *from = x + h * n->keys, *parts = d + h * n->repeat * n->keys;
        real *to = dx + h * n->keys, r = inverse_norm(from, n->keys), dot = 0;
        for (int64_t i = 0; i < n->keys; i++) {
            to[i] = 0;
            for (int64_t p = 0; p < n->repeat; p++) to[i] += parts[p * n->keys + i];
            dot += to[i] * from[i];
        }
        for (int64_t i = 0; i < n->keys; i++) to[i] = scale * r * (to[i] - from[i] * r * r * dot);
    }
}

static void finish(const remat_call *call, const tile *s) {
    const sizes *n = &s->n;
    const remat_tensor *dx = call->dx;
    real *da = dx[A].data, *db = dx[B].data, *da_log = dx[A_LOG].data, *dbias = dx[DT_BIAS].data;
    if (dx[Q].data) normalise_back(n, call->x[Q].data, s->dq, 1 / (real)sqrt((double)n->keys), dx[Q].data);
    if (dx[K].data) normalise_back(n, call->x[K].data, s->dk, 1, dx[K].data);
    for (int64_t i = 0; i < n->rows * n->heads * n->rates; i++) {
        real raw = raw_of(call, n, i), rate = rate_of(call, n, i), d = -s->dlog_decay[i] * rate * sigmoid(raw);
        if (da) da[i] = d;
        if (dbias) dbias[i % (n->heads * n->rates)] += d;
        if (da_log) da_log[i / n->rates % n->heads] -= s->dlog_decay[i] * rate * softplus(raw);
    }
    for (int64_t i = 0; db && i < n->rows * n->heads; i++) db[i] = s->dbeta[i] * s->beta[i] * (1 - s->beta[i]);
    if (dx[RESET].data) memset(dx[RESET].data, 0, (size_t)n->rows * sizeof(real));
}

/* ---- The definition: one head of a row of the batch after the other ----------------------------------------------- */

/* One timestep of a head. */
typedef struct {
    const real *q, *k, *v, *decay;
    real beta;
    int64_t head; /* its index among (t,b,head) */
    bool anew;
} step;

static step step_at(const tile *s, int64_t t, int64_t b, int64_t head) {
    const sizes *n = &s->n;
    int64_t row = t * n->batch + b, at = row * n->heads + head, shared = row * n->shared + head / n->repeat;
    return (step){s->q + shared * n->keys,
                  s->k + shared * n->keys,
                  s->v + at * n->values,
                  s->decay + at * n->rates,
                  s->beta[at],
                  at,
                  s->reset && s->reset[row] > 0};
}
static real decay_of(const sizes *n, const step *p, int64_t k) { return p->decay[n->rates > 1 ? k : 0]; }

/* v - D^T k of column j, D = decay S. */
static real error_of(const sizes *n, const step *p, const real *S, int64_t j) {
    real error = p->v[j];
    for (int64_t k = 0; k < n->keys && !p->anew; k++) error -= p->k[k] * decay_of(n, p, k) * S[k * n->values + j];
    return error;
}

/* `to` may be S itself. */
static void advance(const sizes *n, const step *p, const real *S, real *to) {
    for (int64_t j = 0; j < n->values; j++) {
        real delta = p->beta * error_of(n, p, S, j);
        for (int64_t k = 0; k < n->keys; k++)
            to[k * n->values + j] = (p->anew ? 0 : decay_of(n, p, k) * S[k * n->values + j]) + p->k[k] * delta;
    }
}

static void copy(real *to, const real *from, int64_t n) {
    if (to && from) memcpy(to, from, (size_t)n * sizeof *to);
    if (to && !from) memset(to, 0, (size_t)n * sizeof *to);
}

static void define_forward(const remat_call *call) {
    tile s = prepare(call, REMAT_FORWARD);
    const sizes *n = &s.n;
    int64_t matrix = n->keys * n->values;
    real *y = call->y.data, *out = call->state_out[0].data;
    copy(out, s.s_in, n->batch * n->heads * matrix);
    for (int64_t i = 0; i < n->batch * n->heads; i++)
        for (int64_t t = 0; t < n->tau; t++) {
            step p = step_at(&s, t, i / n->heads, i % n->heads);
            advance(n, &p, out + i * matrix, out + i * matrix);
            for (int64_t j = 0; j < n->values; j++) {
                real sum = 0;
                for (int64_t k = 0; k < n->keys; k++) sum += p.q[k] * out[i * matrix + k * n->values + j];
                y[p.head * n->values + j] = sum;
            }
        }
}

/* Backward of column j of a timestep, from S before and after it. G is the gradient of S: on entry from later
 * timesteps, on return also from this one. */
static void define_column_back(const tile *s, const step *p, const real *S, const real *after, real dy, int64_t j,
                               real *G, real *dv) {
    const sizes *n = &s->n;
    real error = error_of(n, p, S, j), ddelta = 0;
    for (int64_t k = 0; k < n->keys; k++) {
        int64_t at = k * n->values + j;
        s->dq[p->head * n->keys + k] += after[at] * dy;
        G[at] += p->q[k] * dy;
        ddelta += p->k[k] * G[at];
    }
    real derror = p->beta * ddelta;
    s->dbeta[p->head] += ddelta * error;
    if (dv) dv[p->head * n->values + j] = derror;
    for (int64_t k = 0; k < n->keys; k++) {
        int64_t at = k * n->values + j;
        real d = p->anew ? 0 : decay_of(n, p, k) * S[at];
        s->dk[p->head * n->keys + k] += G[at] * p->beta * error - d * derror;
        G[at] -= p->k[k] * derror;
        s->dlog_decay[p->head * n->rates + (n->rates > 1 ? k : 0)] += G[at] * d;
        G[at] = p->anew ? 0 : decay_of(n, p, k) * G[at];
    }
}

static void define_backward(const remat_call *call) {
    tile s = prepare(call, REMAT_BACKWARD);
    const sizes *n = &s.n;
    int64_t matrix = n->keys * n->values;
    const real *dy = call->dy.data, *ds_out = call->dstate_out[0].data;
    real *S = s.room /* (tau + 1,K,V) */, *G = S + (n->tau + 1) * matrix, *ds_in = call->dstate_in[0].data;
    memset(s.dq, 0, (size_t)(s.room - s.dq) * sizeof *s.dq);
    for (int64_t i = 0; i < n->batch * n->heads; i++) {
        copy(S, s.s_in ? s.s_in + i * matrix : NULL, matrix);
        copy(G, ds_out ? ds_out + i * matrix : NULL, matrix);
        for (int64_t t = 0; t < n->tau; t++) {
            step p = step_at(&s, t, i / n->heads, i % n->heads);
            advance(n, &p, S + t * matrix, S + (t + 1) * matrix);
        }
        for (int64_t t = n->tau - 1; t >= 0; t--) {
            step p = step_at(&s, t, i / n->heads, i % n->heads);
            for (int64_t j = 0; j < n->values; j++)
                define_column_back(&s, &p, S + t * matrix, S + (t + 1) * matrix, dy[p.head * n->values + j], j, G,
                                   call->dx[V].data);
        }
        copy(ds_in ? ds_in + i * matrix : NULL, G, matrix);
    }
    finish(call, &s);
}

/* ---- The fast kernels --------------------------------------------------------------------------------------------- */

#ifndef RM_REAL_DOUBLE
enum { MOST_WORKERS = 32 }; /* each worker has its own scratch */

static int64_t workers_at_most(const sizes *n) {
    return n->batch * n->heads < MOST_WORKERS ? n->batch * n->heads : MOST_WORKERS;
}

static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux) {
    (void)aux;
    sizes n = sizes_of(x, attr);
    int64_t room = workers_at_most(&n) * rm_delta_room(n.tau, n.keys, pass == REMAT_BACKWARD);
    return (uint64_t)(part_reals(&n, pass) + room) * sizeof(float);
}

static rm_delta_job job_of(const tile *s) {
    const sizes *n = &s->n;
    return (rm_delta_job){.tau = n->tau,
                          .batch = n->batch,
                          .heads = n->heads,
                          .repeat = n->repeat,
                          .keys = n->keys,
                          .values = n->values,
                          .rates = n->rates,
                          .q = s->q,
                          .k = s->k,
                          .v = s->v,
                          .decay = s->decay,
                          .beta = s->beta,
                          .reset = s->reset,
                          .s_in = s->s_in};
}

static void run(rm_delta_kernel *kernel, const rm_delta_job *job, const tile *s, int threads, bool backward) {
    int64_t units = job->batch * job->heads, workers = workers_at_most(&s->n);
    int64_t room = rm_delta_room(job->tau, job->keys, backward);
    if (workers > threads) workers = threads;
    RM_PARALLEL_EVEN(
        threads, job->tau * units * job->keys * job->values > RM_PARALLEL_MIN, for (int64_t w = 0; w < workers; w++) {
            for (int64_t i = units * w / workers; i < units * (w + 1) / workers; i++)
                kernel(job, i / job->heads, i % job->heads, s->room + w * room);
        });
}

static void forward(const remat_call *call) {
    tile s = prepare(call, REMAT_FORWARD);
    rm_delta_job job = job_of(&s);
    job.y = call->y.data, job.s_out = call->state_out[0].data;
    run(rm_cell_kernels_get()->delta->forward, &job, &s, call->threads, false);
}

static void backward(const remat_call *call) {
    tile s = prepare(call, REMAT_BACKWARD);
    rm_delta_job job = job_of(&s);
    job.dy = call->dy.data, job.ds_out = call->dstate_out[0].data, job.ds_in = call->dstate_in[0].data;
    job.dq = s.dq, job.dk = s.dk, job.dv = call->dx[V].data, job.dlog_decay = s.dlog_decay, job.dbeta = s.dbeta;
    run(rm_cell_kernels_get()->delta->backward, &job, &s, call->threads, true);
    finish(call, &s);
}
#endif

static const rm_delta_scan_attr two = {2};
#define SHAPES(t, b, qk, v, a, h)                                                                                      \
    RM_SHAPE3(RM_REAL, t, b, qk), RM_SHAPE3(RM_REAL, t, b, qk), RM_SHAPE3(RM_REAL, t, b, v),                           \
        RM_SHAPE3(RM_REAL, t, b, a), RM_SHAPE3(RM_REAL, t, b, h)
static const remat_sample samples[] = {
    {.name = "a decay for each head; resets",
     .sequence = true,
     .x = {SHAPES(5, 2, 12, 15, 3, 3), RM_SHAPE1(RM_REAL, 3), RM_SHAPE1(RM_REAL, 3), RM_SHAPE2(RM_REAL, 5, 2)}},
    {.name = "a decay for each key; shared keys",
     .sequence = true,
     .attr = &two,
     .x = {SHAPES(4, 2, 10, 12, 20, 4), RM_SHAPE1(RM_REAL, 4), RM_SHAPE1(RM_REAL, 20), RM_ABSENT}},
    {.name = "several chunks", .sequence = true, .x = {SHAPES(19, 1, 3, 4, 1, 1), RM_ABSENT, RM_ABSENT, RM_ABSENT}},
    {.name = "spans and threads",
     .sequence = true,
     .x = {SHAPES(3, 5, 32, 140, 2, 2), RM_ABSENT, RM_ABSENT, RM_ABSENT}},
};

const remat_op RM_OP(delta_scan) = {
    .struct_bytes = sizeof(remat_op),
    .name = "delta_scan",
    .doc = "Gated DeltaNet, KDA: y (T,B,HV) of q, k (T,B,HkK), v, gates a and b, A_log (H), dt_bias; S (B,H,K,V) is "
           "carried",
    .n_in = INPUTS,
    .n_state = 1,
    .state_name = {"S"},
    .optional = 1u << A_LOG | 1u << DT_BIAS | 1u << RESET,
    .resets = 1u << RESET,
    .shared = 1u << A_LOG | 1u << DT_BIAS,
    .attr_bytes = sizeof(rm_delta_scan_attr),
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = (1u << INPUTS) - 1, .state = true},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = RM_FAST(forward, define_forward),
            .backward = RM_FAST(backward, define_backward),
            .scratch_bytes = RM_FAST(scratch_bytes, NULL)}},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

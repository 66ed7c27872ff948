/* mlstm.c: the op `mlstm`: the matrix LSTM of xLSTM (Beck et al. 2024), one timestep after the other. Each head has a matrix C
 * (K,V), a vector n (K) and a number m, which keeps the exponential gates in range:
 *
 *   m' = max(log sigmoid(f) + m, i);  decay = e^(log sigmoid(f) + m - m');  take = e^(i - m')
 *   C' = decay C + take k v^T;  n' = decay n + take k;  q^ = q / sqrt(K)
 *   y = C'^T q^ / (max(|n'.q^|, e^-m') + 1e-6)               all states are 0 where reset[t,b] > 0
 *
 *   inputs   q, k (tau,B,H K); v (tau,B,H V); i, f (tau,B,H); reset (tau,B) optional
 *   output   y (tau,B,H V); states C (B,H,K,V), n (B,H,K), m (B,H)
 *
 * n is a second recurrence of matrices, whose v is the number 1. No aux: only the states before the tile are saved. m is
 * differentiated, too: in exact arithmetic only 1e-6 and a loss that reads a state depend on it. */
#include "ops/recurrent/matrix_op.h"

enum { Q, K, V, I, F, RESET, INPUTS };
enum { STATE_C, STATE_N, STATE_M, STATES };
#define EPSILON ((real)1e-6)

/* A job without its arrays. */
static rm_matrix_job job_of(const remat_desc *x, const void *attr) {
    (void)attr;
    int64_t heads = x[I].dim[2];
    return (rm_matrix_job){.rule = RM_MATRIX_ADD,
                           .tau = x[V].dim[0],
                           .batch = x[V].dim[1],
                           .heads = heads,
                           .repeat = 1,
                           .keys = x[Q].dim[2] / heads,
                           .values = x[V].dim[2] / heads,
                           .rates = 1};
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    TRY(rm_want_real("mlstm", "v", &x[V]));
    TRY(rm_want_rank("mlstm", "v", &x[V], 3, 3));
    TRY(rm_matrix_want("mlstm", "q", &x[Q], &x[V], 0));
    TRY(rm_matrix_want("mlstm", "k", &x[K], &x[V], x[Q].dim[2]));
    TRY(rm_matrix_want("mlstm", "i", &x[I], &x[V], 0));
    TRY(rm_matrix_want("mlstm", "f", &x[F], &x[V], x[I].dim[2]));
    int64_t heads = x[I].dim[2];
    REQUIRE(x[Q].dim[2] % heads == 0 && x[V].dim[2] % heads == 0, INVALID,
            "mlstm: %lld features of q and k and %lld of v cannot be divided among %lld heads (the width of i)",
            (long long)x[Q].dim[2], (long long)x[V].dim[2], (long long)heads);
    if (x[RESET].rank >= 0) TRY(rm_want_reset("mlstm", &x[RESET], &x[V]));
    rm_matrix_job n = job_of(x, attr);
    const int64_t dim[] = {n.batch, heads, n.keys, n.values};
    *y = x[V];
    for (int k = 0; k < STATES; k++) state[k] = rm_desc_make(RM_REAL, 4 - k, dim);
    return REMAT_OK;
}

/* Scratch of each (t,b,head): decay, take, m, n.q, the number 1; in backward the gradients of decay and take, for C and for
 * n, those of n.q, of C^T q (V), of q and of k (K) for C and for n. */
enum { FORWARD_PARTS = 5, BACKWARD_PARTS = 5 };
static int64_t part_reals(const rm_matrix_job *n, remat_pass pass) {
    int64_t heads = n->tau * n->batch * n->heads, forward = heads * FORWARD_PARTS;
    return pass == REMAT_BACKWARD ? forward + heads * (BACKWARD_PARTS + n->values + 4 * n->keys) : forward;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    rm_matrix_job n = job_of(x, attr);
    uint64_t parts = (uint64_t)part_reals(&n, pass) * sizeof(real);
    double heads = (double)(n.tau * n.batch * n.heads), each = 100 + 6 * (double)n.values + 2 * (double)n.keys;
    double bytes = (double)(rm_desc_bytes(&x[Q]) * 2 + rm_desc_bytes(y) * 2), wide = (double)n.values;
    *out = (remat_cost){.flops = rm_matrix_flops(n.rule, &n, pass) * (wide + RM_MATRIX_SPAN) / wide + heads * each,
                        .moved_bytes = bytes * (pass == REMAT_BACKWARD ? 2 : 1),
                        .scratch_bytes = parts + rm_matrix_define_bytes(n.tau, n.keys, n.values, pass)};
}

/* ---- Gates -------------------------------------------------------------------------------------------------------- */

typedef struct {
    rm_matrix_job c, n; /* the recurrences of C and of n */
    real scale;         /* 1 / sqrt(K) */
    real *decay, *take, *m, *dot, *one, *rest;
} tile;

static real kept_of(const remat_call *call, int64_t at, real m) {
    return m - rm_matrix_softplus(-((const real *)call->x[F].data)[at]);
}
/* m of unit (b,head) before row t. */
static real m_before(const remat_call *call, const tile *s, int64_t t, int64_t unit) {
    const real *reset = s->c.reset, *in = call->state_in[STATE_M].data;
    if (reset && reset[t * s->c.batch + unit / s->c.heads] > 0) return 0;
    return t ? s->m[(t - 1) * s->c.batch * s->c.heads + unit] : in ? in[unit] : 0;
}

static tile prepare(const remat_call *call) {
    remat_desc x[INPUTS];
    for (int k = 0; k < INPUTS; k++) x[k] = call->x[k].desc;
    rm_matrix_job job = job_of(x, call->attr);
    const real *i = call->x[I].data;
    int64_t units = job.batch * job.heads, heads = job.tau * units;
    tile s = {.scale = 1 / (real)sqrt((double)job.keys), .decay = call->scratch};
    s.take = s.decay + heads, s.m = s.take + heads, s.dot = s.m + heads, s.one = s.dot + heads, s.rest = s.one + heads;
    job.q = call->x[Q].data, job.k = call->x[K].data, job.decay = s.decay, job.beta = s.take;
    job.reset = call->x[RESET].data;
    s.c = s.n = job;
    s.c.v = call->x[V].data, s.c.s_in = call->state_in[STATE_C].data;
    s.n.v = s.one, s.n.values = 1, s.n.s_in = call->state_in[STATE_N].data;
    for (int64_t at = 0; at < heads; at++) {
        real kept = kept_of(call, at, m_before(call, &s, at / units, at % units));
        s.m[at] = kept > i[at] ? kept : i[at], s.one[at] = 1;
        s.decay[at] = real_exp(kept - s.m[at]), s.take[at] = real_exp(i[at] - s.m[at]);
    }
    return s;
}

static real least_of(const tile *s, int64_t at) { return real_exp(-s->m[at]); }
static real size_of(const tile *s, int64_t at) { return s->dot[at] < 0 ? -s->dot[at] : s->dot[at]; }
static real divisor_of(const tile *s, int64_t at) {
    real least = least_of(s, at), size = s->scale * size_of(s, at);
    return (size > least ? size : least) + EPSILON;
}

static void forward_by(const remat_call *call, rm_matrix_runner *run) {
    tile s = prepare(call);
    int64_t units = s.c.batch * s.c.heads, heads = s.c.tau * units, values = s.c.values;
    real *y = call->y.data;
    s.c.y = y, s.c.s_out = call->state_out[STATE_C].data;
    s.n.y = s.dot, s.n.s_out = call->state_out[STATE_N].data;
    run(&s.c, false, s.rest, call->threads);
    run(&s.n, false, s.rest, call->threads);
    for (int64_t at = 0; at < heads; at++) {
        real factor = s.scale / divisor_of(&s, at);
        for (int64_t j = at * values; j < (at + 1) * values; j++) y[j] *= factor;
    }
    rm_matrix_copy(call->state_out[STATE_M].data, s.m + heads - units, units);
}

/* ---- Backward ----------------------------------------------------------------------------------------------------- */

/* n.q of every timestep; its last state is not kept. */
static void dots_again(const remat_call *call, tile *s, rm_matrix_runner *run, real *room) {
    s->n.y = s->dot, s->n.s_out = room;
    run(&s->n, false, room + s->n.batch * s->n.heads * s->n.keys, call->threads);
}

/* y = scale C^T q / divisor: the gradients of C^T q and n.q, and, in `dm`, of m. */
static void divide_back(const remat_call *call, const tile *s, real *dc, real *ddot, real *dm) {
    const real *y = call->y.data, *dy = call->dy.data;
    int64_t values = s->c.values;
    for (int64_t at = 0; at < s->c.tau * s->c.batch * s->c.heads; at++) {
        real divisor = divisor_of(s, at), sum = 0;
        for (int64_t j = at * values; j < (at + 1) * values; j++) {
            dc[j] = s->scale * dy[j] / divisor;
            sum += dy[j] * y[j];
        }
        bool by_dot = s->scale * size_of(s, at) > least_of(s, at);
        ddot[at] = by_dot ? (s->dot[at] < 0 ? s->scale : -s->scale) * sum / divisor : 0;
        dm[at] = by_dot ? 0 : sum / (1 + EPSILON * real_exp(s->m[at])); /* e^-m may be infinite */
    }
}

/* dlog: the gradient of log decay. dm (tau,B,H): that of m by y. */
static void gates_back(const remat_call *call, const tile *s, const real *dlog, const real *dtake, const real *dm) {
    const real *i = call->x[I].data, *f = call->x[F].data, *dm_out = call->dstate_out[STATE_M].data;
    real *di = call->dx[I].data, *df = call->dx[F].data, *dm_in = call->dstate_in[STATE_M].data;
    int64_t units = s->c.batch * s->c.heads;
    for (int64_t unit = 0; unit < units; unit++) {
        real carried = dm_out ? dm_out[unit] : 0;
        for (int64_t t = s->c.tau - 1; t >= 0; t--) {
            int64_t at = t * units + unit;
            real by_take = dtake[at] * s->take[at], by_kept = dlog[at], d = carried + dm[at] - by_take - by_kept;
            bool by_input = !(kept_of(call, at, m_before(call, s, t, unit)) > i[at]);
            real dkept = by_kept + (by_input ? 0 : d);
            if (di) di[at] = by_take + (by_input ? d : 0);
            if (df) df[at] = dkept * rm_matrix_sigmoid(-f[at]);
            carried = s->c.reset && s->c.reset[t * s->c.batch + unit / s->c.heads] > 0 ? 0 : dkept;
        }
        if (dm_in) dm_in[unit] = carried;
    }
}

static void add(real *to, const real *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

static void backward_by(const remat_call *call, rm_matrix_runner *run) {
    tile s = prepare(call);
    int64_t heads = s.c.tau * s.c.batch * s.c.heads, keyed = heads * s.c.keys;
    real *dlog[2] = {s.rest, s.rest + heads}, *dtake[2] = {s.rest + 2 * heads, s.rest + 3 * heads};
    real *ddot = s.rest + 4 * heads, *dc = ddot + heads, *dq = dc + heads * s.c.values, *room = dq + 4 * keyed;
    real *dm = s.one; /* which is read no more by then */
    dots_again(call, &s, run, dc);
    divide_back(call, &s, dc, ddot, s.dot);
    s.c.dy = dc, s.c.ds_out = call->dstate_out[STATE_C].data, s.c.ds_in = call->dstate_in[STATE_C].data;
    s.c.dv = call->dx[V].data, s.n.dy = ddot;
    s.n.ds_out = call->dstate_out[STATE_N].data, s.n.ds_in = call->dstate_in[STATE_N].data;
    s.c.dlog_decay = dlog[0], s.c.dbeta = dtake[0], s.c.dq = dq, s.c.dk = dq + keyed;
    s.n.dlog_decay = dlog[1], s.n.dbeta = dtake[1], s.n.dq = dq + 2 * keyed, s.n.dk = dq + 3 * keyed;
    run(&s.c, true, room, call->threads);
    run(&s.n, true, room, call->threads);
    add(dlog[0], dlog[1], heads), add(dtake[0], dtake[1], heads), add(dq, dq + 2 * keyed, 2 * keyed);
    rm_matrix_copy(dm, s.dot, heads);
    gates_back(call, &s, dlog[0], dtake[0], dm);
    rm_matrix_copy(call->dx[Q].data, s.c.dq, keyed);
    rm_matrix_copy(call->dx[K].data, s.c.dk, keyed);
    rm_matrix_clear_reset(call, RESET, &s.c);
}

RM_MATRIX_KERNELS

#define SHAPES(t, b, qk, v, h)                                                                                         \
    RM_SHAPE3(RM_REAL, t, b, qk), RM_SHAPE3(RM_REAL, t, b, qk), RM_SHAPE3(RM_REAL, t, b, v),                           \
        RM_SHAPE3(RM_REAL, t, b, h), RM_SHAPE3(RM_REAL, t, b, h)
static const remat_sample samples[] = {
    {.name = "resets", .sequence = true, .x = {SHAPES(5, 2, 12, 15, 3), RM_SHAPE2(RM_REAL, 5, 2)}},
    {.name = "several chunks", .sequence = true, .x = {SHAPES(19, 1, 3, 4, 1), RM_ABSENT}},
    {.name = "spans and threads", .sequence = true, .x = {SHAPES(3, 5, 32, 140, 2), RM_ABSENT}},
};

const remat_op RM_OP(mlstm) = {
    RM_MATRIX_MEMBERS(mlstm),
    .doc = "xLSTM's mLSTM: y (T,B,HV) of q, k (T,B,HK), v, gates i and f (T,B,H); C (B,H,K,V), n and m are carried",
    .n_state = STATES,
    .state_name = {"C", "n", "m"},
    .optional = 1u << RESET,
    .saves = {.in = (1u << INPUTS) - 1, .out = true, .state = true},
};

/* delta_scan.c: the op `delta_scan`: Gated DeltaNet (Yang et al. 2024) and Kimi Delta Attention, one timestep after
 * the other. Each head has a matrix S (K,V). At each timestep it decays and is corrected so that its answer to k moves
 * towards v:
 *
 *   q, k = x / sqrt(sum x^2 + 1e-6) for each head, q / sqrt(K)       beta = sigmoid(b), or twice that
 *   decay = exp(-exp(A_log) softplus(a + dt_bias))                   for each head, or for each of its keys (KDA)
 *   D = decay S;  S' = D + k (beta (v - D^T k))^T;  y = S'^T q       S is 0 where reset[t,b] > 0
 *
 *   inputs   q, k (tau,B,Hk K); v (tau,B,H V); a (tau,B,H), or (tau,B,H K); b (tau,B,H); A_log (H) optional: 0; dt_bias, as
 *            wide as a, optional: 0; reset (tau,B) optional. Hk divides H: H/Hk neighbouring heads share q and k
 *   output   y (tau,B,H V); state S (B,H,K,V)
 *
 * A transition decay (1 - beta k k^T) has an eigenvalue decay (1 - beta): with beta up to 2 it may be negative, and the
 * state can then count in turns (Grazzi et al. 2024, "Unlocking State-Tracking in Linear RNNs Through Negative
 * Eigenvalues"; `negative` of the attribute, flash-linear-attention's allow_neg_eigval).
 *
 * No aux: only the state before the tile is saved. */
#include "ops/recurrent/matrix_op.h"

enum { Q, K, V, A, B, A_LOG, DT_BIAS, RESET, INPUTS };
#define EPSILON ((real)1e-6)

/* A job without its arrays. */
static rm_matrix_job job_of(const remat_desc *x, const void *attr) {
    const rm_delta_scan_attr *a = attr;
    int64_t heads = x[B].dim[2], shared = a && a->key_heads ? a->key_heads : heads;
    return (rm_matrix_job){.rule = RM_MATRIX_DELTA,
                           .tau = x[V].dim[0],
                           .batch = x[V].dim[1],
                           .heads = heads,
                           .repeat = heads / shared,
                           .keys = x[Q].dim[2] / shared,
                           .values = x[V].dim[2] / heads,
                           .rates = x[A].dim[2] / heads};
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    TRY(rm_want_real("delta_scan", "v", &x[V]));
    TRY(rm_want_rank("delta_scan", "v", &x[V], 3, 3));
    TRY(rm_matrix_want("delta_scan", "q", &x[Q], &x[V], 0));
    TRY(rm_matrix_want("delta_scan", "k", &x[K], &x[V], x[Q].dim[2]));
    TRY(rm_matrix_want("delta_scan", "a", &x[A], &x[V], 0));
    TRY(rm_matrix_want("delta_scan", "b", &x[B], &x[V], 0));
    const rm_delta_scan_attr *given = attr;
    int64_t heads = x[B].dim[2], shared = given && given->key_heads ? given->key_heads : heads;
    REQUIRE(shared > 0 && heads % shared == 0 && x[Q].dim[2] % shared == 0, INVALID,
            "delta_scan: %lld features of q and k cannot be divided among %lld heads, whose number must divide that of "
            "the values, %lld (the width of b)",
            (long long)x[Q].dim[2], (long long)shared, (long long)heads);
    rm_matrix_job n = job_of(x, attr);
    REQUIRE(x[V].dim[2] % heads == 0, INVALID, "delta_scan: %lld features of v cannot be divided among %lld heads",
            (long long)x[V].dim[2], (long long)heads);
    REQUIRE(x[A].dim[2] == heads || x[A].dim[2] == heads * n.keys, INVALID,
            "delta_scan: a has %lld features; it must have one for each of %lld heads, or for each of their %lld keys",
            (long long)x[A].dim[2], (long long)heads, (long long)(heads * n.keys));
    if (x[A_LOG].rank >= 0) TRY(rm_want_vector("delta_scan", "A_log", &x[A_LOG], heads));
    if (x[DT_BIAS].rank >= 0) TRY(rm_want_vector("delta_scan", "dt_bias", &x[DT_BIAS], x[A].dim[2]));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("delta_scan", &x[RESET], &x[V]));
    *y = x[V];
    *state = rm_desc_make(RM_REAL, 4, (int64_t[]){n.batch, heads, n.keys, n.values});
    return REMAT_OK;
}

/* Scratch, in this order: q and k, normalised; decay; beta; in backward the gradients of these, those of q and k for
 * each head. */
static int64_t part_reals(const rm_matrix_job *n, remat_pass pass) {
    int64_t heads = n->tau * n->batch * n->heads, gates = heads * (n->rates + 1);
    int64_t forward = 2 * heads / n->repeat * n->keys + gates;
    return pass == REMAT_BACKWARD ? forward + 2 * heads * n->keys + gates : forward;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    rm_matrix_job n = job_of(x, attr);
    uint64_t parts = (uint64_t)part_reals(&n, pass) * sizeof(real);
    double bytes = (double)(rm_desc_bytes(&x[Q]) * 2 + rm_desc_bytes(y) * 2 + rm_desc_bytes(&x[A]));
    *out = (remat_cost){.flops = rm_matrix_flops(n.rule, &n, pass) + 40 * (double)part_reals(&n, pass),
                        .moved_bytes = bytes * (pass == REMAT_BACKWARD ? 2 : 1),
                        .scratch_bytes = parts + rm_matrix_define_bytes(n.tau, n.keys, n.values, pass)};
}

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
static real raw_of(const remat_call *call, const rm_matrix_job *n, int64_t i) {
    const real *a = call->x[A].data, *bias = call->x[DT_BIAS].data;
    return a[i] + (bias ? bias[i % (n->heads * n->rates)] : 0);
}
static real rate_of(const remat_call *call, const rm_matrix_job *n, int64_t i) {
    const real *a_log = call->x[A_LOG].data;
    return a_log ? real_exp(a_log[i / n->rates % n->heads]) : 1;
}

/* beta is at most this. */
static real most_of(const remat_call *call) {
    const rm_delta_scan_attr *a = call->attr;
    return a && a->negative ? 2 : 1;
}

static rm_matrix_job prepare(const remat_call *call) {
    remat_desc x[INPUTS];
    for (int i = 0; i < INPUTS; i++) x[i] = call->x[i].desc;
    rm_matrix_job job = job_of(x, call->attr);
    int64_t heads = job.tau * job.batch * job.heads, shared = heads / job.repeat;
    real *q = call->scratch, *k = q + shared * job.keys, *decay = k + shared * job.keys;
    real *beta = decay + heads * job.rates;
    normalise(call->x[Q].data, shared, job.keys, 1 / (real)sqrt((double)job.keys), q);
    normalise(call->x[K].data, shared, job.keys, 1, k);
    for (int64_t i = 0; i < heads * job.rates; i++)
        decay[i] = real_exp(-rate_of(call, &job, i) * rm_matrix_softplus(raw_of(call, &job, i)));
    for (int64_t i = 0; i < heads; i++) beta[i] = most_of(call) * rm_matrix_sigmoid(((const real *)call->x[B].data)[i]);
    job.q = q, job.k = k, job.v = call->x[V].data, job.decay = decay, job.beta = beta;
    job.reset = call->x[RESET].data, job.s_in = call->state_in[0].data;
    return job;
}

/* Replaces the gradient of a normalised head by that of x. */
static void normalise_back(const rm_matrix_job *n, const real *x, real scale, real *dx) {
    for (int64_t h = 0; h < n->tau * n->batch * n->heads / n->repeat; h++) {
        const real *from = x + h * n->keys;
        real *to = dx + h * n->keys, r = inverse_norm(from, n->keys), dot = 0;
        for (int64_t i = 0; i < n->keys; i++) dot += to[i] * from[i];
        for (int64_t i = 0; i < n->keys; i++) to[i] = scale * r * (to[i] - from[i] * r * r * dot);
    }
}

static void finish(const remat_call *call, const rm_matrix_job *job) {
    const remat_tensor *dx = call->dx;
    int64_t heads = job->tau * job->batch * job->heads;
    real *da = dx[A].data, *db = dx[B].data, *da_log = dx[A_LOG].data, *dbias = dx[DT_BIAS].data;
    rm_matrix_sum_heads(job, job->dq, dx[Q].data);
    rm_matrix_sum_heads(job, job->dk, dx[K].data);
    if (dx[Q].data) normalise_back(job, call->x[Q].data, 1 / (real)sqrt((double)job->keys), dx[Q].data);
    if (dx[K].data) normalise_back(job, call->x[K].data, 1, dx[K].data);
    for (int64_t i = 0; i < heads * job->rates; i++) {
        real raw = raw_of(call, job, i), by_rate = -job->dlog_decay[i] * rate_of(call, job, i);
        if (da) da[i] = by_rate * rm_matrix_sigmoid(raw);
        if (dbias) dbias[i % (job->heads * job->rates)] += by_rate * rm_matrix_sigmoid(raw);
        if (da_log) da_log[i / job->rates % job->heads] += by_rate * rm_matrix_softplus(raw);
    }
    for (int64_t i = 0; db && i < heads; i++) db[i] = job->dbeta[i] * job->beta[i] * (1 - job->beta[i] / most_of(call));
    rm_matrix_clear_reset(call, RESET, job);
}

static void forward_by(const remat_call *call, rm_matrix_runner *run) {
    rm_matrix_job job = prepare(call);
    job.y = call->y.data, job.s_out = call->state_out[0].data;
    run(&job, false, (real *)call->scratch + part_reals(&job, REMAT_FORWARD), call->threads);
}

static void backward_by(const remat_call *call, rm_matrix_runner *run) {
    rm_matrix_job job = prepare(call);
    int64_t heads = job.tau * job.batch * job.heads;
    job.dy = call->dy.data, job.ds_out = call->dstate_out[0].data, job.ds_in = call->dstate_in[0].data;
    job.dq = (real *)call->scratch + part_reals(&job, REMAT_FORWARD), job.dk = job.dq + heads * job.keys;
    job.dlog_decay = job.dk + heads * job.keys, job.dbeta = job.dlog_decay + heads * job.rates;
    job.dv = call->dx[V].data;
    run(&job, true, job.dbeta + heads, call->threads);
    finish(call, &job);
}

RM_MATRIX_KERNELS

static const rm_delta_scan_attr two = {.key_heads = 2}, negative = {.negative = 1};
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
    {.name = "negative eigenvalues",
     .sequence = true,
     .attr = &negative,
     .x = {SHAPES(6, 2, 6, 4, 2, 2), RM_SHAPE1(RM_REAL, 2), RM_ABSENT, RM_SHAPE2(RM_REAL, 6, 2)}},
    {.name = "several chunks", .sequence = true, .x = {SHAPES(19, 1, 3, 4, 1, 1), RM_ABSENT, RM_ABSENT, RM_ABSENT}},
    {.name = "spans and threads",
     .sequence = true,
     .x = {SHAPES(3, 5, 32, 140, 2, 2), RM_ABSENT, RM_ABSENT, RM_ABSENT}},
};

const remat_op RM_OP(delta_scan) = {
    RM_MATRIX_MEMBERS(delta_scan),
    .doc = "Gated DeltaNet, KDA: y (T,B,HV) of q, k (T,B,HkK), v, gates a and b, A_log (H), dt_bias; S (B,H,K,V) is "
           "carried",
    .n_state = 1,
    .state_name = {"S"},
    .optional = 1u << A_LOG | 1u << DT_BIAS | 1u << RESET,
    .shared = 1u << A_LOG | 1u << DT_BIAS,
    .attr_bytes = sizeof(rm_delta_scan_attr),
    .saves = {.in = (1u << INPUTS) - 1, .state = true},
};

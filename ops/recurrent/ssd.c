/* ssd.c: the op `ssd`: Mamba-2's recurrence (Dao and Gu 2024), one timestep after the other. Each head has a matrix S (N,P):
 *
 *   delta = softplus(dt + dt_bias);  S' = exp(-delta exp(A_log)) S + B (delta x)^T;  y = S'^T C + D x
 *
 * where S is 0 if reset[t,b] > 0.
 *
 *   inputs   x (tau,B,H P); dt (tau,B,H); A_log (H); B, C (tau,B,G N); D (H) optional: 0; dt_bias (H) optional: 0; reset (tau,B)
 *            optional. G divides H: H/G neighbouring heads share B and C
 *   output   y (tau,B,H P); state S (B,H,N,P)
 *
 * No aux: only the state before the tile is saved. */
#include "ops/recurrent/matrix_op.h"

enum { X, DT, A_LOG, B, C, D, DT_BIAS, RESET, INPUTS };

static int64_t groups_of(const void *attr) { return attr ? ((const rm_ssd_attr *)attr)->groups : 1; }

/* A job without its arrays. */
static rm_matrix_job job_of(const remat_desc *x, const void *attr) {
    int64_t heads = x[DT].dim[2], groups = groups_of(attr);
    return (rm_matrix_job){.rule = RM_MATRIX_ADD,
                           .tau = x[X].dim[0],
                           .batch = x[X].dim[1],
                           .heads = heads,
                           .repeat = heads / groups,
                           .keys = x[B].dim[2] / groups,
                           .values = x[X].dim[2] / heads,
                           .rates = 1};
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    int64_t groups = groups_of(attr);
    TRY(rm_want_real("ssd", "x", &x[X]));
    TRY(rm_want_rank("ssd", "x", &x[X], 3, 3));
    TRY(rm_matrix_want("ssd", "dt", &x[DT], &x[X], 0));
    TRY(rm_matrix_want("ssd", "B", &x[B], &x[X], 0));
    TRY(rm_matrix_want("ssd", "C", &x[C], &x[X], x[B].dim[2]));
    int64_t heads = x[DT].dim[2];
    REQUIRE(groups > 0 && heads % groups == 0 && x[B].dim[2] % groups == 0, INVALID,
            "ssd: %lld features of B and C cannot be divided among %lld groups, whose number must divide that of the "
            "heads, %lld (the width of dt)",
            (long long)x[B].dim[2], (long long)groups, (long long)heads);
    REQUIRE(x[X].dim[2] % heads == 0, INVALID, "ssd: %lld features of x cannot be divided among %lld heads",
            (long long)x[X].dim[2], (long long)heads);
    TRY(rm_want_vector("ssd", "A_log", &x[A_LOG], heads));
    if (x[D].rank >= 0) TRY(rm_want_vector("ssd", "D", &x[D], heads));
    if (x[DT_BIAS].rank >= 0) TRY(rm_want_vector("ssd", "dt_bias", &x[DT_BIAS], heads));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("ssd", &x[RESET], &x[X]));
    rm_matrix_job n = job_of(x, attr);
    *y = x[X];
    *state = rm_desc_make(RM_REAL, 4, (int64_t[]){n.batch, heads, n.keys, n.values});
    return REMAT_OK;
}

/* Scratch: decay, delta; in backward the gradients of these, and of C and B for each head. */
static int64_t part_reals(const rm_matrix_job *n, remat_pass pass) {
    int64_t heads = n->tau * n->batch * n->heads;
    return pass == REMAT_BACKWARD ? heads * (4 + 2 * n->keys) : heads * 2;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    rm_matrix_job n = job_of(x, attr);
    uint64_t parts = (uint64_t)part_reals(&n, pass) * sizeof(real);
    double heads = (double)(n.tau * n.batch * n.heads), bytes = (double)(rm_desc_bytes(y) + rm_desc_bytes(&x[B])) * 2;
    *out = (remat_cost){.flops = rm_matrix_flops(n.rule, &n, pass) + heads * (80 + 4 * (double)n.values),
                        .moved_bytes = bytes * (pass == REMAT_BACKWARD ? 2 : 1),
                        .scratch_bytes = parts + rm_matrix_define_bytes(n.tau, n.keys, n.values, pass)};
}

static real raw_of(const remat_call *call, const rm_matrix_job *n, int64_t i) {
    const real *dt = call->x[DT].data, *bias = call->x[DT_BIAS].data;
    return dt[i] + (bias ? bias[i % n->heads] : 0);
}
static real rate_of(const remat_call *call, const rm_matrix_job *n, int64_t i) {
    return real_exp(((const real *)call->x[A_LOG].data)[i % n->heads]);
}

static rm_matrix_job prepare(const remat_call *call) {
    remat_desc x[INPUTS];
    for (int i = 0; i < INPUTS; i++) x[i] = call->x[i].desc;
    rm_matrix_job job = job_of(x, call->attr);
    int64_t heads = job.tau * job.batch * job.heads;
    real *decay = call->scratch, *delta = decay + heads;
    for (int64_t i = 0; i < heads; i++) {
        delta[i] = rm_matrix_softplus(raw_of(call, &job, i));
        decay[i] = real_exp(-delta[i] * rate_of(call, &job, i));
    }
    job.q = call->x[C].data, job.k = call->x[B].data, job.v = call->x[X].data, job.decay = decay, job.beta = delta;
    job.reset = call->x[RESET].data, job.s_in = call->state_in[0].data;
    return job;
}

static void forward_by(const remat_call *call, rm_matrix_runner *run) {
    rm_matrix_job job = prepare(call);
    const real *d = call->x[D].data;
    job.y = call->y.data, job.s_out = call->state_out[0].data;
    run(&job, false, (real *)call->scratch + part_reals(&job, REMAT_FORWARD), call->threads);
    for (int64_t i = 0; d && i < job.tau * job.batch * job.heads; i++)
        for (int64_t at = i * job.values; at < (i + 1) * job.values; at++) job.y[at] += d[i % job.heads] * job.v[at];
}

/* y = S'^T C + D x */
static void skip_back(const remat_call *call, const rm_matrix_job *job) {
    const real *d = call->x[D].data;
    real *dd = call->dx[D].data;
    for (int64_t i = 0; d && i < job->tau * job->batch * job->heads; i++) {
        real sum = 0;
        for (int64_t at = i * job->values; at < (i + 1) * job->values; at++) {
            sum += job->dy[at] * job->v[at];
            if (job->dv) job->dv[at] += d[i % job->heads] * job->dy[at];
        }
        if (dd) dd[i % job->heads] += sum;
    }
}

static void finish(const remat_call *call, const rm_matrix_job *job) {
    const remat_tensor *dx = call->dx;
    real *ddt = dx[DT].data, *dbias = dx[DT_BIAS].data, *da_log = dx[A_LOG].data;
    rm_matrix_sum_heads(job, job->dq, dx[C].data);
    rm_matrix_sum_heads(job, job->dk, dx[B].data);
    for (int64_t i = 0; i < job->tau * job->batch * job->heads; i++) {
        real by_rate = -job->dlog_decay[i] * rate_of(call, job, i);
        real draw = (job->dbeta[i] + by_rate) * rm_matrix_sigmoid(raw_of(call, job, i));
        if (ddt) ddt[i] = draw;
        if (dbias) dbias[i % job->heads] += draw;
        if (da_log) da_log[i % job->heads] += by_rate * job->beta[i];
    }
    skip_back(call, job);
    rm_matrix_clear_reset(call, RESET, job);
}

static void backward_by(const remat_call *call, rm_matrix_runner *run) {
    rm_matrix_job job = prepare(call);
    int64_t heads = job.tau * job.batch * job.heads;
    job.dy = call->dy.data, job.ds_out = call->dstate_out[0].data, job.ds_in = call->dstate_in[0].data;
    job.dlog_decay = (real *)call->scratch + part_reals(&job, REMAT_FORWARD), job.dbeta = job.dlog_decay + heads;
    job.dq = job.dbeta + heads, job.dk = job.dq + heads * job.keys, job.dv = call->dx[X].data;
    run(&job, true, job.dk + heads * job.keys, call->threads);
    finish(call, &job);
}

RM_MATRIX_KERNELS

static const rm_ssd_attr two = {2};
#define SHAPES(t, b, x, h, n)                                                                                          \
    RM_SHAPE3(RM_REAL, t, b, x), RM_SHAPE3(RM_REAL, t, b, h), RM_SHAPE1(RM_REAL, h), RM_SHAPE3(RM_REAL, t, b, n),      \
        RM_SHAPE3(RM_REAL, t, b, n)
static const remat_sample samples[] = {
    {.name = "resets and skips",
     .sequence = true,
     .x = {SHAPES(5, 2, 15, 3, 4), RM_SHAPE1(RM_REAL, 3), RM_SHAPE1(RM_REAL, 3), RM_SHAPE2(RM_REAL, 5, 2)}},
    {.name = "groups", .sequence = true, .attr = &two, .x = {SHAPES(4, 2, 12, 4, 10), RM_ABSENT, RM_ABSENT, RM_ABSENT}},
    {.name = "several chunks",
     .sequence = true,
     .x = {SHAPES(19, 1, 4, 1, 3), RM_SHAPE1(RM_REAL, 1), RM_ABSENT, RM_ABSENT}},
    {.name = "spans and threads", .sequence = true, .x = {SHAPES(3, 5, 140, 2, 16), RM_ABSENT, RM_ABSENT, RM_ABSENT}},
};

const remat_op RM_OP(ssd) = {
    RM_MATRIX_MEMBERS(ssd),
    .doc =
        "Mamba-2: y (T,B,HP) of x, dt (T,B,H), A_log (H), B and C (T,B,GN), D and dt_bias (H); S (B,H,N,P) is carried",
    .n_state = 1,
    .state_name = {"S"},
    .optional = 1u << D | 1u << DT_BIAS | 1u << RESET,
    .shared = 1u << A_LOG | 1u << D | 1u << DT_BIAS,
    .attr_bytes = sizeof(rm_ssd_attr),
    .saves = {.in = (1u << INPUTS) - 1, .state = true},
};

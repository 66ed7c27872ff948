/* ndm.c: the op `ndm`: the recurrence of NDM (E88, Garrison 2026), a delta rule inside a tanh, one timestep after the other.
 * Each head has a matrix S (K,V):
 *
 *   S' = tanh(exp(g) S + k (v - S^T k)^T);  y = S'^T q                        S is 0 where reset[t,b] > 0
 *
 *   inputs   q, k (tau,B,H K); v (tau,B,H V); g (tau,B,H): the logarithm of the decay, at most 0; reset (tau,B) optional
 *   output   y (tau,B,H V); state S (B,H,K,V)
 *
 * It differs from Gated DeltaNet (delta_scan.c) by the tanh, and because k is answered by S before the decay. Norms of q
 * and k and gates are the caller's.
 *
 * No aux: only the state before the tile is saved. */
#include "ops/recurrent/matrix_op.h"

enum { Q, K, V, G, RESET, INPUTS };

/* A job without its arrays. */
static rm_matrix_job job_of(const remat_desc *x, const void *attr) {
    (void)attr;
    int64_t heads = x[G].dim[2];
    return (rm_matrix_job){.rule = RM_MATRIX_TANH,
                           .tau = x[V].dim[0],
                           .batch = x[V].dim[1],
                           .heads = heads,
                           .repeat = 1,
                           .keys = x[Q].dim[2] / heads,
                           .values = x[V].dim[2] / heads,
                           .rates = 1};
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    TRY(rm_want_real("ndm", "v", &x[V]));
    TRY(rm_want_rank("ndm", "v", &x[V], 3, 3));
    TRY(rm_matrix_want("ndm", "q", &x[Q], &x[V], 0));
    TRY(rm_matrix_want("ndm", "k", &x[K], &x[V], x[Q].dim[2]));
    TRY(rm_matrix_want("ndm", "g", &x[G], &x[V], 0));
    int64_t heads = x[G].dim[2];
    REQUIRE(x[Q].dim[2] % heads == 0 && x[V].dim[2] % heads == 0, INVALID,
            "ndm: %lld features of q and k and %lld of v cannot be divided among %lld heads (the width of g)",
            (long long)x[Q].dim[2], (long long)x[V].dim[2], (long long)heads);
    if (x[RESET].rank >= 0) TRY(rm_want_reset("ndm", &x[RESET], &x[V]));
    rm_matrix_job n = job_of(x, attr);
    *y = x[V];
    *state = rm_desc_make(RM_REAL, 4, (int64_t[]){n.batch, heads, n.keys, n.values});
    return REMAT_OK;
}

/* Scratch: the decay; in backward the gradients of its logarithm, of q and of k. */
static int64_t part_reals(const rm_matrix_job *n, remat_pass pass) {
    int64_t heads = n->tau * n->batch * n->heads;
    return pass == REMAT_BACKWARD ? heads * (2 + 2 * n->keys) : heads;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    rm_matrix_job n = job_of(x, attr);
    uint64_t parts = (uint64_t)part_reals(&n, pass) * sizeof(real);
    double bytes = (double)(rm_desc_bytes(&x[Q]) * 2 + rm_desc_bytes(y) * 2);
    *out = (remat_cost){.flops = rm_matrix_flops(n.rule, &n, pass) + 10 * (double)part_reals(&n, pass),
                        .moved_bytes = bytes * (pass == REMAT_BACKWARD ? 2 : 1),
                        .scratch_bytes = parts + rm_matrix_define_bytes(n.tau, n.keys, n.values, pass)};
}

static rm_matrix_job prepare(const remat_call *call) {
    remat_desc x[INPUTS];
    for (int i = 0; i < INPUTS; i++) x[i] = call->x[i].desc;
    rm_matrix_job job = job_of(x, call->attr);
    real *decay = call->scratch;
    const real *g = call->x[G].data;
    for (int64_t i = 0; i < job.tau * job.batch * job.heads; i++) decay[i] = real_exp(g[i]);
    job.q = call->x[Q].data, job.k = call->x[K].data, job.v = call->x[V].data, job.decay = decay;
    job.reset = call->x[RESET].data, job.s_in = call->state_in[0].data;
    return job;
}

static void forward_by(const remat_call *call, rm_matrix_runner *run) {
    rm_matrix_job job = prepare(call);
    job.y = call->y.data, job.s_out = call->state_out[0].data;
    run(&job, false, (real *)call->scratch + part_reals(&job, REMAT_FORWARD), call->threads);
}

static void backward_by(const remat_call *call, rm_matrix_runner *run) {
    rm_matrix_job job = prepare(call);
    const remat_tensor *dx = call->dx;
    int64_t heads = job.tau * job.batch * job.heads;
    job.dy = call->dy.data, job.ds_out = call->dstate_out[0].data, job.ds_in = call->dstate_in[0].data;
    job.dlog_decay = (real *)call->scratch + heads, job.dq = job.dlog_decay + heads;
    job.dk = job.dq + heads * job.keys, job.dv = dx[V].data;
    run(&job, true, job.dk + heads * job.keys, call->threads);
    rm_matrix_sum_heads(&job, job.dq, dx[Q].data);
    rm_matrix_sum_heads(&job, job.dk, dx[K].data);
    if (dx[G].data) rm_matrix_copy(dx[G].data, job.dlog_decay, heads);
    rm_matrix_clear_reset(call, RESET, &job);
}

RM_MATRIX_KERNELS

#define SHAPES(t, b, qk, v, h)                                                                                         \
    RM_SHAPE3(RM_REAL, t, b, qk), RM_SHAPE3(RM_REAL, t, b, qk), RM_SHAPE3(RM_REAL, t, b, v), RM_SHAPE3(RM_REAL, t, b, h)
static const remat_sample samples[] = {
    {.name = "resets", .sequence = true, .x = {SHAPES(5, 2, 12, 15, 3), RM_SHAPE2(RM_REAL, 5, 2)}},
    {.name = "several chunks", .sequence = true, .x = {SHAPES(19, 1, 3, 4, 1), RM_ABSENT}},
    {.name = "spans and threads", .sequence = true, .x = {SHAPES(3, 5, 32, 140, 2), RM_ABSENT}},
};

const remat_op RM_OP(ndm) = {
    RM_MATRIX_MEMBERS(ndm),
    .doc = "NDM: y (T,B,HV) of q, k (T,B,HK), v, g (T,B,H); S = tanh(exp(g) S + k (v - S^T k)^T) (B,H,K,V) is carried",
    .n_state = 1,
    .state_name = {"S"},
    .optional = 1u << RESET,
    .saves = {.in = (1u << INPUTS) - 1, .state = true},
};

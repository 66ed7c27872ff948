/* rwkv7.c: the op `rwkv7`: the recurrence of RWKV-7 (Peng et al. 2025), one timestep after the other. Each head has a matrix S
 * (K,V), the transpose of RWKV's:
 *
 *   decay = exp(-e^(-1/2) sigmoid(w));  u = kappa / max(|kappa|, 1e-12) for each head
 *   S' = decay S - (u sigmoid(a)) (S^T u)^T + k v^T;  y = S'^T r                S is 0 where reset[t,b] > 0
 *
 *   inputs   r, w, k (tau,B,H K); v (tau,B,H V); kappa, a (tau,B,H K); reset (tau,B) optional
 *   output   y (tau,B,H V); state S (B,H,K,V)
 *
 * No aux: only the state before the tile is saved. RWKV's own kernel inverts S' instead of recomputing S, which is not exact. */
#include "ops/recurrent/matrix_op.h"

enum { R, W, K, V, KAPPA, A, RESET, INPUTS };
#define SLOWEST ((real)0.60653065971263342) /* e^(-1/2) */
#define EPSILON ((real)1e-12)

/* A job without its arrays. */
static rm_matrix_job job_of(const remat_desc *x, const void *attr) {
    int64_t heads = attr ? ((const rm_rwkv7_attr *)attr)->heads : 1, keys = x[R].dim[2] / heads;
    return (rm_matrix_job){.rule = RM_MATRIX_RANK1,
                           .tau = x[R].dim[0],
                           .batch = x[R].dim[1],
                           .heads = heads,
                           .repeat = 1,
                           .keys = keys,
                           .values = x[V].dim[2] / heads,
                           .rates = keys};
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    static const char *const name[INPUTS] = {"r", "w", "k", "v", "kappa", "a", "reset"};
    int64_t heads = attr ? ((const rm_rwkv7_attr *)attr)->heads : 1;
    TRY(rm_want_real("rwkv7", "r", &x[R]));
    TRY(rm_want_rank("rwkv7", "r", &x[R], 3, 3));
    for (int i = W; i < RESET; i++) TRY(rm_matrix_want("rwkv7", name[i], &x[i], &x[R], i == V ? 0 : x[R].dim[2]));
    REQUIRE(heads > 0 && x[R].dim[2] % heads == 0 && x[V].dim[2] % heads == 0, INVALID,
            "rwkv7: %lld features of r and %lld of v cannot be divided among %lld heads", (long long)x[R].dim[2],
            (long long)x[V].dim[2], (long long)heads);
    if (x[RESET].rank >= 0) TRY(rm_want_reset("rwkv7", &x[RESET], &x[R]));
    rm_matrix_job n = job_of(x, attr);
    *y = x[V];
    *state = rm_desc_make(RM_REAL, 4, (int64_t[]){n.batch, heads, n.keys, n.values});
    return REMAT_OK;
}

/* Scratch, (tau,B,H K) each: decay, -u, u sigmoid(a); in backward the gradients of these, and of r and k. */
static int64_t part_reals(const rm_matrix_job *n, remat_pass pass) {
    return n->tau * n->batch * n->heads * n->keys * (pass == REMAT_BACKWARD ? 8 : 3);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    rm_matrix_job n = job_of(x, attr);
    uint64_t parts = (uint64_t)part_reals(&n, pass) * sizeof(real);
    double bytes = (double)(rm_desc_bytes(&x[R]) * 5 + rm_desc_bytes(y) * 2);
    *out = (remat_cost){.flops = rm_matrix_flops(n.rule, &n, pass) + 40 * (double)part_reals(&n, pass),
                        .moved_bytes = bytes * (pass == REMAT_BACKWARD ? 2 : 1),
                        .scratch_bytes = parts + rm_matrix_define_bytes(n.tau, n.keys, n.values, pass)};
}

static real norm_of(const real *x, int64_t n) {
    real sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return (real)sqrt((double)sum);
}

static rm_matrix_job prepare(const remat_call *call) {
    remat_desc x[INPUTS];
    for (int i = 0; i < INPUTS; i++) x[i] = call->x[i].desc;
    rm_matrix_job job = job_of(x, call->attr);
    const real *w = call->x[W].data, *kappa = call->x[KAPPA].data, *gate = call->x[A].data;
    int64_t keyed = job.tau * job.batch * job.heads * job.keys;
    real *decay = call->scratch, *a = decay + keyed, *b = a + keyed;
    for (int64_t head = 0; head < keyed; head += job.keys) {
        real norm = norm_of(kappa + head, job.keys), factor = 1 / (norm > EPSILON ? norm : EPSILON);
        for (int64_t i = head; i < head + job.keys; i++) {
            decay[i] = real_exp(-SLOWEST * rm_matrix_sigmoid(w[i]));
            a[i] = -factor * kappa[i], b[i] = factor * kappa[i] * rm_matrix_sigmoid(gate[i]);
        }
    }
    job.q = call->x[R].data, job.k = call->x[K].data, job.v = call->x[V].data;
    job.decay = decay, job.a = a, job.b = b;
    job.reset = call->x[RESET].data, job.s_in = call->state_in[0].data;
    return job;
}

/* The gradients of kappa, from those of u, which replace job->da. */
static void normalise_back(const rm_matrix_job *job, const real *kappa, real *dkappa) {
    for (int64_t head = 0; head < job->tau * job->batch * job->heads * job->keys; head += job->keys) {
        real norm = norm_of(kappa + head, job->keys), dot = 0;
        for (int64_t i = head; i < head + job->keys; i++) dot -= job->da[i] * job->a[i];
        for (int64_t i = head; i < head + job->keys; i++)
            dkappa[i] = norm > EPSILON ? (job->da[i] + job->a[i] * dot) / norm : job->da[i] / EPSILON;
    }
}

static void finish(const remat_call *call, const rm_matrix_job *job) {
    const real *w = call->x[W].data, *gate = call->x[A].data;
    const remat_tensor *dx = call->dx;
    real *dw = dx[W].data, *da = dx[A].data;
    for (int64_t i = 0; i < job->tau * job->batch * job->heads * job->keys; i++) {
        real s = rm_matrix_sigmoid(w[i]), open = rm_matrix_sigmoid(gate[i]), u = -job->a[i];
        if (dw) dw[i] = -job->dlog_decay[i] * SLOWEST * s * (1 - s);
        if (da) da[i] = job->db[i] * u * open * (1 - open);
        job->da[i] = job->db[i] * open - job->da[i];
    }
    if (dx[KAPPA].data) normalise_back(job, call->x[KAPPA].data, dx[KAPPA].data);
    rm_matrix_sum_heads(job, job->dq, dx[R].data);
    rm_matrix_sum_heads(job, job->dk, dx[K].data);
    rm_matrix_clear_reset(call, RESET, job);
}

static void forward_by(const remat_call *call, rm_matrix_runner *run) {
    rm_matrix_job job = prepare(call);
    job.y = call->y.data, job.s_out = call->state_out[0].data;
    run(&job, false, (real *)call->scratch + part_reals(&job, REMAT_FORWARD), call->threads);
}

static void backward_by(const remat_call *call, rm_matrix_runner *run) {
    rm_matrix_job job = prepare(call);
    int64_t keyed = job.tau * job.batch * job.heads * job.keys;
    job.dy = call->dy.data, job.ds_out = call->dstate_out[0].data, job.ds_in = call->dstate_in[0].data;
    job.dlog_decay = (real *)call->scratch + part_reals(&job, REMAT_FORWARD);
    job.da = job.dlog_decay + keyed, job.db = job.da + keyed, job.dq = job.db + keyed, job.dk = job.dq + keyed;
    job.dv = call->dx[V].data;
    run(&job, true, job.dk + keyed, call->threads);
    finish(call, &job);
}

RM_MATRIX_KERNELS

static const rm_rwkv7_attr two = {2};
#define SHAPES(t, b, k, v)                                                                                             \
    RM_SHAPE3(RM_REAL, t, b, k), RM_SHAPE3(RM_REAL, t, b, k), RM_SHAPE3(RM_REAL, t, b, k),                             \
        RM_SHAPE3(RM_REAL, t, b, v), RM_SHAPE3(RM_REAL, t, b, k), RM_SHAPE3(RM_REAL, t, b, k)
static const remat_sample samples[] = {
    {.name = "heads and resets", .sequence = true, .attr = &two, .x = {SHAPES(5, 2, 10, 8), RM_SHAPE2(RM_REAL, 5, 2)}},
    {.name = "several chunks", .sequence = true, .x = {SHAPES(19, 1, 3, 4), RM_ABSENT}},
    {.name = "spans and threads", .sequence = true, .attr = &two, .x = {SHAPES(3, 5, 32, 140), RM_ABSENT}},
};

const remat_op RM_OP(rwkv7) = {
    RM_MATRIX_MEMBERS(rwkv7),
    .doc = "RWKV-7: y (T,B,HV) of r, w, k (T,B,HK), v, kappa, a; S (B,H,K,V) is carried",
    .n_state = 1,
    .state_name = {"S"},
    .optional = 1u << RESET,
    .attr_bytes = sizeof(rm_rwkv7_attr),
    .saves = {.in = (1u << INPUTS) - 1, .state = true},
};

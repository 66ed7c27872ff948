/* matrix_op.h: code shared by the ops whose state is a matrix for each head (matrix_scan.h): delta_scan, ssd, mlstm, rwkv7, ndm. An
 * op's file computes decays and gates in scratch, fills in a job and has it run; afterwards it turns the gradients of
 * what it has computed into those of its inputs. `real` is the precision of the file that includes this (real.h).
 *
 * A state is as large as many timesteps of inputs, so only the state before the tile is saved. Backward recomputes the
 * others in scratch, some timesteps at a time. The chunked forms of the papers need fewer operations, but their rounding
 * depends on where time is cut. */
#ifndef RM_MATRIX_OP_H
#define RM_MATRIX_OP_H

#include "ops/real.h"

#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/op.h"
#include "ops/shape.h"

/* INVALID unless x is a sequence as long and as wide in batch as `like`, of `width` features (0: any). */
static inline remat_status rm_matrix_want(const char *op, const char *name, const remat_desc *x, const remat_desc *like,
                                          int64_t width) {
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real(op, name, x));
    REQUIRE(x->rank == 3 && x->dim[0] == like->dim[0] && x->dim[1] == like->dim[1] && (!width || x->dim[2] == width),
            INVALID, "%s: %s is %s; it must be a sequence like v, (%lld,%lld,%lld)", op, name, rm_desc_text(x, text),
            (long long)like->dim[0], (long long)like->dim[1], (long long)(width ? width : x->dim[2]));
    return REMAT_OK;
}

static inline real rm_matrix_sigmoid(real x) { return 1 / (1 + real_exp(-x)); }
static inline real rm_matrix_softplus(real x) { return x > 0 ? x + real_log1p(real_exp(-x)) : real_log1p(real_exp(x)); }

/* to = from, which may be NULL: zeros. */
static inline void rm_matrix_copy(real *to, const real *from, int64_t n) {
    if (to && from) memcpy(to, from, (size_t)n * sizeof *to);
    if (to && !from) memset(to, 0, (size_t)n * sizeof *to);
}

static inline void rm_matrix_clear_reset(const remat_call *call, int reset, const rm_matrix_job *job) {
    rm_matrix_copy(call->dx[reset].data, NULL, job->tau * job->batch);
}

/* The gradient of an input that `repeat` heads share: the sum of theirs, in order. to: NULL or (tau,B,heads/repeat,K). */
static inline void rm_matrix_sum_heads(const rm_matrix_job *job, const real *parts, real *to) {
    int64_t keys = job->keys, shared = job->tau * job->batch * job->heads / job->repeat;
    for (int64_t i = 0; to && i < shared * keys; i++) {
        const real *part = parts + (i / keys * job->repeat) * keys + i % keys;
        real sum = 0;
        for (int64_t p = 0; p < job->repeat; p++) sum += part[p * keys];
        to[i] = sum;
    }
}

/* ---- The definition: one head of a row of the batch after the other ----------------------------------------------- */

typedef struct {
    const rm_matrix_job *job;
    const real *q, *k, *v, *decay, *a, *b;
    real beta;
    int64_t at; /* the index of the head among (t,b,head) */
    bool anew;
} rm_matrix_step;

static inline rm_matrix_step rm_matrix_step_at(const rm_matrix_job *job, int64_t t, int64_t unit) {
    int64_t row = t * job->batch + unit / job->heads, head = unit % job->heads, at = row * job->heads + head;
    int64_t shared = (row * (job->heads / job->repeat) + head / job->repeat) * job->keys;
    return (rm_matrix_step){.job = job,
                            .q = job->q + shared,
                            .k = job->k + shared,
                            .v = job->v + at * job->values,
                            .decay = job->decay + at * job->rates,
                            .a = job->a ? job->a + at * job->keys : NULL,
                            .b = job->b ? job->b + at * job->keys : NULL,
                            .beta = job->beta ? job->beta[at] : 1,
                            .at = at,
                            .anew = job->reset && job->reset[row] > 0};
}

/* decay S and S at key k and column j. */
static inline real rm_matrix_old(const rm_matrix_step *p, const real *S, int64_t k, int64_t j) {
    return p->anew ? 0 : S[k * p->job->values + j];
}
static inline real rm_matrix_decayed(const rm_matrix_step *p, const real *S, int64_t k, int64_t j) {
    return p->decay[p->job->rates > 1 ? k : 0] * rm_matrix_old(p, S, k, j);
}

/* Column j of v - D^T k (DELTA), of v - S^T k (TANH), of S^T a (RANK1), or of v (ADD). */
static inline real rm_matrix_error(const rm_matrix_step *p, const real *S, int64_t j) {
    const rm_matrix_rule rule = p->job->rule;
    real error = rule == RM_MATRIX_RANK1 ? 0 : p->v[j];
    for (int64_t k = 0; rule != RM_MATRIX_ADD && k < p->job->keys; k++)
        error += rule == RM_MATRIX_RANK1  ? p->a[k] * rm_matrix_old(p, S, k, j)
                 : rule == RM_MATRIX_TANH ? -p->k[k] * rm_matrix_old(p, S, k, j)
                                          : -p->k[k] * rm_matrix_decayed(p, S, k, j);
    return error;
}

/* What k is multiplied with. */
static inline real rm_matrix_write(const rm_matrix_step *p, real error, int64_t j) {
    return p->job->rule == RM_MATRIX_RANK1 ? p->v[j] : p->beta * error;
}

/* `to` may be S itself. */
static inline void rm_matrix_advance(const rm_matrix_step *p, const real *S, real *to) {
    for (int64_t j = 0; j < p->job->values; j++) {
        real error = rm_matrix_error(p, S, j), delta = rm_matrix_write(p, error, j);
        for (int64_t k = 0; k < p->job->keys; k++) {
            real after = rm_matrix_decayed(p, S, k, j) + p->k[k] * delta + (p->b ? p->b[k] * error : 0);
            to[k * p->job->values + j] = p->job->rule == RM_MATRIX_TANH ? real_tanh(after) : after;
        }
    }
}

static inline void rm_matrix_define_forward(const rm_matrix_job *job) {
    int64_t matrix = job->keys * job->values, units = job->batch * job->heads;
    rm_matrix_copy(job->s_out, job->s_in, units * matrix);
    for (int64_t i = 0; i < units; i++)
        for (int64_t t = 0; t < job->tau; t++) {
            rm_matrix_step p = rm_matrix_step_at(job, t, i);
            real *S = job->s_out + i * matrix;
            rm_matrix_advance(&p, S, S);
            for (int64_t j = 0; j < job->values; j++) {
                real sum = 0;
                for (int64_t k = 0; k < job->keys; k++) sum += p.q[k] * S[k * job->values + j];
                job->y[p.at * job->values + j] = sum;
            }
        }
}

/* Backward of column j of a timestep, from S before and after it. G is the gradient of S: on entry from later
 * timesteps, on return also from this one. */
static inline void rm_matrix_column_back(const rm_matrix_step *p, const real *S, const real *after, int64_t j,
                                         real *G) {
    const rm_matrix_job *job = p->job;
    const bool rank1 = job->rule == RM_MATRIX_RANK1, squashed = job->rule == RM_MATRIX_TANH;
    real error = rm_matrix_error(p, S, j), delta = rm_matrix_write(p, error, j), ddelta = 0, danswer = 0;
    real dy = job->dy[p->at * job->values + j];
    for (int64_t k = 0; k < job->keys; k++) {
        int64_t at = k * job->values + j;
        job->dq[p->at * job->keys + k] += after[at] * dy;
        G[at] += p->q[k] * dy;
        if (squashed) G[at] *= 1 - after[at] * after[at]; /* from here on, that of tanh's argument */
        ddelta += p->k[k] * G[at];
        if (rank1) danswer += p->b[k] * G[at];
    }
    real derror = p->beta * ddelta;
    if (job->dbeta) job->dbeta[p->at] += ddelta * error;
    if (job->dv) job->dv[p->at * job->values + j] = derror;
    for (int64_t k = 0; k < job->keys; k++) {
        int64_t at = k * job->values + j, own = p->at * job->keys + k;
        real d = rm_matrix_decayed(p, S, k, j), decay = p->decay[job->rates > 1 ? k : 0];
        job->dk[own] += G[at] * delta;
        if (rank1) job->db[own] += G[at] * error, job->da[own] += rm_matrix_old(p, S, k, j) * danswer;
        if (job->rule == RM_MATRIX_DELTA) job->dk[own] -= d * derror, G[at] -= p->k[k] * derror;
        if (squashed) job->dk[own] -= rm_matrix_old(p, S, k, j) * derror;
        job->dlog_decay[p->at * job->rates + (job->rates > 1 ? k : 0)] += G[at] * d;
        G[at] = p->anew ? 0 : decay * G[at] + (rank1 ? p->a[k] * danswer : 0) - (squashed ? p->k[k] * derror : 0);
    }
}

/* room: (tau + 2,K,V). */
static inline void rm_matrix_define_backward(const rm_matrix_job *job, real *room) {
    int64_t matrix = job->keys * job->values, heads = job->tau * job->batch * job->heads;
    real *S = room, *G = S + (job->tau + 1) * matrix, *const by_key[] = {job->dq, job->dk, job->da, job->db};
    for (int i = 0; i < 4; i++) rm_matrix_copy(by_key[i], NULL, heads * job->keys);
    rm_matrix_copy(job->dlog_decay, NULL, heads * job->rates);
    rm_matrix_copy(job->dbeta, NULL, heads);
    for (int64_t i = 0; i < job->batch * job->heads; i++) {
        rm_matrix_copy(S, job->s_in ? job->s_in + i * matrix : NULL, matrix);
        rm_matrix_copy(G, job->ds_out ? job->ds_out + i * matrix : NULL, matrix);
        for (int64_t t = 0; t < job->tau; t++) {
            rm_matrix_step p = rm_matrix_step_at(job, t, i);
            rm_matrix_advance(&p, S + t * matrix, S + (t + 1) * matrix);
        }
        for (int64_t t = job->tau - 1; t >= 0; t--) {
            rm_matrix_step p = rm_matrix_step_at(job, t, i);
            for (int64_t j = 0; j < job->values; j++)
                rm_matrix_column_back(&p, S + t * matrix, S + (t + 1) * matrix, j, G);
        }
        rm_matrix_copy(job->ds_in ? job->ds_in + i * matrix : NULL, G, matrix);
    }
}

/* ---- Running a job ------------------------------------------------------------------------------------------------ */

/* Of all heads, through the recurrence alone. */
static inline double rm_matrix_flops(rm_matrix_rule rule, const rm_matrix_job *n, remat_pass pass) {
    static const double flops[RM_MATRIX_RULES][2] = {[RM_MATRIX_ADD] = {5, 22},
                                                     [RM_MATRIX_DELTA] = {9, 34},
                                                     [RM_MATRIX_RANK1] = {11, 42},
                                                     [RM_MATRIX_TANH] = {29, 77}};
    return (double)(n->tau * n->batch * n->heads) * (double)(n->keys * n->values) * flops[rule][pass == REMAT_BACKWARD];
}

/* By the definition or by the fast kernels; room: scratch of the bytes below. */
typedef void rm_matrix_runner(const rm_matrix_job *job, bool backward, real *room, int threads);

static inline void rm_matrix_define(const rm_matrix_job *job, bool backward, real *room, int threads) {
    (void)threads;
    if (backward)
        rm_matrix_define_backward(job, room);
    else
        rm_matrix_define_forward(job);
}
static inline uint64_t rm_matrix_define_bytes(int64_t tau, int64_t keys, int64_t values, remat_pass pass) {
    return pass == REMAT_BACKWARD ? (uint64_t)((tau + 2) * keys * values) * sizeof(real) : 0;
}

#ifndef RM_REAL_DOUBLE
/* Each worker has its own room. */
static inline int64_t rm_matrix_workers(int64_t units, int threads) { return units < threads ? units : threads; }

static inline uint64_t rm_matrix_fast_bytes(int64_t tau, int64_t units, int64_t keys, remat_pass pass, int threads) {
    int64_t room = rm_matrix_room(tau, keys, pass == REMAT_BACKWARD);
    return (uint64_t)(rm_matrix_workers(units, threads) * room) * sizeof(real);
}

static inline void rm_matrix_fast(const rm_matrix_job *job, bool backward, real *room, int threads) {
    const rm_matrix_rows *rows = &rm_cell_kernels_get()->matrix[job->rule];
    rm_matrix_kernel *kernel = backward ? rows->backward : rows->forward;
    int64_t units = job->batch * job->heads, workers = rm_matrix_workers(units, threads);
    int64_t each = rm_matrix_room(job->tau, job->keys, backward);
    RM_PARALLEL_EVEN(
        threads, job->tau * units * job->keys * job->values > RM_PARALLEL_MIN, for (int64_t w = 0; w < workers; w++) {
            for (int64_t i = units * w / workers; i < units * (w + 1) / workers; i++)
                kernel(job, i / job->heads, i % job->heads, room + w * each);
        });
}
#endif

/* An op's kernels, from its forward_by and backward_by, job_of and part_reals. */
#ifdef RM_REAL_DOUBLE
#define RM_MATRIX_FAST_KERNELS
#else
#define RM_MATRIX_FAST_KERNELS                                                                                         \
    static void forward(const remat_call *call) { forward_by(call, rm_matrix_fast); }                                  \
    static void backward(const remat_call *call) { backward_by(call, rm_matrix_fast); }                                \
    static uint64_t scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux, int threads) {     \
        (void)aux;                                                                                                     \
        rm_matrix_job n = job_of(x, attr);                                                                             \
        return (uint64_t)part_reals(&n, pass) * sizeof(real) +                                                         \
               rm_matrix_fast_bytes(n.tau, n.batch * n.heads, n.keys, pass, threads);                                  \
    }                                                                                                                  \
    static uint64_t cuda_scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux,               \
                                       int threads) {                                                                  \
        (void)aux, (void)threads;                                                                                      \
        rm_matrix_job n = job_of(x, attr);                                                                             \
        int64_t room = rm_matrix_cuda_room(n.tau, n.batch * n.heads, n.keys, n.values);                                \
        return (uint64_t)(part_reals(&n, pass) + (pass == REMAT_BACKWARD ? room : 0)) * sizeof(real);                  \
    }
#endif
#define RM_MATRIX_KERNELS                                                                                              \
    static void define_forward(const remat_call *call) { forward_by(call, rm_matrix_define); }                         \
    static void define_backward(const remat_call *call) { backward_by(call, rm_matrix_define); }                       \
    RM_MATRIX_FAST_KERNELS
#define RM_MATRIX_ON(name)                                                                                             \
    {                                                                                                                  \
        {.forward = RM_FAST(forward, define_forward),                                                                  \
         .backward = RM_FAST(backward, define_backward),                                                               \
         .scratch_bytes = RM_FAST(scratch_bytes, NULL)},                                                               \
            {.forward = RM_CUDA(name, forward),                                                                        \
             .backward = RM_CUDA(name, backward),                                                                      \
             .scratch_bytes = RM_FAST(cuda_scratch_bytes, NULL)},                                                      \
    }

/* The members that these ops have in common. */
#define RM_MATRIX_MEMBERS(op)                                                                                          \
    .struct_bytes = sizeof(remat_op), .name = #op, .n_in = INPUTS, .resets = 1u << RESET,                              \
    .time = REMAT_TIME_RECURRENT, .infer = infer, .cost = cost, .define_forward = define_forward,                      \
    .define_backward = define_backward, .on = RM_MATRIX_ON(op), .samples = samples,                                    \
    .n_samples = sizeof samples / sizeof *samples

#endif

/* matrix_scan.cuh: recurrences of matrices on CUDA (matrix_scan.h says which): the kernels that delta_scan.cu, ssd.cu, mlstm.cu,
 * rwkv7.cu and ndm.cu share. An op's launcher computes decays and gates, runs a job, and turns the gradients into those of its inputs.
 *
 * Columns of S are independent, so a thread computes one. Backward keeps the states and their gradients of a few timesteps
 * in scratch; then a thread for each timestep and key adds up over the columns, in order. */
#ifndef RM_MATRIX_SCAN_CUH
#define RM_MATRIX_SCAN_CUH

#include "ops/cuda/channels.cuh"

extern "C" {
#include "ops/recurrent/matrix_scan.h"
}

static __device__ inline float rm_matrix_sigmoid(float x) { return 1 / (1 + expf(-x)); }
static __device__ inline float rm_matrix_softplus(float x) { return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)); }

/* A timestep of a head. */
typedef struct {
    const float *q, *k, *v, *decay, *a, *b, *dy;
    float beta;
    int64_t at; /* the index of (t,b,head) */
    bool anew;
} rm_matrix_place;

static __device__ inline rm_matrix_place rm_matrix_place_of(const rm_matrix_job &s, int64_t t, int64_t unit) {
    int64_t b = rm_row_of(unit, s.heads), head = unit - b * s.heads, row = t * s.batch + b, at = row * s.heads + head;
    int64_t shared = (row * (s.heads / s.repeat) + head / s.repeat) * s.keys;
    rm_matrix_place p;
    p.q = s.q + shared, p.k = s.k + shared, p.v = s.v + at * s.values, p.decay = s.decay + at * s.rates;
    p.a = s.a ? s.a + at * s.keys : NULL, p.b = s.b ? s.b + at * s.keys : NULL;
    p.dy = s.dy ? s.dy + at * s.values : NULL;
    p.beta = s.beta ? s.beta[at] : 1, p.at = at, p.anew = s.reset && s.reset[row] > 0;
    return p;
}

static __device__ inline float rm_matrix_decay(const rm_matrix_job &s, const rm_matrix_place &p, int64_t k) {
    return p.decay[s.rates > 1 ? k : 0];
}

/* Column j of S' from that of S; to may be from. Returns y[j]. *error: v (ADD), v - D^T k (DELTA), v - S^T k (TANH),
 * S^T a (RANK1). */
static __device__ inline float rm_matrix_advance(const rm_matrix_job &s, const rm_matrix_place &p, int64_t j,
                                                 const float *from, float *to, float *error) {
    const bool rank1 = s.rule == RM_MATRIX_RANK1, squashed = s.rule == RM_MATRIX_TANH;
    float sum = rank1 ? 0 : p.v[j], y = 0;
    for (int64_t k = 0; s.rule != RM_MATRIX_ADD && !p.anew && k < s.keys; k++)
        sum += rank1      ? p.a[k] * from[k * s.values]
               : squashed ? -p.k[k] * from[k * s.values]
                          : -p.k[k] * (rm_matrix_decay(s, p, k) * from[k * s.values]);
    float write = rank1 ? p.v[j] : p.beta * sum;
    for (int64_t k = 0; k < s.keys; k++) {
        float before = p.anew ? 0 : from[k * s.values];
        float after = rm_matrix_decay(s, p, k) * before + p.k[k] * write + (rank1 ? p.b[k] * sum : 0);
        if (squashed) after = tanhf(after);
        to[k * s.values] = after;
        y += p.q[k] * after;
    }
    *error = sum;
    return y;
}

/* For each column: i its index among (b,head,j), which is that of its row 0 without the rows' stride. */
#define RM_MATRIX_EACH_COLUMN(s)                                                                                       \
    RM_EACH(i, (s).batch *(s).heads *(s).values)                                                                       \
    for (int64_t unit = rm_row_of(i, (s).values), j = i - unit * (s).values, first = unit * (s).keys * (s).values + j, \
                 once_ = 1;                                                                                            \
         once_; once_ = 0)

static __device__ inline void rm_matrix_copy_column(const rm_matrix_job &s, const float *from, float *to) {
    for (int64_t k = 0; k < s.keys; k++) to[k * s.values] = from ? from[k * s.values] : 0;
}

static __global__ void rm_matrix_forward(rm_matrix_job s) {
    RM_MATRIX_EACH_COLUMN(s) {
        float *S = s.s_out + first, error;
        rm_matrix_copy_column(s, s.s_in ? s.s_in + first : NULL, S);
        for (int64_t t = 0; t < s.tau; t++) {
            rm_matrix_place p = rm_matrix_place_of(s, t, unit);
            s.y[p.at * s.values + j] = rm_matrix_advance(s, p, j, S, S, &error);
        }
    }
}

/* Scratch of backward. M: the numbers of all matrices; N: those of one row of each. */
typedef struct {
    float *starts;         /* (chunks,M): S at the chunks' starts */
    float *states, *ds;    /* (CHUNK,M) each, of a chunk: S after a timestep, and its gradient (TANH: its argument's) */
    float *carried;        /* (M): the gradient of S before the timestep */
    float *error, *dwrite; /* (CHUNK,N): `error` above; the gradient of what k is multiplied with, RANK1: of S^T a */
    float *dlog;           /* (CHUNK,B,heads,K): the gradient of log decay by each key */
} rm_matrix_scratch;

static __global__ void rm_matrix_start_chunks(rm_matrix_job s, float *starts, float *carried) {
    int64_t all = s.batch * s.heads * s.keys * s.values;
    RM_MATRIX_EACH_COLUMN(s) {
        float *S = starts + first, error;
        rm_matrix_copy_column(s, s.s_in ? s.s_in + first : NULL, S);
        rm_matrix_copy_column(s, s.ds_out ? s.ds_out + first : NULL, carried + first);
        for (int64_t t = 0; t + RM_MATRIX_CUDA_CHUNK <
                            (s.tau + RM_MATRIX_CUDA_CHUNK - 1) / RM_MATRIX_CUDA_CHUNK * RM_MATRIX_CUDA_CHUNK;
             t++) {
            float *to = t % RM_MATRIX_CUDA_CHUNK ? S : S + all;
            rm_matrix_advance(s, rm_matrix_place_of(s, t, unit), j, S, to, &error);
            S = to;
        }
    }
}

/* The chunk of `count` timesteps from t0 on, forward and back. */
static __global__ void rm_matrix_columns_back(rm_matrix_job s, rm_matrix_scratch r, int64_t t0, int64_t count) {
    const bool rank1 = s.rule == RM_MATRIX_RANK1, delta = s.rule == RM_MATRIX_DELTA,
               squashed = s.rule == RM_MATRIX_TANH;
    int64_t all = s.batch * s.heads * s.keys * s.values, row = s.batch * s.heads * s.values;
    RM_MATRIX_EACH_COLUMN(s) {
        for (int64_t c = 0; c < count; c++)
            rm_matrix_advance(s, rm_matrix_place_of(s, t0 + c, unit), j,
                              c ? r.states + (c - 1) * all + first : r.starts + first, r.states + c * all + first,
                              r.error + c * row + i);
        float *carried = r.carried + first;
        for (int64_t c = count - 1; c >= 0; c--) {
            rm_matrix_place p = rm_matrix_place_of(s, t0 + c, unit);
            float *ds = r.ds + c * all + first, dwrite = 0, danswer = 0;
            const float *after = r.states + c * all + first;
            for (int64_t k = 0; k < s.keys; k++) {
                float d = carried[k * s.values] + p.q[k] * p.dy[j], h = after[k * s.values];
                if (squashed) d *= 1 - h * h;
                ds[k * s.values] = d;
                dwrite += p.k[k] * d;
                if (rank1) danswer += p.b[k] * d;
            }
            float derror = rank1 ? danswer : p.beta * dwrite;
            if (s.dv) s.dv[p.at * s.values + j] = rank1 ? dwrite : derror;
            r.dwrite[c * row + i] = rank1 ? danswer : dwrite;
            for (int64_t k = 0; k < s.keys; k++) {
                float d = ds[k * s.values] - (delta ? p.k[k] * derror : 0);
                float other = rank1 ? p.a[k] * danswer : squashed ? -p.k[k] * derror : 0;
                carried[k * s.values] = p.anew ? 0 : rm_matrix_decay(s, p, k) * d + other;
            }
        }
    }
}

/* Sums over the columns, for each timestep of the chunk, head and key. */
static __global__ void rm_matrix_keys_back(rm_matrix_job s, rm_matrix_scratch r, int64_t t0, int64_t count) {
    const bool rank1 = s.rule == RM_MATRIX_RANK1, delta = s.rule == RM_MATRIX_DELTA,
               squashed = s.rule == RM_MATRIX_TANH;
    int64_t units = s.batch * s.heads, all = units * s.keys * s.values;
    RM_EACH(i, count * units * s.keys) {
        int64_t head = rm_row_of(i, s.keys), k = i - head * s.keys, c = rm_row_of(head, units), unit = head - c * units;
        rm_matrix_place p = rm_matrix_place_of(s, t0 + c, unit);
        int64_t first = (unit * s.keys + k) * s.values;
        const float *before = c ? r.states + (c - 1) * all + first : r.starts + first,
                    *after = r.states + c * all + first;
        const float *ds = r.ds + c * all + first, *error = r.error + head * s.values,
                    *dwrite = r.dwrite + head * s.values;
        float decay = rm_matrix_decay(s, p, k), dq = 0, dk = 0, dlog = 0, da = 0, db = 0;
        for (int64_t j = 0; j < s.values; j++) {
            float old = p.anew ? 0 : before[j], derror = delta ? p.beta * dwrite[j] : 0;
            dq += after[j] * p.dy[j];
            dk +=
                ds[j] * (rank1 ? p.v[j] : p.beta * error[j]) - decay * old * derror - (squashed ? old * dwrite[j] : 0);
            dlog += (ds[j] - p.k[k] * derror) * decay * old;
            da += old * dwrite[j], db += ds[j] * error[j];
        }
        int64_t own = p.at * s.keys + k;
        s.dq[own] = dq, s.dk[own] = dk;
        if (rank1) s.da[own] = da, s.db[own] = db;
        if (s.rates > 1) s.dlog_decay[own] = dlog;
        r.dlog[i] = dlog;
    }
}

/* Sums over the keys, for each timestep of the chunk and head. */
static __global__ void rm_matrix_heads_back(rm_matrix_job s, rm_matrix_scratch r, int64_t t0, int64_t count) {
    int64_t units = s.batch * s.heads;
    RM_EACH(i, count * units) {
        float dlog = 0, dbeta = 0;
        for (int64_t k = 0; k < s.keys; k++) dlog += r.dlog[i * s.keys + k];
        for (int64_t j = 0; j < s.values; j++) dbeta += r.dwrite[i * s.values + j] * r.error[i * s.values + j];
        if (s.rates == 1) s.dlog_decay[t0 * units + i] = dlog;
        if (s.dbeta) s.dbeta[t0 * units + i] = dbeta;
    }
}

static __global__ void rm_matrix_copy(int64_t n, const float *from, float *to) {
    RM_EACH(i, n) to[i] = from ? from[i] : 0;
}

/* to = from, which may be NULL: zeros. to NULL: nothing. */
static inline void rm_matrix_launch_copy(const void *queue, int64_t n, const float *from, float *to) {
    if (to) RM_LAUNCH_EACH(rm_matrix_copy, n, queue, n, from, to);
}

enum { RM_MATRIX_THREADS = 64 /* of a block: few, since few columns are common */ };
#define RM_MATRIX_LAUNCH(kernel, n, queue, ...)                                                                        \
    RM_LAUNCH(kernel, rm_blocks_within(n, RM_MATRIX_THREADS, RM_EACH_BLOCKS), RM_MATRIX_THREADS, queue, __VA_ARGS__)

static inline void rm_matrix_run_forward(const void *queue, const rm_matrix_job *s) {
    RM_MATRIX_LAUNCH(rm_matrix_forward, s->batch * s->heads * s->values, queue, *s);
}

/* room: rm_matrix_cuda_room(..) floats. */
static inline void rm_matrix_run_backward(const void *queue, const rm_matrix_job *s, float *room) {
    const int64_t chunk = RM_MATRIX_CUDA_CHUNK, units = s->batch * s->heads, columns = units * s->values;
    int64_t all = columns * s->keys, chunks = (s->tau + chunk - 1) / chunk;
    rm_matrix_scratch r;
    r.starts = room, r.states = r.starts + chunks * all, r.ds = r.states + chunk * all;
    r.carried = r.ds + chunk * all, r.error = r.carried + all, r.dwrite = r.error + chunk * columns;
    r.dlog = r.dwrite + chunk * columns;
    RM_MATRIX_LAUNCH(rm_matrix_start_chunks, columns, queue, *s, r.starts, r.carried);
    r.starts += (chunks - 1) * all;
    for (int64_t t0 = (chunks - 1) * chunk; t0 >= 0; t0 -= chunk, r.starts -= all) {
        int64_t count = s->tau - t0 < chunk ? s->tau - t0 : chunk;
        RM_MATRIX_LAUNCH(rm_matrix_columns_back, columns, queue, *s, r, t0, count);
        RM_MATRIX_LAUNCH(rm_matrix_keys_back, count * units * s->keys, queue, *s, r, t0, count);
        RM_MATRIX_LAUNCH(rm_matrix_heads_back, count * units, queue, *s, r, t0, count);
    }
    rm_matrix_launch_copy(queue, all, r.carried, s->ds_in);
}

/* The gradient of an input that `repeat` heads share: the sum of theirs, in order. to: (tau,B,heads/repeat,K). */
static __global__ void rm_matrix_sum_heads(rm_matrix_job s, const float *part, float *to) {
    RM_EACH(i, s.tau * s.batch * s.heads / s.repeat * s.keys) {
        int64_t head = rm_row_of(i, s.keys), k = i - head * s.keys;
        float sum = 0;
        for (int64_t p = 0; p < s.repeat; p++) sum += part[(head * s.repeat + p) * s.keys + k];
        to[i] = sum;
    }
}
static inline void rm_matrix_launch_sum_heads(const void *queue, const rm_matrix_job *s, const float *part, float *to) {
    int64_t n = s->tau * s->batch * s->heads / s->repeat * s->keys;
    if (to) RM_LAUNCH_EACH(rm_matrix_sum_heads, n, queue, *s, part, to);
}

/* to (n) += the sums of x (tau B,n) over all rows; to NULL: nothing. */
static inline void rm_matrix_launch_add_rows(const void *queue, const rm_matrix_job *s, int64_t n, const float *x,
                                             float *to) {
    if (to) rm_launch_add_columns(queue, s->tau * s->batch, n, n, x, to);
}

#endif

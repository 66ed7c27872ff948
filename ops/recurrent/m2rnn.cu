/* m2rnn.cu: the op `m2rnn` (m2rnn.c) on CUDA. A block of threads computes one head of one row of the batch, one timestep
 * after the other; a thread has elements of its matrices of its own.
 *
 *     scratch, for each row and head    forward: Z (K,V)
 *                                       backward: H before every timestep and after the last (tau+1,K,V), Z (tau,K,V),
 *                                       the gradients of H (K,V), of Z's argument (K,V) and of w (V,V)
 *
 * A row's gradient of w is summed by its block; another kernel then adds the rows in order. */
#include "ops/cuda/reduce.cuh"

extern "C" {
#include "ops/recurrent/m2rnn.h"
}

enum { Q, K, V, F, W, RESET, THREADS = 256 };

typedef struct {
    int64_t tau, batch, heads, keys, values, matrix;
    const float *q, *k, *v, *f, *w, *reset;
} inputs;

/* Of one head of one row. */
typedef struct {
    int64_t b, head;
    const float *w;
} unit;

static inputs inputs_of(const remat_call *call) {
    const remat_desc *q = &call->x[Q].desc, *w = &call->x[W].desc;
    inputs n;
    n.tau = q->dim[0], n.batch = q->dim[1], n.heads = w->dim[0];
    n.keys = q->dim[2] / n.heads, n.values = w->dim[1];
    n.matrix = n.keys * n.values;
    n.q = (const float *)call->x[Q].data, n.k = (const float *)call->x[K].data, n.v = (const float *)call->x[V].data;
    n.f = (const float *)call->x[F].data, n.w = (const float *)call->x[W].data;
    n.reset = (const float *)call->x[RESET].data;
    return n;
}

static __device__ inline unit unit_of(const inputs &n) {
    unit u;
    u.b = blockIdx.x / n.heads, u.head = blockIdx.x - u.b * n.heads;
    u.w = n.w + u.head * n.values * n.values;
    return u;
}

static __device__ inline int64_t at_step(const inputs &n, const unit &u, int64_t t) {
    return (t * n.batch + u.b) * n.heads + u.head;
}
static __device__ inline bool begins(const inputs &n, const unit &u, int64_t t) {
    return n.reset && n.reset[t * n.batch + u.b] > 0;
}

/* Z = tanh(H W + k v^T), then H' = f H + (1 - f) Z, which may be H itself. Ends with all of H' complete. */
static __device__ void advance(const inputs &n, const unit &u, int64_t t, const float *from, float *to, float *z) {
    const int64_t row = at_step(n, u, t);
    const float *k = n.k + row * n.keys, *v = n.v + row * n.values, f = n.f[row];
    const bool zero = begins(n, u, t);
    for (int64_t at = threadIdx.x; at < n.matrix; at += THREADS) {
        int64_t i = at / n.values, j = at - i * n.values;
        float sum = k[i] * v[j];
        for (int64_t l = 0; !zero && l < n.values; l++) sum += from[i * n.values + l] * u.w[l * n.values + j];
        z[at] = tanhf(sum);
    }
    __syncthreads();
    for (int64_t at = threadIdx.x; at < n.matrix; at += THREADS) to[at] = (zero ? 0 : f * from[at]) + (1 - f) * z[at];
    __syncthreads();
}

static __device__ void copy(int64_t count, const float *from, float *to) {
    for (int64_t at = threadIdx.x; at < count; at += THREADS) to[at] = from ? from[at] : 0;
}

static __global__ void forward(inputs n, const float *state, float *z, float *state_out, float *y) {
    const unit u = unit_of(n);
    float *H = state_out + blockIdx.x * n.matrix;
    copy(n.matrix, state ? state + blockIdx.x * n.matrix : NULL, H);
    __syncthreads();
    for (int64_t t = 0; t < n.tau; t++) {
        const int64_t row = at_step(n, u, t);
        advance(n, u, t, H, H, z + blockIdx.x * n.matrix);
        for (int64_t j = threadIdx.x; j < n.values; j += THREADS) { /* y = H'^T q; the next update waits for all */
            float sum = 0;
            for (int64_t i = 0; i < n.keys; i++) sum += n.q[row * n.keys + i] * H[i * n.values + j];
            y[row * n.values + j] = sum;
        }
    }
}

/* Where gradients go; NULL: not wanted. dw: for each row of the batch. */
typedef struct {
    const float *dy, *later;
    float *dq, *dk, *dv, *df, *before;
    bool dw;
} gradients;

/* Adds q dy^T to G, and computes dp = (1 - f) G (1 - Z^2) and the timestep's df. Comments quote m2rnn.c. */
static __device__ void into_argument(const inputs &n, const gradients &d, int64_t row, const float *H, const float *z,
                                     bool zero, float *G, float *dp) {
    const float *q = n.q + row * n.keys, *dy = d.dy + row * n.values, f = n.f[row];
    float by_f = 0;
    for (int64_t at = threadIdx.x; at < n.matrix; at += THREADS) {
        int64_t i = at / n.values, j = at - i * n.values;
        float g = G[at] + q[i] * dy[j];             /* y = H'^T q */
        by_f += g * ((zero ? 0 : H[at]) - z[at]);   /* H' = f H + (1 - f) Z */
        dp[at] = (1 - f) * g * (1 - z[at] * z[at]); /* Z = tanh(..) */
        G[at] = g;
    }
    by_f = rm_block_sum(by_f); /* all of dp is complete after it */
    if (threadIdx.x == 0 && d.df) d.df[row] = by_f;
}

/* dq, dk and dv of a timestep: a thread for each element. */
static __device__ void into_vectors(const inputs &n, const gradients &d, int64_t row, const float *after,
                                    const float *dp) {
    const float *k = n.k + row * n.keys, *v = n.v + row * n.values, *dy = d.dy + row * n.values;
    for (int64_t i = threadIdx.x; i < n.keys; i += THREADS) {
        float by_q = 0, by_k = 0;
        for (int64_t j = 0; j < n.values; j++)
            by_q += after[i * n.values + j] * dy[j], by_k += dp[i * n.values + j] * v[j];
        if (d.dq) d.dq[row * n.keys + i] = by_q;
        if (d.dk) d.dk[row * n.keys + i] = by_k;
    }
    for (int64_t j = threadIdx.x; d.dv && j < n.values; j += THREADS) {
        float sum = 0;
        for (int64_t i = 0; i < n.keys; i++) sum += k[i] * dp[i * n.values + j];
        d.dv[row * n.values + j] = sum;
    }
}

/* G = f G + dp W^T and dw += H^T dp: what goes on to the timestep before. */
static __device__ void into_state(const inputs &n, const unit &u, const gradients &d, float f, const float *H,
                                  const float *dp, bool zero, float *G, float *dw) {
    for (int64_t at = threadIdx.x; at < n.matrix; at += THREADS) {
        int64_t i = at / n.values, l = at - i * n.values;
        float sum = zero ? 0 : f * G[at];
        for (int64_t j = 0; !zero && j < n.values; j++) sum += dp[i * n.values + j] * u.w[l * n.values + j];
        G[at] = sum;
    }
    for (int64_t at = threadIdx.x; d.dw && !zero && at < n.values * n.values; at += THREADS) {
        int64_t l = at / n.values, j = at - l * n.values;
        float sum = dw[at];
        for (int64_t i = 0; i < n.keys; i++) sum += H[i * n.values + l] * dp[i * n.values + j];
        dw[at] = sum;
    }
}

static __global__ void backward(inputs n, const float *state, gradients d, float *scratch) {
    const unit u = unit_of(n);
    const int64_t square = n.values * n.values, own = blockIdx.x * n.matrix;
    float *H = scratch + blockIdx.x * rm_m2rnn_cuda_floats(n.tau, n.keys, n.values), *z = H + (n.tau + 1) * n.matrix;
    float *G = z + n.tau * n.matrix, *dp = G + n.matrix, *dw = dp + n.matrix;
    copy(n.matrix, state ? state + own : NULL, H);
    copy(n.matrix, d.later ? d.later + own : NULL, G);
    copy(square, NULL, dw);
    __syncthreads();
    for (int64_t t = 0; t < n.tau; t++) advance(n, u, t, H + t * n.matrix, H + (t + 1) * n.matrix, z + t * n.matrix);
    for (int64_t t = n.tau - 1; t >= 0; t--) {
        const int64_t row = at_step(n, u, t);
        const bool zero = begins(n, u, t);
        const float *before = H + t * n.matrix;
        into_argument(n, d, row, before, z + t * n.matrix, zero, G, dp);
        into_vectors(n, d, row, before + n.matrix, dp);
        into_state(n, u, d, n.f[row], before, dp, zero, G, dw);
        __syncthreads(); /* dp is overwritten next */
    }
    if (d.before) copy(n.matrix, G, d.before + own);
}

/* dw (heads,V,V) += the sum over rows of the batch, in order. */
static __global__ void add_rows(inputs n, const float *scratch, float *dw) {
    const int64_t square = n.values * n.values, floats = rm_m2rnn_cuda_floats(n.tau, n.keys, n.values);
    RM_EACH(e, n.heads * square) {
        int64_t head = rm_row_of(e, square), at = e - head * square;
        float sum = 0;
        for (int64_t b = 0; b < n.batch; b++) sum += scratch[(b * n.heads + head + 1) * floats - square + at];
        dw[e] += sum;
    }
}

static __global__ void clear(int64_t n, float *to) { RM_EACH(i, n) to[i] = 0; }

void rm_m2rnn_forward_cuda(const remat_call *call) {
    const inputs n = inputs_of(call);
    RM_LAUNCH_TOGETHER(forward, n.batch * n.heads, THREADS, call->queue, n, (const float *)call->state_in[0].data,
                       (float *)call->scratch, (float *)call->state_out[0].data, (float *)call->y.data);
}

void rm_m2rnn_backward_cuda(const remat_call *call) {
    const inputs n = inputs_of(call);
    float *dw = (float *)call->dx[W].data, *dreset = (float *)call->dx[RESET].data;
    gradients d;
    d.dy = (const float *)call->dy.data, d.later = (const float *)call->dstate_out[0].data;
    d.dq = (float *)call->dx[Q].data, d.dk = (float *)call->dx[K].data, d.dv = (float *)call->dx[V].data;
    d.df = (float *)call->dx[F].data, d.before = (float *)call->dstate_in[0].data, d.dw = dw != NULL;
    RM_LAUNCH_TOGETHER(backward, n.batch * n.heads, THREADS, call->queue, n, (const float *)call->state_in[0].data, d,
                       (float *)call->scratch);
    if (dw) RM_LAUNCH_EACH(add_rows, n.heads * n.values * n.values, call->queue, n, (const float *)call->scratch, dw);
    if (dreset) RM_LAUNCH_EACH(clear, n.tau * n.batch, call->queue, n.tau * n.batch, dreset);
}

/* delta_scan.cu: the CUDA kernels of the op `delta_scan` (delta_scan.c) around those of matrix_scan.cuh. */
#include "ops/recurrent/matrix_scan.cuh"

enum { Q, K, V, A, B, A_LOG, DT_BIAS, RESET };
#define EPSILON 1e-6f

static __device__ inline float inverse_norm(const float *x, int64_t n) {
    float sum = EPSILON;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return 1 / sqrtf(sum);
}

/* A thread for each head. */
static __global__ void normalise(int64_t heads, int64_t keys, float scale, const float *x, float *to) {
    RM_EACH(h, heads) {
        float factor = scale * inverse_norm(x + h * keys, keys);
        for (int64_t i = h * keys; i < (h + 1) * keys; i++) to[i] = factor * x[i];
    }
}

/* Replaces the gradient of a normalised head by that of x. */
static __global__ void normalise_back(int64_t heads, int64_t keys, float scale, const float *x, float *dx) {
    RM_EACH(h, heads) {
        const float *from = x + h * keys;
        float *to = dx + h * keys, r = inverse_norm(from, keys), dot = 0;
        for (int64_t i = 0; i < keys; i++) dot += to[i] * from[i];
        for (int64_t i = 0; i < keys; i++) to[i] = scale * r * (to[i] - from[i] * r * r * dot);
    }
}

typedef struct {
    const float *a, *b, *a_log, *bias;
    float *decay, *beta; /* forward: these; backward: terms of the gradients of dt_bias and of A_log */
    const float *dlog, *dbeta;
    float *da, *db;
    float most; /* of beta */
} gates;

/* The terms of decay i: a + dt_bias, and e^A_log. */
static __device__ inline float raw_of(const rm_matrix_job &s, const gates &g, int64_t i) {
    return g.a[i] + (g.bias ? g.bias[i % (s.heads * s.rates)] : 0);
}
static __device__ inline float rate_of(const rm_matrix_job &s, const gates &g, int64_t head) {
    return g.a_log ? expf(g.a_log[head % s.heads]) : 1;
}

static __global__ void open_gates(rm_matrix_job s, gates g) {
    RM_EACH(head, s.tau * s.batch * s.heads) {
        for (int64_t i = head * s.rates; i < (head + 1) * s.rates; i++)
            g.decay[i] = expf(-rate_of(s, g, head) * rm_matrix_softplus(raw_of(s, g, i)));
        g.beta[head] = g.most * rm_matrix_sigmoid(g.b[head]);
    }
}

static __global__ void gates_back(rm_matrix_job s, gates g) {
    RM_EACH(head, s.tau * s.batch * s.heads) {
        float by_a_log = 0, beta = g.beta[head];
        for (int64_t i = head * s.rates; i < (head + 1) * s.rates; i++) {
            float raw = raw_of(s, g, i), by_rate = -g.dlog[i] * rate_of(s, g, head);
            float draw = by_rate * rm_matrix_sigmoid(raw);
            g.decay[i] = draw;
            if (g.da) g.da[i] = draw;
            by_a_log += by_rate * rm_matrix_softplus(raw);
        }
        if (g.db) g.db[head] = g.dbeta[head] * beta * (1 - beta / g.most);
        g.beta[head] = by_a_log;
    }
}

/* A job whose q, k, decay and beta are in scratch, the first four parts of delta_scan.c's. */
static rm_matrix_job prepare(const remat_call *call, gates *g) {
    const rm_delta_scan_attr *attr = (const rm_delta_scan_attr *)call->attr;
    const remat_desc *v = &call->x[V].desc;
    rm_matrix_job s = {};
    s.rule = RM_MATRIX_DELTA, s.tau = v->dim[0], s.batch = v->dim[1], s.heads = call->x[B].desc.dim[2];
    int64_t shared = attr && attr->key_heads ? attr->key_heads : s.heads;
    s.repeat = s.heads / shared, s.keys = call->x[Q].desc.dim[2] / shared, s.values = v->dim[2] / s.heads;
    s.rates = call->x[A].desc.dim[2] / s.heads;
    int64_t heads = s.tau * s.batch * s.heads, rows = heads / s.repeat;
    float *q = (float *)call->scratch, *k = q + rows * s.keys;
    *g = {};
    g->most = attr && attr->negative ? 2 : 1;
    g->a = (const float *)call->x[A].data, g->b = (const float *)call->x[B].data;
    g->a_log = (const float *)call->x[A_LOG].data, g->bias = (const float *)call->x[DT_BIAS].data;
    g->decay = k + rows * s.keys, g->beta = k + rows * s.keys + heads * s.rates;
    s.q = q, s.k = k, s.v = (const float *)call->x[V].data, s.decay = g->decay, s.beta = g->beta;
    s.reset = (const float *)call->x[RESET].data, s.s_in = (const float *)call->state_in[0].data;
    RM_LAUNCH_EACH(normalise, rows, call->queue, rows, s.keys, 1 / sqrtf((float)s.keys), (const float *)call->x[Q].data,
                   q);
    RM_LAUNCH_EACH(normalise, rows, call->queue, rows, s.keys, 1.0f, (const float *)call->x[K].data, k);
    RM_LAUNCH_EACH(open_gates, heads, call->queue, s, *g);
    return s;
}

void rm_delta_scan_forward_cuda(const remat_call *call) {
    gates g;
    rm_matrix_job s = prepare(call, &g);
    s.y = (float *)call->y.data, s.s_out = (float *)call->state_out[0].data;
    rm_matrix_run_forward(call->queue, &s);
}

/* From the gradient of normalised heads, that of input `which`. */
static void finish(const remat_call *call, const rm_matrix_job *s, int which, float scale, const float *part) {
    int64_t rows = s->tau * s->batch * s->heads / s->repeat;
    float *dx = (float *)call->dx[which].data;
    rm_matrix_launch_sum_heads(call->queue, s, part, dx);
    if (dx)
        RM_LAUNCH_EACH(normalise_back, rows, call->queue, rows, s->keys, scale, (const float *)call->x[which].data, dx);
}

void rm_delta_scan_backward_cuda(const remat_call *call) {
    gates g;
    rm_matrix_job s = prepare(call, &g);
    int64_t heads = s.tau * s.batch * s.heads;
    s.dy = (const float *)call->dy.data, s.ds_out = (const float *)call->dstate_out[0].data;
    s.ds_in = (float *)call->dstate_in[0].data, s.dv = (float *)call->dx[V].data;
    s.dq = g.beta + heads, s.dk = s.dq + heads * s.keys;
    s.dlog_decay = s.dk + heads * s.keys, s.dbeta = s.dlog_decay + heads * s.rates;
    rm_matrix_run_backward(call->queue, &s, s.dbeta + heads);
    finish(call, &s, Q, 1 / sqrtf((float)s.keys), s.dq);
    finish(call, &s, K, 1, s.dk);
    g.dlog = s.dlog_decay, g.dbeta = s.dbeta, g.da = (float *)call->dx[A].data, g.db = (float *)call->dx[B].data;
    RM_LAUNCH_EACH(gates_back, heads, call->queue, s, g);
    rm_matrix_launch_add_rows(call->queue, &s, s.heads * s.rates, g.decay, (float *)call->dx[DT_BIAS].data);
    rm_matrix_launch_add_rows(call->queue, &s, s.heads, g.beta, (float *)call->dx[A_LOG].data);
    rm_matrix_launch_copy(call->queue, s.tau * s.batch, NULL, (float *)call->dx[RESET].data);
}

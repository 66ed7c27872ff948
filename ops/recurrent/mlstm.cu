/* mlstm.cu: the CUDA kernels of the op `mlstm` (mlstm.c) around those of matrix_scan.cuh. */
#include "ops/recurrent/matrix_scan.cuh"

enum { Q, K, V, I, F, RESET };
enum { STATE_C, STATE_N, STATE_M };
#define EPSILON 1e-6f

typedef struct {
    rm_matrix_job c; /* the recurrence of C */
    float scale;     /* 1 / sqrt(K) */
    const float *i, *f, *m_in;
    float *decay, *take, *m, *dot, *one; /* (tau,B,heads) */
} tile;

static __device__ inline float kept_of(const tile &s, int64_t at, float m) { return m - rm_matrix_softplus(-s.f[at]); }

/* m of unit (b,head) before row t. */
static __device__ inline float m_before(const tile &s, int64_t t, int64_t unit) {
    if (s.c.reset && s.c.reset[t * s.c.batch + unit / s.c.heads] > 0) return 0;
    return t ? s.m[(t - 1) * s.c.batch * s.c.heads + unit] : s.m_in ? s.m_in[unit] : 0;
}

/* A thread for each unit, through all timesteps. */
static __global__ void open_gates(tile s) {
    int64_t units = s.c.batch * s.c.heads;
    RM_EACH(unit, units)
    for (int64_t t = 0; t < s.c.tau; t++) {
        int64_t at = t * units + unit;
        float kept = kept_of(s, at, m_before(s, t, unit));
        s.m[at] = kept > s.i[at] ? kept : s.i[at], s.one[at] = 1;
        s.decay[at] = expf(kept - s.m[at]), s.take[at] = expf(s.i[at] - s.m[at]);
    }
}

static __device__ inline float divisor_of(const tile &s, int64_t at) {
    float least = expf(-s.m[at]), size = s.scale * fabsf(s.dot[at]);
    return (size > least ? size : least) + EPSILON;
}

static __global__ void divide(tile s) {
    RM_EACH(i, s.c.tau * s.c.batch * s.c.heads * s.c.values)
    s.c.y[i] *= s.scale / divisor_of(s, rm_row_of(i, s.c.values));
}

/* y = scale C^T q / divisor: the gradients of C^T q and n.q, and, instead of `one`, of m. A thread for each (t,b,head). */
static __global__ void divide_back(tile s, const float *y, const float *dy, float *dc, float *ddot) {
    RM_EACH(at, s.c.tau * s.c.batch * s.c.heads) {
        float divisor = divisor_of(s, at), sum = 0;
        for (int64_t j = at * s.c.values; j < (at + 1) * s.c.values; j++) {
            dc[j] = s.scale * dy[j] / divisor;
            sum += dy[j] * y[j];
        }
        bool by_dot = s.scale * fabsf(s.dot[at]) > expf(-s.m[at]);
        ddot[at] = by_dot ? (s.dot[at] < 0 ? s.scale : -s.scale) * sum / divisor : 0;
        s.dot[at] = by_dot ? 0 : sum / (1 + EPSILON * expf(s.m[at])); /* e^-m may be infinite */
    }
}

/* The gradients of both recurrences together: to += from. */
static __global__ void add(int64_t n, const float *from, float *to) { RM_EACH(i, n) to[i] += from[i]; }

/* A thread for each unit. `dot` holds the gradient of m by y. */
static __global__ void gates_back(tile s, const float *dm_out, float *di, float *df, float *dm_in) {
    int64_t units = s.c.batch * s.c.heads;
    RM_EACH(unit, units) {
        float carried = dm_out ? dm_out[unit] : 0;
        for (int64_t t = s.c.tau - 1; t >= 0; t--) {
            int64_t at = t * units + unit;
            float by_take = s.c.dbeta[at] * s.take[at], by_kept = s.c.dlog_decay[at];
            float d = carried + s.dot[at] - by_take - by_kept;
            bool by_input = !(kept_of(s, at, m_before(s, t, unit)) > s.i[at]);
            float dkept = by_kept + (by_input ? 0 : d);
            if (di) di[at] = by_take + (by_input ? d : 0);
            if (df) df[at] = dkept * rm_matrix_sigmoid(-s.f[at]);
            carried = s.c.reset && s.c.reset[t * s.c.batch + unit / s.c.heads] > 0 ? 0 : dkept;
        }
        if (dm_in) dm_in[unit] = carried;
    }
}

/* n: the recurrence of n. */
static tile prepare(const remat_call *call, rm_matrix_job *n) {
    tile s = {};
    rm_matrix_job *c = &s.c;
    const remat_desc *v = &call->x[V].desc;
    c->rule = RM_MATRIX_ADD, c->tau = v->dim[0], c->batch = v->dim[1], c->heads = call->x[I].desc.dim[2];
    c->keys = call->x[Q].desc.dim[2] / c->heads, c->values = v->dim[2] / c->heads, c->repeat = c->rates = 1;
    int64_t units = c->batch * c->heads, heads = c->tau * units;
    s.scale = 1 / sqrtf((float)c->keys), s.m_in = (const float *)call->state_in[STATE_M].data;
    s.i = (const float *)call->x[I].data, s.f = (const float *)call->x[F].data;
    s.decay = (float *)call->scratch, s.take = s.decay + heads, s.m = s.take + heads, s.dot = s.m + heads;
    s.one = s.dot + heads;
    c->q = (const float *)call->x[Q].data, c->k = (const float *)call->x[K].data, c->decay = s.decay, c->beta = s.take;
    c->reset = (const float *)call->x[RESET].data;
    *n = s.c;
    c->v = (const float *)call->x[V].data, c->s_in = (const float *)call->state_in[STATE_C].data;
    n->v = s.one, n->values = 1, n->s_in = (const float *)call->state_in[STATE_N].data, n->y = s.dot;
    RM_LAUNCH_EACH(open_gates, units, call->queue, s);
    return s;
}

void rm_mlstm_forward_cuda(const remat_call *call) {
    rm_matrix_job n;
    tile s = prepare(call, &n);
    int64_t units = s.c.batch * s.c.heads, heads = s.c.tau * units;
    s.c.y = (float *)call->y.data, s.c.s_out = (float *)call->state_out[STATE_C].data;
    n.s_out = (float *)call->state_out[STATE_N].data;
    rm_matrix_run_forward(call->queue, &s.c);
    rm_matrix_run_forward(call->queue, &n);
    RM_LAUNCH_EACH(divide, heads * s.c.values, call->queue, s);
    rm_matrix_launch_copy(call->queue, units, s.m + heads - units, (float *)call->state_out[STATE_M].data);
}

void rm_mlstm_backward_cuda(const remat_call *call) {
    rm_matrix_job n;
    tile s = prepare(call, &n);
    int64_t heads = s.c.tau * s.c.batch * s.c.heads, keyed = heads * s.c.keys;
    float *dlog = s.one + heads, *dtake = dlog + 2 * heads, *ddot = dtake + 2 * heads, *dc = ddot + heads;
    float *dq = dc + heads * s.c.values, *room = dq + 4 * keyed;
    n.s_out = dq; /* not kept */
    rm_matrix_run_forward(call->queue, &n);
    RM_LAUNCH_EACH(divide_back, heads, call->queue, s, (const float *)call->y.data, (const float *)call->dy.data, dc,
                   ddot);
    s.c.dy = dc, n.dy = ddot, s.c.dv = (float *)call->dx[V].data;
    s.c.ds_out = (const float *)call->dstate_out[STATE_C].data, s.c.ds_in = (float *)call->dstate_in[STATE_C].data;
    n.ds_out = (const float *)call->dstate_out[STATE_N].data, n.ds_in = (float *)call->dstate_in[STATE_N].data;
    s.c.dlog_decay = dlog, s.c.dbeta = dtake, s.c.dq = dq, s.c.dk = dq + keyed;
    n.dlog_decay = dlog + heads, n.dbeta = dtake + heads, n.dq = dq + 2 * keyed, n.dk = dq + 3 * keyed;
    rm_matrix_run_backward(call->queue, &s.c, room);
    rm_matrix_run_backward(call->queue, &n, room);
    RM_LAUNCH_EACH(add, heads, call->queue, heads, (const float *)n.dlog_decay, dlog);
    RM_LAUNCH_EACH(add, heads, call->queue, heads, (const float *)n.dbeta, dtake);
    RM_LAUNCH_EACH(add, 2 * keyed, call->queue, 2 * keyed, (const float *)n.dq, dq);
    RM_LAUNCH_EACH(gates_back, s.c.batch * s.c.heads, call->queue, s, (const float *)call->dstate_out[STATE_M].data,
                   (float *)call->dx[I].data, (float *)call->dx[F].data, (float *)call->dstate_in[STATE_M].data);
    rm_matrix_launch_copy(call->queue, keyed, dq, (float *)call->dx[Q].data);
    rm_matrix_launch_copy(call->queue, keyed, dq + keyed, (float *)call->dx[K].data);
    rm_matrix_launch_copy(call->queue, s.c.tau * s.c.batch, NULL, (float *)call->dx[RESET].data);
}

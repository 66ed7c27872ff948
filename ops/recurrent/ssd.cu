/* ssd.cu: the CUDA kernels of the op `ssd` (ssd.c) around those of matrix_scan.cuh. */
#include "ops/recurrent/matrix_scan.cuh"

enum { X, DT, A_LOG, B, C, D, DT_BIAS, RESET };

typedef struct {
    const float *dt, *bias, *a_log, *d;
    float *decay, *delta; /* forward: these; backward: terms of the gradients of dt_bias and of A_log */
    const float *dlog;
    float *ddelta, *ddt; /* ddelta becomes terms of the gradient of D */
} gates;

static __device__ inline float raw_of(const rm_matrix_job &s, const gates &g, int64_t i) {
    return g.dt[i] + (g.bias ? g.bias[i % s.heads] : 0);
}

/* A thread for each (t,b,head). */
static __global__ void open_gates(rm_matrix_job s, gates g) {
    RM_EACH(i, s.tau * s.batch * s.heads) {
        g.delta[i] = rm_matrix_softplus(raw_of(s, g, i));
        g.decay[i] = expf(-g.delta[i] * expf(g.a_log[i % s.heads]));
    }
}

/* y += D x, for each number. */
static __global__ void skip(rm_matrix_job s, const float *d) {
    RM_EACH(i, s.tau * s.batch * s.heads * s.values) s.y[i] += d[rm_row_of(i, s.values) % s.heads] * s.v[i];
}

static __global__ void gates_back(rm_matrix_job s, gates g) {
    RM_EACH(i, s.tau * s.batch * s.heads) {
        float by_rate = -g.dlog[i] * expf(g.a_log[i % s.heads]), sum = 0;
        float draw = (g.ddelta[i] + by_rate) * rm_matrix_sigmoid(raw_of(s, g, i));
        if (g.ddt) g.ddt[i] = draw;
        for (int64_t at = i * s.values; g.d && at < (i + 1) * s.values; at++) {
            sum += s.dy[at] * s.v[at];
            if (s.dv) s.dv[at] += g.d[i % s.heads] * s.dy[at];
        }
        g.decay[i] = draw, g.delta[i] *= by_rate, g.ddelta[i] = sum;
    }
}

static rm_matrix_job prepare(const remat_call *call, gates *g) {
    const remat_desc *x = &call->x[X].desc;
    rm_matrix_job s = {};
    int64_t groups = call->attr ? ((const rm_ssd_attr *)call->attr)->groups : 1;
    s.rule = RM_MATRIX_ADD, s.tau = x->dim[0], s.batch = x->dim[1], s.heads = call->x[DT].desc.dim[2];
    s.repeat = s.heads / groups, s.keys = call->x[B].desc.dim[2] / groups, s.values = x->dim[2] / s.heads, s.rates = 1;
    int64_t heads = s.tau * s.batch * s.heads;
    *g = {};
    g->dt = (const float *)call->x[DT].data, g->bias = (const float *)call->x[DT_BIAS].data;
    g->a_log = (const float *)call->x[A_LOG].data, g->d = (const float *)call->x[D].data;
    g->decay = (float *)call->scratch, g->delta = (float *)call->scratch + heads;
    s.q = (const float *)call->x[C].data, s.k = (const float *)call->x[B].data, s.v = (const float *)call->x[X].data;
    s.decay = g->decay, s.beta = g->delta;
    s.reset = (const float *)call->x[RESET].data, s.s_in = (const float *)call->state_in[0].data;
    RM_LAUNCH_EACH(open_gates, heads, call->queue, s, *g);
    return s;
}

void rm_ssd_forward_cuda(const remat_call *call) {
    gates g;
    rm_matrix_job s = prepare(call, &g);
    s.y = (float *)call->y.data, s.s_out = (float *)call->state_out[0].data;
    rm_matrix_run_forward(call->queue, &s);
    if (g.d) RM_LAUNCH_EACH(skip, s.tau * s.batch * s.heads * s.values, call->queue, s, g.d);
}

void rm_ssd_backward_cuda(const remat_call *call) {
    gates g;
    rm_matrix_job s = prepare(call, &g);
    int64_t heads = s.tau * s.batch * s.heads;
    s.dy = (const float *)call->dy.data, s.ds_out = (const float *)call->dstate_out[0].data;
    s.ds_in = (float *)call->dstate_in[0].data, s.dv = (float *)call->dx[X].data;
    s.dlog_decay = g.delta + heads, s.dbeta = s.dlog_decay + heads;
    s.dq = s.dbeta + heads, s.dk = s.dq + heads * s.keys;
    rm_matrix_run_backward(call->queue, &s, s.dk + heads * s.keys);
    rm_matrix_launch_sum_heads(call->queue, &s, s.dq, (float *)call->dx[C].data);
    rm_matrix_launch_sum_heads(call->queue, &s, s.dk, (float *)call->dx[B].data);
    g.dlog = s.dlog_decay, g.ddelta = s.dbeta, g.ddt = (float *)call->dx[DT].data;
    RM_LAUNCH_EACH(gates_back, heads, call->queue, s, g);
    rm_matrix_launch_add_rows(call->queue, &s, s.heads, g.decay, (float *)call->dx[DT_BIAS].data);
    rm_matrix_launch_add_rows(call->queue, &s, s.heads, g.delta, (float *)call->dx[A_LOG].data);
    rm_matrix_launch_add_rows(call->queue, &s, s.heads, g.ddelta, (float *)call->dx[D].data);
    rm_matrix_launch_copy(call->queue, s.tau * s.batch, NULL, (float *)call->dx[RESET].data);
}

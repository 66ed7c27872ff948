/* ndm.cu: the CUDA kernels of the op `ndm` (ndm.c) around those of matrix_scan.cuh. */
#include "ops/recurrent/matrix_scan.cuh"

enum { Q, K, V, G, RESET };

static __global__ void exponentials(int64_t n, const float *g, float *decay) { RM_EACH(i, n) decay[i] = expf(g[i]); }

static rm_matrix_job prepare(const remat_call *call) {
    const remat_desc *v = &call->x[V].desc;
    rm_matrix_job s = {};
    s.rule = RM_MATRIX_TANH, s.tau = v->dim[0], s.batch = v->dim[1], s.heads = call->x[G].desc.dim[2];
    s.repeat = s.rates = 1, s.keys = call->x[Q].desc.dim[2] / s.heads, s.values = v->dim[2] / s.heads;
    int64_t heads = s.tau * s.batch * s.heads;
    float *decay = (float *)call->scratch;
    s.q = (const float *)call->x[Q].data, s.k = (const float *)call->x[K].data, s.v = (const float *)call->x[V].data;
    s.decay = decay, s.reset = (const float *)call->x[RESET].data, s.s_in = (const float *)call->state_in[0].data;
    RM_LAUNCH_EACH(exponentials, heads, call->queue, heads, (const float *)call->x[G].data, decay);
    return s;
}

void rm_ndm_forward_cuda(const remat_call *call) {
    rm_matrix_job s = prepare(call);
    s.y = (float *)call->y.data, s.s_out = (float *)call->state_out[0].data;
    rm_matrix_run_forward(call->queue, &s);
}

void rm_ndm_backward_cuda(const remat_call *call) {
    rm_matrix_job s = prepare(call);
    int64_t heads = s.tau * s.batch * s.heads, keyed = heads * s.keys;
    s.dy = (const float *)call->dy.data, s.ds_out = (const float *)call->dstate_out[0].data;
    s.ds_in = (float *)call->dstate_in[0].data, s.dv = (float *)call->dx[V].data;
    s.dlog_decay = (float *)call->scratch + heads, s.dq = s.dlog_decay + heads, s.dk = s.dq + keyed;
    rm_matrix_run_backward(call->queue, &s, s.dk + keyed);
    rm_matrix_launch_copy(call->queue, keyed, s.dq, (float *)call->dx[Q].data);
    rm_matrix_launch_copy(call->queue, keyed, s.dk, (float *)call->dx[K].data);
    rm_matrix_launch_copy(call->queue, heads, s.dlog_decay, (float *)call->dx[G].data);
    rm_matrix_launch_copy(call->queue, s.tau * s.batch, NULL, (float *)call->dx[RESET].data);
}

/* rwkv7.cu: the CUDA kernels of the op `rwkv7` (rwkv7.c) around those of matrix_scan.cuh. */
#include "ops/recurrent/matrix_scan.cuh"

enum { R, W, K, V, KAPPA, A, RESET };
#define SLOWEST 0.60653065971263342f /* e^(-1/2) */
#define EPSILON 1e-12f

static __device__ inline float norm_of(const float *x, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrtf(sum);
}

typedef struct {
    const float *w, *kappa, *gate;
    float *decay, *a, *b;
    float *dw, *dkappa, *dgate;
} gates;

/* A thread for each (t,b,head). */
static __global__ void open_gates(rm_matrix_job s, gates g) {
    RM_EACH(head, s.tau * s.batch * s.heads) {
        int64_t first = head * s.keys;
        float norm = norm_of(g.kappa + first, s.keys), factor = 1 / (norm > EPSILON ? norm : EPSILON);
        for (int64_t i = first; i < first + s.keys; i++) {
            g.decay[i] = expf(-SLOWEST * rm_matrix_sigmoid(g.w[i]));
            g.a[i] = -factor * g.kappa[i], g.b[i] = factor * g.kappa[i] * rm_matrix_sigmoid(g.gate[i]);
        }
    }
}

static __global__ void gates_back(rm_matrix_job s, gates g) {
    RM_EACH(head, s.tau * s.batch * s.heads) {
        int64_t first = head * s.keys;
        float norm = norm_of(g.kappa + first, s.keys), dot = 0;
        for (int64_t i = first; i < first + s.keys; i++) {
            float slow = rm_matrix_sigmoid(g.w[i]), open = rm_matrix_sigmoid(g.gate[i]);
            if (g.dw) g.dw[i] = -s.dlog_decay[i] * SLOWEST * slow * (1 - slow);
            if (g.dgate) g.dgate[i] = -s.db[i] * g.a[i] * open * (1 - open);
            s.da[i] = s.db[i] * open - s.da[i]; /* the gradient of u */
            dot -= s.da[i] * g.a[i];
        }
        for (int64_t i = first; g.dkappa && i < first + s.keys; i++)
            g.dkappa[i] = norm > EPSILON ? (s.da[i] + g.a[i] * dot) / norm : s.da[i] / EPSILON;
    }
}

static rm_matrix_job prepare(const remat_call *call, gates *g) {
    const remat_desc *r = &call->x[R].desc;
    rm_matrix_job s = {};
    s.rule = RM_MATRIX_RANK1, s.tau = r->dim[0], s.batch = r->dim[1], s.repeat = 1;
    s.heads = call->attr ? ((const rm_rwkv7_attr *)call->attr)->heads : 1;
    s.keys = s.rates = r->dim[2] / s.heads, s.values = call->x[V].desc.dim[2] / s.heads;
    int64_t keyed = s.tau * s.batch * s.heads * s.keys;
    float *decay = (float *)call->scratch;
    *g = {};
    g->w = (const float *)call->x[W].data, g->kappa = (const float *)call->x[KAPPA].data;
    g->gate = (const float *)call->x[A].data, g->decay = decay;
    g->a = decay + keyed, g->b = decay + 2 * keyed;
    s.q = (const float *)call->x[R].data, s.k = (const float *)call->x[K].data, s.v = (const float *)call->x[V].data;
    s.decay = decay, s.a = g->a, s.b = g->b;
    s.reset = (const float *)call->x[RESET].data, s.s_in = (const float *)call->state_in[0].data;
    RM_LAUNCH_EACH(open_gates, s.tau * s.batch * s.heads, call->queue, s, *g);
    return s;
}

void rm_rwkv7_forward_cuda(const remat_call *call) {
    gates g;
    rm_matrix_job s = prepare(call, &g);
    s.y = (float *)call->y.data, s.s_out = (float *)call->state_out[0].data;
    rm_matrix_run_forward(call->queue, &s);
}

void rm_rwkv7_backward_cuda(const remat_call *call) {
    gates g;
    rm_matrix_job s = prepare(call, &g);
    int64_t heads = s.tau * s.batch * s.heads, keyed = heads * s.keys;
    s.dy = (const float *)call->dy.data, s.ds_out = (const float *)call->dstate_out[0].data;
    s.ds_in = (float *)call->dstate_in[0].data, s.dv = (float *)call->dx[V].data;
    s.dlog_decay = g.b + keyed, s.da = s.dlog_decay + keyed, s.db = s.da + keyed, s.dq = s.db + keyed,
    s.dk = s.dq + keyed;
    rm_matrix_run_backward(call->queue, &s, s.dk + keyed);
    g.dw = (float *)call->dx[W].data, g.dkappa = (float *)call->dx[KAPPA].data, g.dgate = (float *)call->dx[A].data;
    RM_LAUNCH_EACH(gates_back, heads, call->queue, s, g);
    rm_matrix_launch_copy(call->queue, keyed, s.dq, (float *)call->dx[R].data);
    rm_matrix_launch_copy(call->queue, keyed, s.dk, (float *)call->dx[K].data);
    rm_matrix_launch_copy(call->queue, s.tau * s.batch, NULL, (float *)call->dx[RESET].data);
}

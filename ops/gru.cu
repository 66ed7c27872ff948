/* gru.cu: the CUDA kernels of the op `gru` (gru.c). Gates (rows,4H) in the order n r z q. */
#include "ops/recurrent.cuh"

enum { R, Z, N, COLUMNS = 4, SHIFT = 1 };

/* h's part of q is added by a product, as those of r and z are: x has no part in it. */
static __global__ void clear_q(int64_t n, int64_t hidden, float *gates) {
    RM_EACH(i, n) {
        int64_t row = rm_cell_row(i, hidden);
        gates[row * 4 * hidden + 3 * hidden + i - row * hidden] = 0;
    }
}

static __device__ inline rm_gru_gates sums_of(const rm_cell_sums *s, int64_t row, int64_t j) {
    const float *unit = s->products + row * s->width + j;
    rm_gru_gates pre = {0, rm_cell_sum(s, row, j, R), rm_cell_sum(s, row, j, Z), 0};
    pre.n = s->table ? rm_cell_table(s, row, j, N) : unit[0];
    pre.q = row < s->bare ? 0 : unit[3 * s->hidden];
    if (s->b_ih) pre.n += s->b_ih[N * s->hidden + j];
    if (s->b_hh) pre.q += s->b_hh[N * s->hidden + j];
    return pre;
}

/* Rows of sums become gates, where `gates` is given (the same array); one timestep's also h. n = rows * H. */
static __global__ void step(rm_cell_sums sums, int64_t n, float *gates, const float *h_before, float *h, float *h_out) {
    RM_EACH(i, n) {
        int64_t hidden = sums.hidden, row = rm_cell_row(i, hidden), j = i - row * hidden;
        rm_gru_gates a = rm_gru_activate(sums_of(&sums, row, j));
        if (gates) {
            float *unit = gates + row * 4 * hidden + j;
            unit[0] = a.n, unit[hidden] = a.r, unit[2 * hidden] = a.z, unit[3 * hidden] = a.q;
        }
        if (h) h[i] = rm_gru_h(a, h_before ? h_before[i] : 0);
        if (h_out) h_out[i] = h[i];
    }
}

/* Gates of one timestep become their gradients; dh, from later timesteps or NULL, what reaches h directly (or NULL). */
static __global__ void step_back(int64_t n, int64_t hidden, float *gates, const float *h_before, const float *dy,
                                 const float *dh, float *dh_direct) {
    RM_EACH(i, n) {
        int64_t row = rm_cell_row(i, hidden);
        float *unit = gates + row * 4 * hidden + i - row * hidden, direct;
        rm_gru_gates a = {unit[0], unit[hidden], unit[2 * hidden], unit[3 * hidden]};
        a = rm_gru_backward(a, h_before ? h_before[i] : 0, (dh ? dh[i] : 0) + dy[i], &direct);
        unit[0] = a.n, unit[hidden] = a.r, unit[2 * hidden] = a.z, unit[3 * hidden] = a.q;
        if (dh_direct) dh_direct[i] = direct;
    }
}

static void project(const rm_cell_tile *r, float *gates) {
    rm_cell_project(r, gates);
    if (!r->table) RM_LAUNCH_CELL(clear_q, r->rows * r->hidden, r->queue, r->rows * r->hidden, r->hidden, gates);
}

void rm_gru_forward_cuda(const rm_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, SHIFT);
    float *all = rm_cell_gates_of(&r);
    rm_cell_take_tokens(&r);
    project(&r, all);
    if (!rm_cell_begin(&r, "gru>")) return;
    for (int64_t t = 0; t < r.tau; t++) {
        float *gates = rm_cell_gates_at(&r, all, t);
        const float *h = rm_cell_h_before(&r, t);
        rm_cell_recur(&r, h, gates, r.batch);
        RM_LAUNCH_CELL(step, r.state, r.queue, rm_cell_sums_of(&r, gates, t * r.batch), r.state,
                       call->aux ? gates : NULL, h, r.y + t * r.state,
                       t == r.tau - 1 ? (float *)call->state_out[0].data : NULL);
    }
    rm_cuda_end(r.queue);
}

void rm_gru_rebuild_cuda(const rm_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, SHIFT);
    float *gates = (float *)call->aux;
    project(&r, gates);
    rm_cell_recur_all(&r, gates);
    RM_LAUNCH_CELL(step, r.rows * r.hidden, r.queue, rm_cell_sums_of(&r, gates, 0), r.rows * r.hidden, gates,
                   (const float *)NULL, (float *)NULL, (float *)NULL);
}

/* Scratch: dh (B,H). */
static void steps_back(const rm_cell_tile *r, float *dh) {
    const rm_call *call = r->call;
    if (!rm_cell_begin(r, "gru<")) return;
    const float *from = (const float *)call->dstate_out[0].data;
    for (int64_t t = r->tau - 1; t >= 0; t--) {
        float *gates = (float *)call->aux + t * r->batch * r->width,
              *to = t > 0 ? dh : (float *)call->dstate_in[0].data;
        RM_LAUNCH_CELL(step_back, r->state, r->queue, r->state, r->hidden, gates, rm_cell_h_before(r, t),
                       (const float *)call->dy.data + t * r->state, from, to);
        rm_cell_back(r, gates, to, true);
        from = dh;
    }
    rm_cuda_end(r->queue);
}

void rm_gru_backward_cuda(const rm_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, SHIFT);
    steps_back(&r, (float *)call->scratch);
    rm_cell_gradients(&r, (const float *)call->aux);
}

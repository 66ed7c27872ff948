/* rnn_tanh.cu: the CUDA kernels of the op `rnn_tanh` (rnn_tanh.c). Sums wait in h's place, so there are no gates to keep. */
#include "ops/recurrent.cuh"

/* One timestep's sums, h (B,H), become h. */
static __global__ void step(rm_cell_sums sums, int64_t n, float *h, float *h_out) {
    RM_EACH(i, n) {
        int64_t row = rm_cell_row(i, sums.hidden);
        h[i] = rm_tanh(rm_cell_sum(&sums, row, i - row * sums.hidden, 0));
        if (h_out) h_out[i] = h[i];
    }
}

/* h' = tanh(..); dh: from later timesteps, or NULL */
static __global__ void step_back(int64_t n, const float *h, const float *dy, const float *dh, float *dgates) {
    RM_EACH(i, n) dgates[i] = rm_tanh_backward((dh ? dh[i] : 0) + dy[i], h[i]);
}

void rm_rnn_tanh_forward_cuda(const rm_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, 1, 0);
    rm_cell_take_tokens(&r);
    rm_cell_project(&r, r.y);
    if (!rm_cell_begin(&r, "rnn>")) return;
    for (int64_t t = 0; t < r.tau; t++) {
        float *h = r.y + t * r.state;
        rm_cell_recur(&r, rm_cell_h_before(&r, t), h, r.batch);
        RM_LAUNCH_CELL(step, r.state, r.queue, rm_cell_sums_of(&r, h, t * r.batch), r.state, h,
                       t == r.tau - 1 ? (float *)call->state_out[0].data : NULL);
    }
    rm_cuda_end(r.queue);
}

/* Scratch: dh (B,H), 2 of them in size; then dgates (tau,B,H). */
static void steps_back(const rm_cell_tile *r, float *dgates, float *dh) {
    const rm_call *call = r->call;
    if (!rm_cell_begin(r, "rnn<")) return;
    const float *from = (const float *)call->dstate_out[0].data;
    for (int64_t t = r->tau - 1; t >= 0; t--) {
        float *d = dgates + t * r->state;
        RM_LAUNCH_CELL(step_back, r->state, r->queue, r->state, (const float *)r->y + t * r->state,
                       (const float *)call->dy.data + t * r->state, from, d);
        rm_cell_back(r, d, t > 0 ? dh : (float *)call->dstate_in[0].data, false);
        from = dh;
    }
    rm_cuda_end(r->queue);
}

void rm_rnn_tanh_backward_cuda(const rm_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, 1, 0);
    float *dh = (float *)call->scratch, *dgates = dh + 2 * r.state;
    steps_back(&r, dgates, dh);
    rm_cell_gradients(&r, dgates);
}

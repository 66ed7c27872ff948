/* rnn_tanh.cu: the CUDA kernels of the op `rnn_tanh` (rnn_tanh.c). Sums are stored where h will be, so there are no
 * gates to keep. */
#include "ops/recurrent/persistent.cuh"

/* Timestep t + k: computes h from one timestep's sums, n = B H. */
static __global__ void step(int64_t k, int64_t n, rm_cell_sums sums, rm_cell_now now) {
    rm_cell_arrays a = *now.arrays;
    int64_t hidden = sums.hidden, t = a.t + k;
    if (a.token) sums.token = a.token + t * (n / hidden);
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden), j = i - row * hidden;
        rm_cell_parts next = rm_cell_read(&a, t + 1, n, hidden, 1, 1, row, j);
        float h = rm_tanh(rm_cell_sum(&sums, row, j, 0));
        now.h[i] = rm_cell_begins(&a, t + 1, n, hidden, row) ? 0 : h, a.y[t * n + i] = h;
        if (a.products) rm_cell_write(next, now.gates, hidden, 1, row, j);
        if (t + 1 == a.tau && a.h_out) a.h_out[i] = h;
    }
}

/* Timestep t - k of backward. h' = tanh(..); the gradients of the sums are written to the tile's array, and to the
 * place where the product for dh reads them. */
static __global__ void step_back(int64_t k, int64_t n, int64_t hidden, rm_cell_now now) {
    rm_cell_arrays a = *now.arrays;
    RM_EACH(i, n) {
        int64_t t = a.t - k, at = t * n + i;
        float dh = rm_cell_begins(&a, t + 1, n, hidden, rm_row_of(i, hidden)) ? 0 : now.h[i];
        now.gates[i] = a.gates[at] = rm_tanh_backward(dh + a.dy[at], a.y[at]);
    }
}

static void launch_step(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros) {
    RM_LAUNCH_CELL(step, r->state, r->queue, k, r->state, rm_cell_sums_of(r, now.gates, zeros), now);
}
static void launch_step_back(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros) {
    (void)zeros;
    RM_LAUNCH_CELL(step_back, r->state, r->queue, k, r->state, r->hidden, now);
}

/* Of persistent.cuh. */
struct tanh_cell {
    enum { GATES = 1, COLUMNS = 1, SHIFT = 0, HAS_C = 0 };
    static __device__ inline float gate(int, float x, float sum, float b_ih, float b_hh) {
        return rm_tanh(((sum + x) + b_ih) + b_hh);
    }
    static __device__ inline float next(int, const float *gates, float, float *, float *) { return gates[0]; }
    static __device__ inline void back(const rm_persistent_read &r, float dh, float *, float *, float *d) {
        *d = rm_tanh_backward(dh, r.kept[0]);
    }
};

void rm_rnn_tanh_forward_cuda(const remat_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, 1, 0);
    rm_cell_project(&r, r.y);
    if (rm_persistent_serves(&r)) rm_persistent_launch_forward<tanh_cell>(&r, r.y, NULL, NULL);
    else rm_cell_forward(&r, "rnn>", false, r.y, NULL, NULL, launch_step);
}

/* Scratch: dgates (tau,B,H). */
void rm_rnn_tanh_backward_cuda(const remat_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, 1, 0);
    float *dgates = (float *)call->scratch;
    if (rm_persistent_serves(&r)) rm_persistent_launch_backward<tanh_cell>(&r, dgates, NULL);
    else rm_cell_backward(&r, "rnn<", false, dgates, NULL, false, launch_step_back);
    rm_cell_gradients(&r, dgates);
}

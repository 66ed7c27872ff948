/* plain_rnn.cuh: the CUDA kernels of rnn_tanh and rnn_relu (plain_rnn.h). Sums are stored where h will be, so there are no
 * gates to keep. F: the cell's f, F::of(x), and the gradient of its argument, F::back(dh, h). */
#ifndef RM_PLAIN_RNN_CUH
#define RM_PLAIN_RNN_CUH

#include "ops/recurrent/persistent.cuh"

/* Timestep t + k: computes h from one timestep's sums, n = B H. */
template <class F> static __global__ void rm_plain_step(int64_t k, int64_t n, rm_cell_sums sums, rm_cell_now now) {
    rm_cell_arrays a = *now.arrays;
    int64_t hidden = sums.hidden, t = a.t + k;
    if (a.token) sums.token = a.token + t * (n / hidden);
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden), j = i - row * hidden;
        rm_cell_parts next = rm_cell_read(&a, t + 1, n, hidden, 1, 1, row, j);
        float h = F::of(rm_cell_sum(&sums, row, j, 0));
        now.h[i] = rm_cell_begins(&a, t + 1, n, hidden, row) ? 0 : h, a.y[t * n + i] = h;
        if (a.products) rm_cell_write(next, now.gates, hidden, 1, row, j);
        if (t + 1 == a.tau && a.h_out) a.h_out[i] = h;
    }
}

/* Timestep t - k of backward. h' = f(..); the gradients of the sums are written to the tile's array, and to the
 * place where the product for dh reads them. */
template <class F> static __global__ void rm_plain_step_back(int64_t k, int64_t n, int64_t hidden, rm_cell_now now) {
    rm_cell_arrays a = *now.arrays;
    RM_EACH(i, n) {
        int64_t t = a.t - k, at = t * n + i;
        float dh = rm_cell_begins(&a, t + 1, n, hidden, rm_row_of(i, hidden)) ? 0 : now.h[i];
        now.gates[i] = a.gates[at] = F::back(dh + a.dy[at], a.y[at]);
    }
}

template <class F> static void rm_plain_launch_step(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros) {
    RM_LAUNCH_CELL(rm_plain_step<F>, r->state, r->queue, k, r->state, rm_cell_sums_of(r, now.gates, zeros), now);
}
template <class F> static void rm_plain_launch_step_back(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros) {
    (void)zeros;
    RM_LAUNCH_CELL(rm_plain_step_back<F>, r->state, r->queue, k, r->state, r->hidden, now);
}

/* Of persistent.cuh. */
template <class F> struct rm_plain_cell {
    enum { GATES = 1, COLUMNS = 1, SHIFT = 0, HAS_C = 0 };
    static __device__ inline float gate(int, float x, float sum, float b_ih, float b_hh) {
        return F::of(((sum + x) + b_ih) + b_hh);
    }
    static __device__ inline float next(int, const float *gates, float, float *, float *) { return gates[0]; }
    static __device__ inline void back(const rm_persistent_read &r, float dh, float *, float *, float *d) {
        *d = F::back(dh, r.kept[0]);
    }
};

/* name: as in rm_cell_forward. */
template <class F> static void rm_plain_forward(const remat_call *call, const char *name) {
    rm_cell_tile r = rm_cell_tile_of(call, 1, 0);
    rm_cell_project(&r, r.y);
    if (rm_persistent_serves(&r)) rm_persistent_launch_forward<rm_plain_cell<F>>(&r, r.y, NULL, NULL);
    else rm_cell_forward(&r, name, false, r.y, NULL, NULL, rm_plain_launch_step<F>);
}

/* Scratch: dgates (tau,B,H). name: as in rm_cell_backward. */
template <class F> static void rm_plain_backward(const remat_call *call, const char *name) {
    rm_cell_tile r = rm_cell_tile_of(call, 1, 0);
    float *dgates = (float *)call->scratch;
    if (rm_persistent_serves(&r)) rm_persistent_launch_backward<rm_plain_cell<F>>(&r, dgates, NULL);
    else rm_cell_backward(&r, name, false, dgates, NULL, false, rm_plain_launch_step_back<F>);
    rm_cell_gradients(&r, dgates);
}

#endif

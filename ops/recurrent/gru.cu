/* gru.cu: the CUDA kernels of the op `gru` (gru.c). Gates (rows,4H) in the order n r z q. */
#include "ops/recurrent/persistent.cuh"

enum { R, Z, N, GATES, COLUMNS = 4, SHIFT = 1 };

/* For all rows. Products add the part of h to q as to r and z; x has no part in q. */
static __global__ void clear_q(int64_t n, int64_t hidden, float *gates) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden);
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

static __device__ inline void put(float *unit, int64_t hidden, rm_gru_gates a) {
    unit[0] = a.n, unit[hidden] = a.r, unit[2 * hidden] = a.z, unit[3 * hidden] = a.q;
}

/* Timestep t + k: computes h from one timestep's sums, n = B H, and stores the gates if they are kept. */
static __global__ void step(int64_t k, int64_t n, rm_cell_sums sums, rm_cell_now now) {
    rm_cell_arrays a = *now.arrays;
    int64_t hidden = sums.hidden, t = a.t + k;
    if (a.token) sums.token = a.token + t * (n / hidden);
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden), j = i - row * hidden;
        rm_cell_parts next = rm_cell_read(&a, t + 1, n, hidden, COLUMNS, GATES, row, j);
        rm_gru_gates gates = rm_gru_activate(sums_of(&sums, row, j));
        float h = rm_gru_h(gates, now.h[i]);
        now.h[i] = rm_cell_begins(&a, t + 1, n, hidden, row) ? 0 : h, a.y[t * n + i] = h;
        if (a.products) rm_cell_write(next, now.gates, hidden, COLUMNS, row, j);
        if (a.gates) put(a.gates + (t * n + row * hidden) * COLUMNS + j, hidden, gates);
        if (t + 1 == a.tau && a.h_out) a.h_out[i] = h;
    }
}

/* Replaces the sums of all rows by gates. n = rows * H. */
static __global__ void activate(int64_t n, rm_cell_sums sums, float *gates) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, sums.hidden), j = i - row * sums.hidden;
        put(gates + row * COLUMNS * sums.hidden + j, sums.hidden, rm_gru_activate(sums_of(&sums, row, j)));
    }
}

/* Timestep t - k of backward: replaces the gates by their gradients, and also writes these where the product for dh
 * reads them. The gradient that reaches h directly is stored as the first term of dh. */
static __global__ void step_back(int64_t k, int64_t n, int64_t hidden, rm_cell_now now) {
    rm_cell_arrays a = *now.arrays;
    int64_t t = a.t - k;
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden), at = row * COLUMNS * hidden + i - row * hidden;
        bool begins = rm_cell_begins(&a, t, n, hidden, row), ends = rm_cell_begins(&a, t + 1, n, hidden, row);
        float *unit = a.gates + t * n * COLUMNS + at;
        float h_before = begins ? 0 : t > 0 ? a.y[(t - 1) * n + i] : a.h_in ? a.h_in[i] : 0;
        float dh = (ends ? 0 : now.h[i]) + a.dy[t * n + i], direct;
        rm_gru_gates d = {unit[0], unit[hidden], unit[2 * hidden], unit[3 * hidden]};
        d = rm_gru_backward(d, h_before, dh, &direct);
        put(unit, hidden, d), put(now.gates + at, hidden, d);
        now.h[i] = direct;
    }
}

static void launch_step(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros) {
    RM_LAUNCH_CELL(step, r->state, r->queue, k, r->state, rm_cell_sums_of(r, now.gates, zeros), now);
}
static void launch_step_back(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros) {
    (void)zeros;
    RM_LAUNCH_CELL(step_back, r->state, r->queue, k, r->state, r->hidden, now);
}

/* For persistent.cuh: the two parts of n have a column each. */
struct gru_cell {
    enum { GATES = 3, COLUMNS = 4, SHIFT = 1, HAS_C = 0 };
    static __device__ inline float gate(int gate, float x, float sum, float b_ih, float b_hh) {
        return gate == N ? x + b_ih : rm_sigmoid(((sum + x) + b_ih) + b_hh);
    }
    static __device__ inline float next(int column, const float *gates, float h, float *, float *kept) {
        rm_gru_gates a = {gates[N], gates[R], gates[Z], gates[3]};
        a.n = rm_gru_n(a);
        *kept = column == 0 ? a.n : column == 1 ? a.r : column == 2 ? a.z : a.q;
        return rm_gru_h(a, h);
    }
    static __device__ inline void back(const rm_persistent_read &r, float dh, float *, float *direct, float *d) {
        rm_gru_gates a = {r.kept[0], r.kept[1], r.kept[2], r.kept[3]};
        put(d, 1, rm_gru_backward(a, r.before, dh, direct));
    }
};

void rm_gru_forward_cuda(const remat_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, SHIFT);
    float *products = (float *)(call->aux ? call->aux : call->scratch);
    rm_cell_project(&r, products);
    if (rm_persistent_serves(&r)) rm_persistent_launch_forward<gru_cell>(&r, products, (float *)call->aux, NULL);
    else rm_cell_forward(&r, "gru>", false, products, (float *)call->aux, NULL, launch_step);
}

void rm_gru_rebuild_cuda(const remat_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, SHIFT);
    float *gates = (float *)call->aux;
    int64_t n = r.rows * r.hidden;
    rm_cell_project(&r, gates);
    if (rm_persistent_serves(&r)) return rm_persistent_launch_rebuild<gru_cell>(&r, gates);
    if (!r.table) RM_LAUNCH_CELL(clear_q, n, r.queue, n, r.hidden, gates);
    rm_cell_recur_all(&r, gates);
    RM_LAUNCH_CELL(activate, n, r.queue, n, rm_cell_sums_of(&r, gates, true), gates);
}

void rm_gru_backward_cuda(const remat_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, SHIFT);
    float *gates = (float *)call->aux;
    if (rm_persistent_serves(&r)) rm_persistent_launch_backward<gru_cell>(&r, gates, NULL);
    else rm_cell_backward(&r, "gru<", false, gates, NULL, true, launch_step_back);
    rm_cell_gradients(&r, gates);
}

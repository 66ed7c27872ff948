/* lstm.cu: the CUDA kernels of the op `lstm` (lstm.c). Gates (rows,4H) in the order i f g o; c (rows,H) follows them in
 * aux. */
#include "ops/recurrent/persistent.cuh"

enum { I, F, G, O, COLUMNS };
enum { STATE_C = 1 };

static __device__ inline rm_lstm_gates get(const float *unit, int64_t hidden) {
    rm_lstm_gates a = {unit[I * hidden], unit[F * hidden], unit[G * hidden], unit[O * hidden]};
    return a;
}
static __device__ inline void put(float *unit, int64_t hidden, rm_lstm_gates a) {
    unit[I * hidden] = a.i, unit[F * hidden] = a.f, unit[G * hidden] = a.g, unit[O * hidden] = a.o;
}

static __device__ inline rm_lstm_gates activated(const rm_cell_sums *s, int64_t row, int64_t j) {
    rm_lstm_gates sums = {rm_cell_sum(s, row, j, I), rm_cell_sum(s, row, j, F), rm_cell_sum(s, row, j, G),
                          rm_cell_sum(s, row, j, O)};
    return rm_lstm_activate(sums);
}

/* Timestep t + k: computes c and h from one timestep's sums, n = B H, and stores the gates if they are kept. */
static __global__ void step(int64_t k, int64_t n, rm_cell_sums sums, rm_cell_now now) {
    rm_cell_arrays a = *now.arrays;
    int64_t hidden = sums.hidden, t = a.t + k;
    if (a.token) sums.token = a.token + t * (n / hidden);
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden), j = i - row * hidden;
        rm_cell_parts next = rm_cell_read(&a, t + 1, n, hidden, COLUMNS, COLUMNS, row, j);
        float c_before = now.c[i]; /* loaded while sums are activated */
        rm_lstm_gates gates = activated(&sums, row, j);
        float c = rm_lstm_c(gates, c_before), h = rm_lstm_h(gates.o, c);
        bool ends = rm_cell_begins(&a, t + 1, n, hidden, row);
        now.c[i] = ends ? 0 : c, now.h[i] = ends ? 0 : h, a.y[t * n + i] = h;
        if (a.products) rm_cell_write(next, now.gates, hidden, COLUMNS, row, j);
        if (a.gates) put(a.gates + (t * n + row * hidden) * COLUMNS + j, hidden, gates), a.c[t * n + i] = c;
        if (t + 1 < a.tau) continue;
        if (a.h_out) a.h_out[i] = h;
        if (a.c_out) a.c_out[i] = c;
    }
}

/* Replaces the sums of all rows by gates. n = rows * H. */
static __global__ void activate(int64_t n, rm_cell_sums sums, float *gates) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, sums.hidden), j = i - row * sums.hidden;
        put(gates + row * COLUMNS * sums.hidden + j, sums.hidden, activated(&sums, row, j));
    }
}

/* Computes c of all timesteps from the gates. Loads the gates of AHEAD timesteps at once; one by one, each load
 * would be waited for. */
enum { AHEAD = 8 };
static __global__ void scan(int64_t tau, int64_t n, int64_t hidden, const float *gates, const float *c_in,
                            const float *reset, float *all_c) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden), wide = n * COLUMNS; /* a timestep's gates */
        const float *unit = gates + row * COLUMNS * hidden + i - row * hidden;
        float c = c_in ? c_in[i] : 0;
        for (int64_t t = 0; t < tau; t += AHEAD) {
            rm_lstm_gates a[AHEAD];
            for (int k = 0; k < AHEAD; k++) a[k] = get(unit + (t + k < tau ? t + k : tau - 1) * wide, hidden);
            for (int k = 0; k < AHEAD && t + k < tau; k++) {
                if (reset && reset[(t + k) * (n / hidden) + row] > 0) c = 0;
                c = rm_lstm_c(a[k], c);
                all_c[(t + k) * n + i] = c;
            }
        }
    }
}

/* Timestep t - k of backward: replaces the gates by their gradients, and also writes these where the product for dh
 * reads them. */
static __global__ void step_back(int64_t k, int64_t n, int64_t hidden, rm_cell_now now) {
    rm_cell_arrays a = *now.arrays;
    int64_t t = a.t - k;
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden), unit = row * COLUMNS * hidden + i - row * hidden, at = t * n + i;
        bool begins = rm_cell_begins(&a, t, n, hidden, row), ends = rm_cell_begins(&a, t + 1, n, hidden, row);
        float dc = now.c[i], dh = (ends ? 0 : now.h[i]) + a.dy[at];
        float c_before = begins ? 0 : t > 0 ? a.c[at - n] : a.c_in ? a.c_in[i] : 0;
        rm_lstm_gates d = get(a.gates + t * n * COLUMNS + unit, hidden);
        d = rm_lstm_backward(d, a.c[at], c_before, dh, &dc);
        put(a.gates + t * n * COLUMNS + unit, hidden, d), put(now.gates + unit, hidden, d);
        now.c[i] = begins ? 0 : dc;
    }
}

/* Of persistent.cuh. */
struct lstm_cell {
    enum { GATES = 4, COLUMNS = 4, SHIFT = 0, HAS_C = 1 };
    static __device__ inline float gate(int gate, float x, float sum, float b_ih, float b_hh) {
        const float all = ((sum + x) + b_ih) + b_hh;
        return gate == G ? rm_tanh(all) : rm_sigmoid(all);
    }
    static __device__ inline float next(int, const float *gates, float, float *c, float *) {
        *c = rm_lstm_c(get(gates, 1), *c);
        return rm_lstm_h(gates[O], *c);
    }
    static __device__ inline void back(const rm_persistent_read &r, float dh, float *dc, float *, float *d) {
        put(d, 1, rm_lstm_backward_of(get(r.kept, 1), r.tanh_c, r.before, dh, dc));
    }
};

static float *c_of(const rm_cell_tile *r) { return r->call->aux ? (float *)r->call->aux + r->rows * r->width : NULL; }

static void launch_step(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros) {
    RM_LAUNCH_CELL(step, r->state, r->queue, k, r->state, rm_cell_sums_of(r, now.gates, zeros), now);
}
static void launch_step_back(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros) {
    (void)zeros;
    RM_LAUNCH_CELL(step_back, r->state, r->queue, k, r->state, r->hidden, now);
}

void rm_lstm_forward_cuda(const remat_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, 0);
    float *products = (float *)(call->aux ? call->aux : call->scratch);
    rm_cell_project(&r, products);
    if (rm_persistent_serves(&r)) rm_persistent_launch_forward<lstm_cell>(&r, products, (float *)call->aux, c_of(&r));
    else rm_cell_forward(&r, "lstm>", true, products, (float *)call->aux, c_of(&r), launch_step);
}

void rm_lstm_rebuild_cuda(const remat_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, 0);
    float *gates = (float *)call->aux;
    int64_t n = r.rows * r.hidden;
    rm_cell_project(&r, gates);
    if (rm_persistent_serves(&r)) {
        rm_persistent_launch_rebuild<lstm_cell>(&r, gates);
    } else {
        rm_cell_recur_all(&r, gates);
        RM_LAUNCH_CELL(activate, n, r.queue, n, rm_cell_sums_of(&r, gates, true), gates);
    }
    RM_LAUNCH_CELL(scan, r.state, r.queue, r.tau, r.state, r.hidden, gates, (const float *)call->state_in[STATE_C].data,
                   r.reset, c_of(&r));
}

void rm_lstm_backward_cuda(const remat_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, 0);
    float *gates = (float *)call->aux;
    if (rm_persistent_serves(&r)) rm_persistent_launch_backward<lstm_cell>(&r, gates, c_of(&r));
    else rm_cell_backward(&r, "lstm<", true, gates, c_of(&r), false, launch_step_back);
    rm_cell_gradients(&r, gates);
}

/* lstm.cu: the CUDA kernels of the op `lstm` (lstm.c). Gates (rows,4H) in the order i f g o; behind them in aux, c (rows,H). */
#include "ops/recurrent.cuh"

enum { I, F, G, O, COLUMNS };
enum { STATE_H, STATE_C };

static __device__ inline rm_lstm_gates get(const float *unit, int64_t hidden) {
    rm_lstm_gates a = {unit[I * hidden], unit[F * hidden], unit[G * hidden], unit[O * hidden]};
    return a;
}
static __device__ inline void put(float *unit, int64_t hidden, rm_lstm_gates a) {
    unit[I * hidden] = a.i, unit[F * hidden] = a.f, unit[G * hidden] = a.g, unit[O * hidden] = a.o;
}

/* What `step` does beside activating. All (B,H); c_before NULL: zeros; c may be c_before. */
typedef struct {
    const float *c_before;
    float *c, *h, *h_out, *c_out; /* c NULL: gates alone; the last two are NULL but for the last timestep */
} next_state;

/* Rows of sums become gates, where `gates` is given (the same array); one timestep's also c and h. n = rows * H. */
static __global__ void step(rm_cell_sums sums, int64_t n, float *gates, next_state next) {
    RM_EACH(i, n) {
        int64_t hidden = sums.hidden, row = rm_cell_row(i, hidden), j = i - row * hidden;
        rm_lstm_gates a = {rm_cell_sum(&sums, row, j, I), rm_cell_sum(&sums, row, j, F), rm_cell_sum(&sums, row, j, G),
                           rm_cell_sum(&sums, row, j, O)};
        a = rm_lstm_activate(a);
        if (gates) put(gates + row * COLUMNS * hidden + j, hidden, a);
        if (!next.c) continue;
        float c = rm_lstm_c(a, next.c_before ? next.c_before[i] : 0), h = rm_lstm_h(a.o, c);
        next.c[i] = c, next.h[i] = h;
        if (next.h_out) next.h_out[i] = h;
        if (next.c_out) next.c_out[i] = c;
    }
}

/* c of all timesteps from the gates. Gates of AHEAD timesteps are on their way from memory together: one after the other,
 * each would be waited for. */
enum { AHEAD = 8 };
static __global__ void scan(int64_t tau, int64_t n, int64_t hidden, const float *gates, const float *c_in,
                            float *all_c) {
    RM_EACH(i, n) {
        int64_t row = rm_cell_row(i, hidden), wide = n * COLUMNS; /* a timestep's gates */
        const float *unit = gates + row * COLUMNS * hidden + i - row * hidden;
        float c = c_in ? c_in[i] : 0;
        for (int64_t t = 0; t < tau; t += AHEAD) {
            rm_lstm_gates a[AHEAD];
            for (int k = 0; k < AHEAD; k++) a[k] = get(unit + (t + k < tau ? t + k : tau - 1) * wide, hidden);
            for (int k = 0; k < AHEAD && t + k < tau; k++) {
                c = rm_lstm_c(a[k], c);
                all_c[(t + k) * n + i] = c;
            }
        }
    }
}

/* One timestep, going back. dh and dc NULL: zeros; dc_to may be dc, or NULL: not wanted. Gates become their gradients. */
typedef struct {
    float *gates;
    const float *c, *c_before, *dy, *dh, *dc;
    float *dc_to;
} step_gradients;

static __global__ void step_back(int64_t n, int64_t hidden, step_gradients s) {
    RM_EACH(i, n) {
        int64_t row = rm_cell_row(i, hidden);
        float *unit = s.gates + row * COLUMNS * hidden + i - row * hidden, dc = s.dc ? s.dc[i] : 0;
        float dh = (s.dh ? s.dh[i] : 0) + s.dy[i], c_before = s.c_before ? s.c_before[i] : 0;
        put(unit, hidden, rm_lstm_backward(get(unit, hidden), s.c[i], c_before, dh, &dc));
        if (s.dc_to) s.dc_to[i] = dc;
    }
}

static float *c_of(const rm_cell_tile *r) { return r->call->aux ? (float *)r->call->aux + r->rows * r->width : NULL; }

/* c of timestep t lies in aux, or, where nothing is kept, in the outgoing state until the next one takes its place. */
static next_state next_state_of(const rm_cell_tile *r, int64_t t) {
    const rm_call *call = r->call;
    float *all_c = c_of(r), *h_out = (float *)call->state_out[STATE_H].data;
    float *c_out = (float *)call->state_out[STATE_C].data;
    bool last = t == r->tau - 1;
    next_state next;
    next.c = all_c ? all_c + t * r->state : c_out;
    next.c_before = t == 0 ? (const float *)call->state_in[STATE_C].data : all_c ? next.c - r->state : c_out;
    next.h = r->y + t * r->state;
    next.h_out = last ? h_out : NULL;
    next.c_out = last && all_c ? c_out : NULL;
    return next;
}

void rm_lstm_forward_cuda(const rm_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, 0);
    float *all = rm_cell_gates_of(&r);
    rm_cell_take_tokens(&r);
    rm_cell_project(&r, all);
    if (!rm_cell_begin(&r, "lstm>")) return;
    for (int64_t t = 0; t < r.tau; t++) {
        float *gates = rm_cell_gates_at(&r, all, t);
        rm_cell_recur(&r, rm_cell_h_before(&r, t), gates, r.batch);
        RM_LAUNCH_CELL(step, r.state, r.queue, rm_cell_sums_of(&r, gates, t * r.batch), r.state,
                       call->aux ? gates : NULL, next_state_of(&r, t));
    }
    rm_cuda_end(r.queue);
}

void rm_lstm_rebuild_cuda(const rm_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, 0);
    float *gates = (float *)call->aux;
    next_state none = {NULL, NULL, NULL, NULL, NULL};
    rm_cell_project(&r, gates);
    rm_cell_recur_all(&r, gates);
    RM_LAUNCH_CELL(step, r.rows * r.hidden, r.queue, rm_cell_sums_of(&r, gates, 0), r.rows * r.hidden, gates, none);
    RM_LAUNCH_CELL(scan, r.state, r.queue, r.tau, r.state, r.hidden, gates, (const float *)call->state_in[STATE_C].data,
                   c_of(&r));
}

/* Scratch: dh and dc (B,H). */
static void steps_back(const rm_cell_tile *r) {
    const rm_call *call = r->call;
    float *dh = (float *)call->scratch, *dc = dh + r->state;
    step_gradients s;
    if (!rm_cell_begin(r, "lstm<")) return;
    s.dh = (const float *)call->dstate_out[STATE_H].data, s.dc = (const float *)call->dstate_out[STATE_C].data;
    for (int64_t t = r->tau - 1; t >= 0; t--) {
        s.gates = (float *)call->aux + t * r->batch * r->width;
        s.c = c_of(r) + t * r->state;
        s.c_before = t > 0 ? s.c - r->state : (const float *)call->state_in[STATE_C].data;
        s.dy = (const float *)call->dy.data + t * r->state;
        s.dc_to = t > 0 ? dc : (float *)call->dstate_in[STATE_C].data;
        RM_LAUNCH_CELL(step_back, r->state, r->queue, r->state, r->hidden, s);
        rm_cell_back(r, s.gates, t > 0 ? dh : (float *)call->dstate_in[STATE_H].data, false);
        s.dh = dh, s.dc = dc;
    }
    rm_cuda_end(r->queue);
}

void rm_lstm_backward_cuda(const rm_call *call) {
    rm_cell_tile r = rm_cell_tile_of(call, COLUMNS, 0);
    steps_back(&r);
    rm_cell_gradients(&r, (const float *)call->aux);
}

/* lstm_projected.cu: the CUDA kernels of the op `lstm_projected` (lstm_projected.c): for each timestep a product, a
 * kernel and a product, launched one by one. Gates (rows,4H) in the order i f g o; c (rows,H) follows them in aux. */
#include <string.h>

#include "ops/cuda/channels.cuh"
#include "ops/recurrent/cell_math.h"

enum { X, W_IH, W_HH, B_IH, B_HH, W_HR, RESET };
enum { I, F, G, O, GATES };
enum { STATE_H, STATE_C };

static __device__ inline rm_lstm_gates get(const float *unit, int64_t hidden) {
    rm_lstm_gates a = {unit[I * hidden], unit[F * hidden], unit[G * hidden], unit[O * hidden]};
    return a;
}
static __device__ inline void put(float *unit, int64_t hidden, rm_lstm_gates a) {
    unit[I * hidden] = a.i, unit[F * hidden] = a.f, unit[G * hidden] = a.g, unit[O * hidden] = a.o;
}

/* ---- Kernels; n = B H, but where something else is said ----------------------------------------------------------- */

/* n = rows * 4H; biases may be NULL. */
static __global__ void begin_gates(int64_t n, int64_t wide, const float *b_ih, const float *b_hh, float *gates) {
    RM_EACH(i, n) {
        int64_t u = i - rm_row_of(i, wide) * wide;
        gates[i] = (b_ih ? b_ih[u] : 0) + (b_hh ? b_hh[u] : 0);
    }
}

/* reset (B) of a timestep; NULL: no row is reset. */
static __device__ inline bool begins(const float *reset, int64_t row) { return reset && reset[row] > 0; }

/* c may be the same array as c_before, which may be NULL: zeros. */
static __global__ void step(int64_t n, int64_t hidden, const float *reset, float *gates, const float *c_before,
                            float *c, float *m) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden);
        float *unit = gates + row * GATES * hidden + i - row * hidden;
        rm_lstm_gates a = rm_lstm_activate(get(unit, hidden));
        float next = rm_lstm_c(a, c_before && !begins(reset, row) ? c_before[i] : 0);
        put(unit, hidden, a);
        c[i] = next;
        m[i] = rm_lstm_h(a.o, next);
    }
}

static __global__ void step_back(int64_t n, int64_t hidden, const float *reset, float *gates, const float *c_before,
                                 const float *c, const float *dm, float *dc, float *m) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden);
        float *unit = gates + row * GATES * hidden + i - row * hidden;
        rm_lstm_gates a = get(unit, hidden);
        m[i] = rm_lstm_h(a.o, c[i]);
        bool anew = begins(reset, row);
        put(unit, hidden, rm_lstm_backward(a, c[i], c_before && !anew ? c_before[i] : 0, dm[i], &dc[i]));
        if (anew) dc[i] = 0;
    }
}

/* to = from, or zeros, + more; from and more may be NULL. */
static __global__ void sum(int64_t n, const float *from, const float *more, float *to) {
    RM_EACH(i, n) to[i] = (from ? from[i] : 0) + (more ? more[i] : 0);
}

/* to = from; rows that are reset become those of `anew`, or zeros. n = rows * width. from and anew may be NULL. */
static __global__ void restart(int64_t n, int64_t width, const float *reset, const float *from, const float *anew,
                               float *to) {
    RM_EACH(i, n) {
        const float *source = begins(reset, rm_row_of(i, width)) ? anew : from;
        to[i] = source ? source[i] : 0;
    }
}

/* ---- A tile -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const remat_call *call;
    const rm_cuda_queue *queue;
    int64_t tau, batch, rows, in, width, hidden, wide; /* T, B, T B, C, P, H, 4H */
    const float *x, *w_ih, *w_hh, *w_hr, *reset;       /* reset (rows), or NULL */
    float *gates, *c;                                  /* (rows,4H), (rows,H); c is NULL where nothing is kept */
    int64_t gates_step, c_step, y_step;                /* floats of a timestep */
} tile;

static const float *operand(const remat_call *call, int input) { return (const float *)call->x[input].data; }

static tile tile_of(const remat_call *call) {
    const remat_desc *x = &call->x[X].desc, *w_hr = &call->x[W_HR].desc;
    tile r;
    r.call = call, r.queue = (const rm_cuda_queue *)call->queue;
    r.tau = x->dim[0], r.batch = x->dim[1], r.in = x->dim[2], r.rows = r.tau * r.batch;
    r.width = w_hr->dim[0], r.hidden = w_hr->dim[1], r.wide = GATES * r.hidden;
    r.x = operand(call, X), r.w_ih = operand(call, W_IH), r.w_hh = operand(call, W_HH), r.w_hr = operand(call, W_HR);
    r.reset = operand(call, RESET);
    r.gates = (float *)(call->aux ? call->aux : call->scratch);
    r.c = call->aux ? r.gates + r.rows * r.wide : NULL;
    r.gates_step = r.batch * r.wide, r.c_step = r.batch * r.hidden, r.y_step = r.batch * r.width;
    return r;
}

typedef struct {
    const float *data;
    bool transposed;
} matrix;
static inline matrix plain(const float *data) { return matrix{data, false}; }
static inline matrix transposed(const float *data) { return matrix{data, true}; }

/* C (m,n) = A B, or += A B; all without gaps. */
static void multiply(const tile *r, int64_t m, int64_t n, int64_t k, matrix a, matrix b, bool add, float *c) {
    rm_cuda_product p;
    memset(&p, 0, sizeof p);
    p.a = a.data, p.b = b.data, p.c = c, p.m = m, p.n = n, p.k = k;
    p.lda = a.transposed ? m : k, p.ldb = b.transposed ? k : n, p.ldc = n;
    p.transpose_a = a.transposed, p.transpose_b = b.transposed, p.add = add;
    r->queue->multiply(r->queue, &p);
}

/* The resets (B) of timestep t; NULL: none. */
static const float *reset_at(const tile *r, int64_t t) { return r->reset ? r->reset + t * r->batch : NULL; }

/* h before timestep t, (B,P), or NULL: zeros. If rows may be reset, it is copied to `to`. */
static const float *h_before(const tile *r, int64_t t, float *to) {
    const float *none = NULL, *h = (const float *)(t ? r->call->y.data : r->call->state_in[STATE_H].data);
    if (t) h += (t - 1) * r->y_step;
    if (!r->reset) return h;
    RM_LAUNCH_EACH(restart, r->y_step, r->queue, r->y_step, r->width, reset_at(r, t), h, none, to);
    return to;
}

void rm_lstm_projected_forward_cuda(const remat_call *call) {
    const tile r = tile_of(call);
    float *y = (float *)call->y.data, *c_out = (float *)call->state_out[STATE_C].data;
    float *h_out = (float *)call->state_out[STATE_H].data;
    float *m = (float *)call->scratch + (call->aux ? 0 : r.rows * r.wide), *masked = m + r.c_step;
    const float *none = NULL;
    const float *c_before = (const float *)call->state_in[STATE_C].data; /* NULL: zeros */
    RM_LAUNCH_EACH(begin_gates, r.rows * r.wide, r.queue, r.rows * r.wide, r.wide, operand(call, B_IH),
                   operand(call, B_HH), r.gates);
    multiply(&r, r.rows, r.wide, r.in, plain(r.x), transposed(r.w_ih), true, r.gates);
    for (int64_t t = 0; t < r.tau; t++) {
        float *gates = r.gates + t * r.gates_step, *c = r.c ? r.c + t * r.c_step : c_out;
        const float *h = h_before(&r, t, masked);
        if (h) multiply(&r, r.batch, r.wide, r.width, plain(h), transposed(r.w_hh), true, gates);
        RM_LAUNCH_EACH(step, r.c_step, r.queue, r.c_step, r.hidden, reset_at(&r, t), gates, c_before, c, m);
        multiply(&r, r.batch, r.width, r.hidden, plain(m), transposed(r.w_hr), false, y + t * r.y_step);
        c_before = c;
    }
    const float *h = y + (r.tau - 1) * r.y_step;
    if (h_out) RM_LAUNCH_EACH(sum, r.y_step, r.queue, r.y_step, h, none, h_out);
    if (r.c && c_out) RM_LAUNCH_EACH(sum, r.c_step, r.queue, r.c_step, c_before, none, c_out);
}

/* Computes the other gradients from dgates, dh and m of the whole tile. masked (rows,P): scratch for h before each
 * timestep. */
static void add_gradients(const tile *r, const float *dh, const float *m, float *masked) {
    const remat_call *call = r->call;
    const float *h_in = h_before(r, 0, masked), *dgates = r->gates;
    const float *h = r->reset ? masked + r->y_step : (const float *)call->y.data;
    for (int64_t t = 1; r->reset && t < r->tau; t++) h_before(r, t, masked + t * r->y_step);
    float *dx = (float *)call->dx[X].data, *dw_ih = (float *)call->dx[W_IH].data;
    float *dw_hh = (float *)call->dx[W_HH].data, *dw_hr = (float *)call->dx[W_HR].data;
    if (dx) multiply(r, r->rows, r->in, r->wide, plain(dgates), plain(r->w_ih), false, dx);
    if (dw_ih) multiply(r, r->wide, r->in, r->rows, transposed(dgates), plain(r->x), true, dw_ih);
    if (dw_hr) multiply(r, r->width, r->hidden, r->rows, transposed(dh), plain(m), true, dw_hr);
    if (dw_hh && h_in) multiply(r, r->wide, r->width, r->batch, transposed(dgates), plain(h_in), true, dw_hh);
    if (dw_hh && r->tau > 1)
        multiply(r, r->wide, r->width, r->rows - r->batch, transposed(dgates + r->gates_step), plain(h), true, dw_hh);
    for (int i = B_IH; i <= B_HH; i++)
        if (call->dx[i].data)
            rm_launch_add_columns(r->queue, r->rows, r->wide, r->wide, dgates, (float *)call->dx[i].data);
}

/* Replaces the rows of dh (B,P) that are reset at timestep t by those of `anew`. */
static void restart_rows(const tile *r, int64_t t, const float *anew, float *dh) {
    if (!r->reset) return;
    RM_LAUNCH_EACH(restart, r->y_step, r->queue, r->y_step, r->width, reset_at(r, t), (const float *)dh, anew, dh);
}

void rm_lstm_projected_backward_cuda(const remat_call *call) {
    const tile r = tile_of(call);
    float *all_m = (float *)call->scratch, *dm = all_m + r.rows * r.hidden, *dc = dm + r.c_step;
    float *all_dh = dc + r.c_step, *dh_in = (float *)call->dstate_in[STATE_H].data;
    float *dc_in = (float *)call->dstate_in[STATE_C].data;
    const float *none = NULL, *dy = (const float *)call->dy.data;
    RM_LAUNCH_EACH(sum, r.c_step, r.queue, r.c_step, (const float *)call->dstate_out[STATE_C].data, none, dc);
    for (int64_t t = r.tau - 1; t >= 0; t--) {
        bool last = t + 1 == r.tau;
        float *gates = r.gates + t * r.gates_step, *dh = all_dh + t * r.y_step;
        const float *c = r.c + t * r.c_step;
        const float *c_before = t ? c - r.c_step : (const float *)call->state_in[STATE_C].data;
        RM_LAUNCH_EACH(sum, r.y_step, r.queue, r.y_step, dy + t * r.y_step,
                       last ? (const float *)call->dstate_out[STATE_H].data : none, dh);
        if (!last) {
            multiply(&r, r.batch, r.width, r.wide, plain(gates + r.gates_step), plain(r.w_hh), true, dh);
            restart_rows(&r, t + 1, dy + t * r.y_step, dh);
        }
        multiply(&r, r.batch, r.hidden, r.width, plain(dh), plain(r.w_hr), false, dm);
        RM_LAUNCH_EACH(step_back, r.c_step, r.queue, r.c_step, r.hidden, reset_at(&r, t), gates, c_before, c,
                       (const float *)dm, dc, all_m + t * r.c_step);
    }
    if (dh_in) {
        multiply(&r, r.batch, r.width, r.wide, plain(r.gates), plain(r.w_hh), false, dh_in);
        restart_rows(&r, 0, none, dh_in);
    }
    if (dc_in) RM_LAUNCH_EACH(sum, r.c_step, r.queue, r.c_step, (const float *)dc, none, dc_in);
    float *dreset = (float *)call->dx[RESET].data;
    if (dreset) RM_LAUNCH_EACH(sum, r.rows, r.queue, r.rows, none, none, dreset);
    add_gradients(&r, all_dh, all_m, all_dh + r.rows * r.width);
}

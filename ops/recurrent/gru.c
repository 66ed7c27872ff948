/* gru.c: the op `gru`: the readable definition of the cell, and its descriptor. Training runs the float kernels in
 * cpu/; recurrent.c has the code that the three cells share.
 *
 *   r = sigmoid(x W_ir^T + b_ir + h W_hr^T + b_hr)        q  = h W_hn^T + b_hn
 *   z = sigmoid(x W_iz^T + b_iz + h W_hz^T + b_hz)        h' = (1 - z) n + z h
 *   n = tanh   (x W_in^T + b_in + r q)                    (PyTorch's nn.GRU; rows of the weights: r, z, n)
 *
 * aux, from forward to backward: (tau,B,4H) in the order n r z q. Backward replaces these by the gradients of the
 * pre-activations: columns 0..3H (n r z) belong to the product with x, and H..4H (r z q) to the product with h. A
 * lean stage saves only y: rebuild recomputes a tile's aux from x and h.
 */
#include "ops/real.h"

#include "ops/recurrent/recurrent.h"

enum { R, Z, N, GATES };                  /* rows of the weights */
enum { AUX_N, AUX_R, AUX_Z, AUX_Q, AUX }; /* columns of aux      */
enum { STATE_H, STATES };

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    int64_t rows = x[RM_X].dim[0] * x[RM_X].dim[1], hidden = x[RM_W_HH].dim[1];
    return (uint64_t)(rows * AUX * hidden) * sizeof(real);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    double element_flops = pass == REMAT_BACKWARD ? 25 : pass == REMAT_REBUILD ? 72 : 75;
    *out = rm_recurrent_cost(RM_CELL_gru, x, pass, element_flops);
    out->moved_bytes += (double)aux_bytes(x, attr) + (pass == REMAT_REBUILD ? 1.0 : 2.0) * (double)rm_desc_bytes(y);
}

/* The four numbers of one unit in a row of aux. */
static rm_gru_gates get(const real *unit, int64_t hidden) {
    return (rm_gru_gates){unit[AUX_N * hidden], unit[AUX_R * hidden], unit[AUX_Z * hidden], unit[AUX_Q * hidden]};
}
static void put(real *unit, int64_t hidden, rm_gru_gates a) {
    unit[AUX_N * hidden] = a.n, unit[AUX_R * hidden] = a.r, unit[AUX_Z * hidden] = a.z, unit[AUX_Q * hidden] = a.q;
}

/* One timestep of one row; aux (4H) receives n r z q. */
static void define_gates(const rm_recurrent *rec, int64_t t, int64_t b, const real *h_prev, real *aux) {
    int64_t hidden = rec->hidden;
    for (int64_t j = 0; j < hidden; j++) {
        int64_t ur = R * hidden + j, uz = Z * hidden + j, un = N * hidden + j; /* rows of the weights */
        rm_gru_gates pre = {
            .r = rm_recurrent_input(rec, t, b, ur) + rm_recurrent_hidden(rec, h_prev, ur),
            .z = rm_recurrent_input(rec, t, b, uz) + rm_recurrent_hidden(rec, h_prev, uz),
            .n = rm_recurrent_input(rec, t, b, un),
            .q = rm_recurrent_hidden(rec, h_prev, un),
        };
        put(aux + j, hidden, rm_gru_activate(pre));
    }
}

static void define_step(const rm_recurrent *rec, int64_t t, int64_t b, const real *h_prev, real *aux, real *h) {
    define_gates(rec, t, b, h_prev, aux);
    for (int64_t j = 0; j < rec->hidden; j++) h[j] = rm_gru_h(get(aux + j, rec->hidden), h_prev ? h_prev[j] : 0);
}

static void define_forward(const remat_call *call) {
    rm_recurrent r = rm_recurrent_of(call);
    int64_t hidden = r.hidden, state = r.batch * hidden;
    real *y = call->y.data, *h_out = call->state_out[STATE_H].data;
    for (int64_t t = 0; t < r.tau; t++)
        for (int64_t b = 0; b < r.batch; b++) {
            int64_t row = t * r.batch + b;
            const real *h_prev = rm_recurrent_previous(&r, y, &call->state_in[STATE_H], t, b);
            real *aux = call->aux ? (real *)call->aux + row * AUX * hidden : call->scratch;
            define_step(&r, t, b, h_prev, aux, y + row * hidden);
        }
    for (int64_t i = 0; i < state; i++) h_out[i] = y[(r.tau - 1) * state + i];
}

static void define_rebuild(const remat_call *call) {
    rm_recurrent r = rm_recurrent_of(call);
    for (int64_t t = 0; t < r.tau; t++)
        for (int64_t b = 0; b < r.batch; b++) {
            const real *h_prev = rm_recurrent_previous(&r, call->y.data, &call->state_in[STATE_H], t, b);
            define_gates(&r, t, b, h_prev, (real *)call->aux + (t * r.batch + b) * AUX * r.hidden);
        }
}

/* Replaces one unit's n r z q by the gradients of their pre-activations; returns the gradient that reaches the previous
 * h directly. */
static real define_unit_backward(real dh, real h_prev, real *unit, int64_t hidden) {
    real direct;
    put(unit, hidden, rm_gru_backward(get(unit, hidden), h_prev, dh, &direct));
    return direct;
}

static void define_backward(const remat_call *call) {
    rm_recurrent r = rm_recurrent_of(call);
    int64_t hidden = r.hidden, state = r.batch * hidden;
    const real *dy = call->dy.data, *dh_out = call->dstate_out[STATE_H].data;
    real *aux = call->aux, *dh = call->scratch, *dh_in = call->dstate_in[STATE_H].data; /* dh (B,H) is carried backwards
                                                                                           in time */
    rm_dgates d = {aux, AUX * hidden, {AUX_R, AUX_Z, AUX_N}, {AUX_R, AUX_Z, AUX_Q}};
    for (int64_t i = 0; i < state; i++) dh[i] = dh_out ? dh_out[i] : 0;
    for (int64_t t = r.tau - 1; t >= 0; t--) {
        for (int64_t b = 0; b < r.batch; b++) {
            int64_t row = t * r.batch + b;
            const real *h_prev = rm_recurrent_previous(&r, call->y.data, &call->state_in[STATE_H], t, b);
            for (int64_t j = 0; j < hidden; j++) {
                real direct = define_unit_backward(dh[b * hidden + j] + dy[row * hidden + j], h_prev ? h_prev[j] : 0,
                                                   aux + row * AUX * hidden + j, hidden);
                dh[b * hidden + j] = rm_recurrent_begins(&r, t, b) ? 0 : direct;
            }
        }
        rm_recurrent_define_dh(&r, &d, t, dh);
    }
    for (int64_t i = 0; dh_in && i < state; i++) dh_in[i] = dh[i];
    rm_recurrent_define_gradients(call, &r, &d);
}

RM_RECURRENT_FUNCTIONS(gru)
#ifndef RM_REAL_DOUBLE
static void rebuild(const remat_call *call) { rm_recurrent_rebuild(rm_cell_kernels_get(), RM_CELL_gru, call); }
#endif

const remat_op RM_OP(gru) = {
    .struct_bytes = sizeof(remat_op),
    RM_RECURRENT_MEMBERS(gru),
    .doc = "y (T,B,H) = h of a GRU over x (T,B,C); w_ih (3H,C), w_hh (3H,H), b_ih (3H), b_hh (3H); gates r z n",
    .aux_bytes = aux_bytes,
    .define_rebuild = define_rebuild,
    .on[REMAT_ON_CPU].rebuild = RM_FAST(rebuild, define_rebuild),
    .on[REMAT_ON_CUDA].rebuild = RM_CUDA(gru, rebuild),
};

/* lstm.c: the op `lstm`: the readable definition of the cell, and its descriptor. Training runs the float kernels in
 * cpu/; recurrent.c has the code that the three cells share.
 *
 *   i = sigmoid(x W_ii^T + b_ii + h W_hi^T + b_hi)        c' = f c + i g
 *   f = sigmoid(x W_if^T + b_if + h W_hf^T + b_hf)        h' = o tanh(c')
 *   g = tanh   (x W_ig^T + b_ig + h W_hg^T + b_hg)
 *   o = sigmoid(x W_io^T + b_io + h W_ho^T + b_ho)        (PyTorch's nn.LSTM; rows of the weights: i, f, g, o)
 *
 * aux, from forward to backward: gates (tau,B,4H), activated, in the order i f g o; then c (tau,B,H). tanh(c) is
 * recomputed, so a timestep keeps 6H numbers with y; other implementations keep 7H or more. Backward replaces the
 * gates by their gradients. A lean stage saves only y: rebuild recomputes the gates of a tile from h, and c from
 * the gates.
 */
#include "ops/real.h"

#include "ops/recurrent/recurrent.h"

enum { I, F, G, O, GATES };
enum { STATE_H, STATE_C, STATES };

static uint64_t aux_bytes(const remat_desc *x, const void *attr) {
    (void)attr;
    int64_t rows = x[RM_X].dim[0] * x[RM_X].dim[1], hidden = x[RM_W_HH].dim[1];
    return (uint64_t)(rows * 5 * hidden) * sizeof(real);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    double element_flops = pass == REMAT_BACKWARD ? 50 : pass == REMAT_REBUILD ? 75 : 95;
    *out = rm_recurrent_cost(RM_CELL_lstm, x, pass, element_flops);
    out->moved_bytes += (double)aux_bytes(x, attr) + (pass == REMAT_REBUILD ? 1.0 : 2.0) * (double)rm_desc_bytes(y);
}

/* The four numbers of one unit in a row of gates. */
static rm_lstm_gates get(const real *unit, int64_t hidden) {
    return (rm_lstm_gates){unit[I * hidden], unit[F * hidden], unit[G * hidden], unit[O * hidden]};
}
static void put(real *unit, int64_t hidden, rm_lstm_gates a) {
    unit[I * hidden] = a.i, unit[F * hidden] = a.f, unit[G * hidden] = a.g, unit[O * hidden] = a.o;
}

/* One timestep of one row, up to c. `gates` (4H) receives the activated gates; c may be the same array as c_prev. */
static void define_gates_and_c(const rm_recurrent *r, int64_t t, int64_t b, const real *h_prev, const real *c_prev,
                               real *gates, real *c) {
    int64_t hidden = r->hidden;
    for (int64_t u = 0; u < GATES * hidden; u++)
        gates[u] = rm_recurrent_input(r, t, b, u) + rm_recurrent_hidden(r, h_prev, u);
    for (int64_t j = 0; j < hidden; j++) {
        rm_lstm_gates a = rm_lstm_activate(get(gates + j, hidden));
        put(gates + j, hidden, a);
        c[j] = rm_lstm_c(a, c_prev ? c_prev[j] : 0);
    }
}

static void define_step(const rm_recurrent *r, int64_t t, int64_t b, const real *h_prev, const real *c_prev,
                        real *gates, real *c, real *h) {
    define_gates_and_c(r, t, b, h_prev, c_prev, gates, c);
    for (int64_t j = 0; j < r->hidden; j++) h[j] = rm_lstm_h(gates[O * r->hidden + j], c[j]);
}

static void define_forward(const remat_call *call) {
    rm_recurrent r = rm_recurrent_of(call);
    int64_t hidden = r.hidden, state = r.batch * hidden;
    real *y = call->y.data, *h_out = call->state_out[STATE_H].data, *c_out = call->state_out[STATE_C].data;
    real *all_gates = call->aux, *all_c = all_gates ? all_gates + r.tau * GATES * state : NULL;
    for (int64_t t = 0; t < r.tau; t++)
        for (int64_t b = 0; b < r.batch; b++) {
            int64_t row = t * r.batch + b;
            const real *h_prev = rm_recurrent_previous(&r, y, &call->state_in[STATE_H], t, b);
            const real *c_prev = rm_recurrent_previous(&r, all_c, &call->state_in[STATE_C], t, b);
            if (all_c) {
                define_step(&r, t, b, h_prev, c_prev, all_gates + row * GATES * hidden, all_c + row * hidden,
                            y + row * hidden);
            } else { /* nothing is kept: c is in the outgoing state, the gates are in scratch */
                if (t > 0 && !rm_recurrent_begins(&r, t, b)) c_prev = c_out + b * hidden;
                define_step(&r, t, b, h_prev, c_prev, call->scratch, c_out + b * hidden, y + row * hidden);
            }
        }
    for (int64_t i = 0; i < state; i++) h_out[i] = y[(r.tau - 1) * state + i];
    for (int64_t i = 0; all_c && i < state; i++) c_out[i] = all_c[(r.tau - 1) * state + i];
}

/* Forward without its last line, because h is known. */
static void define_rebuild(const remat_call *call) {
    rm_recurrent r = rm_recurrent_of(call);
    real *gates = call->aux, *all_c = gates + r.tau * GATES * r.batch * r.hidden;
    for (int64_t t = 0; t < r.tau; t++)
        for (int64_t b = 0; b < r.batch; b++) {
            int64_t row = t * r.batch + b;
            const real *h_prev = rm_recurrent_previous(&r, call->y.data, &call->state_in[STATE_H], t, b);
            const real *c_prev = rm_recurrent_previous(&r, all_c, &call->state_in[STATE_C], t, b);
            define_gates_and_c(&r, t, b, h_prev, c_prev, gates + row * GATES * r.hidden, all_c + row * r.hidden);
        }
}

/* Replaces one unit's gates by the gradients of their pre-activations, and dc by the gradient of the previous c. */
static void define_unit_backward(real dh, real c, real c_prev, real *unit, int64_t hidden, real *dc) {
    put(unit, hidden, rm_lstm_backward(get(unit, hidden), c, c_prev, dh, dc));
}

static void define_backward(const remat_call *call) {
    rm_recurrent r = rm_recurrent_of(call);
    int64_t hidden = r.hidden, state = r.batch * hidden;
    const real *dy = call->dy.data, *dh_out = call->dstate_out[STATE_H].data, *dc_out = call->dstate_out[STATE_C].data;
    real *gates = call->aux, *all_c = gates + r.tau * GATES * state;
    real *dh = call->scratch, *dc = dh + state; /* (B,H) each: gradients of the states, carried backwards in time */
    rm_dgates d = {gates, GATES * hidden, {I, F, G, O}, {I, F, G, O}};
    for (int64_t i = 0; i < state; i++) dh[i] = dh_out ? dh_out[i] : 0;
    for (int64_t i = 0; i < state; i++) dc[i] = dc_out ? dc_out[i] : 0;
    for (int64_t t = r.tau - 1; t >= 0; t--) {
        for (int64_t b = 0; b < r.batch; b++) {
            int64_t row = t * r.batch + b;
            const real *c_prev = rm_recurrent_previous(&r, all_c, &call->state_in[STATE_C], t, b);
            for (int64_t j = 0; j < hidden; j++) {
                define_unit_backward(dh[b * hidden + j] + dy[row * hidden + j], all_c[row * hidden + j],
                                     c_prev ? c_prev[j] : 0, gates + row * GATES * hidden + j, hidden,
                                     &dc[b * hidden + j]);
                if (rm_recurrent_begins(&r, t, b)) dc[b * hidden + j] = 0;
            }
        }
        for (int64_t i = 0; i < state; i++) dh[i] = 0;
        rm_recurrent_define_dh(&r, &d, t, dh);
    }
    real *dh_in = call->dstate_in[STATE_H].data, *dc_in = call->dstate_in[STATE_C].data;
    for (int64_t i = 0; dh_in && i < state; i++) dh_in[i] = dh[i];
    for (int64_t i = 0; dc_in && i < state; i++) dc_in[i] = dc[i];
    rm_recurrent_define_gradients(call, &r, &d);
}

RM_RECURRENT_FUNCTIONS(lstm)
#ifndef RM_REAL_DOUBLE
static void rebuild(const remat_call *call) { rm_recurrent_rebuild(rm_cell_kernels_get(), RM_CELL_lstm, call); }
#endif

const remat_op RM_OP(lstm) = {
    .struct_bytes = sizeof(remat_op),
    RM_RECURRENT_MEMBERS(lstm),
    .doc = "y (T,B,H) = h of an LSTM over x (T,B,C); w_ih (4H,C), w_hh (4H,H), b_ih (4H), b_hh (4H); gates i f g o",
    .aux_bytes = aux_bytes,
    .define_rebuild = define_rebuild,
    .on[REMAT_ON_CPU].rebuild = RM_FAST(rebuild, define_rebuild),
    .on[REMAT_ON_CUDA].rebuild = RM_CUDA(lstm, rebuild),
};

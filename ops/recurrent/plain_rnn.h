/* plain_rnn.h: code shared by rnn_tanh and rnn_relu: h' = f(x W_ih^T + b_ih + h W_hh^T + b_hh)   (PyTorch's nn.RNN). An op's
 * file gives f and names the op.
 *
 * No aux: backward needs only y, so there is nothing to rebuild. The gradients of the pre-activations (tau,B,H) are
 * scratch.
 */
#ifndef RM_PLAIN_RNN_H
#define RM_PLAIN_RNN_H

#include "ops/real.h"

#include "ops/recurrent/recurrent.h"

enum { GATES = 1 };
enum { STATE_H, STATES };

/* flops: of f and the sums before it, or of its derivative. */
static inline remat_cost rm_plain_cost(rm_cell cell, const remat_desc *x, const remat_desc *y, remat_pass pass,
                                       double flops) {
    remat_cost cost = rm_recurrent_cost(cell, x, pass, flops);
    cost.moved_bytes += 2.0 * (double)rm_desc_bytes(y);
    return cost;
}

static inline void rm_plain_define_forward(const remat_call *call, real (*f)(real)) {
    rm_recurrent r = rm_recurrent_of(call);
    int64_t hidden = r.hidden, state = r.batch * hidden;
    real *y = call->y.data, *h_out = call->state_out[STATE_H].data;
    for (int64_t t = 0; t < r.tau; t++)
        for (int64_t b = 0; b < r.batch; b++) {
            const real *h_prev = rm_recurrent_previous(&r, y, &call->state_in[STATE_H], t, b);
            for (int64_t j = 0; j < hidden; j++)
                y[(t * r.batch + b) * hidden + j] =
                    f(rm_recurrent_input(&r, t, b, j) + rm_recurrent_hidden(&r, h_prev, j));
        }
    for (int64_t i = 0; i < state; i++) h_out[i] = y[(r.tau - 1) * state + i];
}

/* f_backward(dh, h): the gradient of the argument of f, from that of h = f(..). */
static inline void rm_plain_define_backward(const remat_call *call, real (*f_backward)(real, real)) {
    rm_recurrent r = rm_recurrent_of(call);
    int64_t hidden = r.hidden, state = r.batch * hidden;
    const real *dy = call->dy.data, *y = call->y.data, *dh_out = call->dstate_out[STATE_H].data;
    real *dh = call->scratch, *dgates = dh + state, *dh_in = call->dstate_in[STATE_H].data;
    rm_dgates d = {dgates, hidden, {0}, {0}};
    for (int64_t i = 0; i < state; i++) dh[i] = dh_out ? dh_out[i] : 0;
    for (int64_t t = r.tau - 1; t >= 0; t--) {
        for (int64_t i = 0; i < state; i++) {
            real h = y[t * state + i];
            dgates[t * state + i] = f_backward(dh[i] + dy[t * state + i], h);
            dh[i] = 0;
        }
        rm_recurrent_define_dh(&r, &d, t, dh);
    }
    for (int64_t i = 0; dh_in && i < state; i++) dh_in[i] = dh[i];
    rm_recurrent_define_gradients(call, &r, &d);
}

/* Defines the functions and the descriptor of `op`, whose f is rm_NAME of activation.h. */
#define RM_PLAIN_RNN(op, activation, flops_forward, flops_backward)                                                    \
    static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {   \
        (void)attr;                                                                                                    \
        *out = rm_plain_cost(RM_CELL_##op, x, y, pass, pass == REMAT_BACKWARD ? flops_backward : flops_forward);       \
    }                                                                                                                  \
    static void define_forward(const remat_call *call) { rm_plain_define_forward(call, rm_##activation); }             \
    static void define_backward(const remat_call *call) { rm_plain_define_backward(call, rm_##activation##_backward); } \
    RM_RECURRENT_FUNCTIONS(op)                                                                                         \
    const remat_op RM_OP(op) = {                                                                                       \
        .struct_bytes = sizeof(remat_op),                                                                              \
        RM_RECURRENT_MEMBERS(op),                                                                                      \
        .doc = "y (T,B,H) = h of a plain RNN over x (T,B,C); w_ih (H,C), w_hh (H,H), b_ih (H), b_hh (H); "             \
               "h = " #activation "(..)",                                                                              \
    };

#endif

/* minimal.h: code shared by min_gru and min_lstm: shapes, costs, definitions, and calls of the fast kernels in
 * cpu/minimal.c. An op's file defines its gates. `real` is the precision of the file that includes this (real.h).
 *
 *   input    x (tau,B,G*H), made by a linear layer: [candidate | gate] for min_gru, [candidate | f | i] for min_lstm, G = 2, 3
 *            reset (tau,B) optional: where it is above 0, h before that timestep is 0. It has no gradient
 *   output   y (tau,B,H), the sequence of h; state h (B,H)
 *
 * No aux: backward recomputes the gates from x.
 */
#ifndef RM_MINIMAL_H
#define RM_MINIMAL_H

#include "ops/real.h"

#include "ops/recurrent/minimal_math.h"
#include "ops/recurrent/recurrent.h"

enum { RM_MIN_X, RM_MIN_RESET, RM_MIN_INPUTS };

static inline remat_status rm_min_infer(const char *op, int64_t parts, const char *names, const remat_desc *x,
                                        remat_desc *y, remat_desc *state) {
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real(op, "x", x));
    REQUIRE(x->rank == 3 && x->dim[2] % parts == 0, INVALID, "%s: x is %s; it must be (T,B,%lldH): %s side by side", op,
            rm_desc_text(x, text), (long long)parts, names);
    if (x[RM_MIN_RESET].rank >= 0) TRY(rm_want_reset(op, &x[RM_MIN_RESET], x));
    *y = *x;
    y->dim[2] /= parts;
    *state = rm_desc_make(RM_REAL, 2, y->dim + 1);
    return REMAT_OK;
}

/* element_flops: those of the gates; an exp counts as in activations.def. Backward's scratch is dh (B,H). */
static inline remat_cost rm_min_cost(const remat_desc *x, const remat_desc *y, remat_pass pass, double element_flops) {
    remat_cost cost = rm_cost_streaming(y, element_flops + 3, 1);
    double x_bytes = (double)rm_desc_bytes(x), y_bytes = (double)rm_desc_bytes(y);
    cost.moved_bytes = pass == REMAT_BACKWARD ? 2 * x_bytes + 2 * y_bytes : x_bytes + y_bytes;
    if (pass == REMAT_BACKWARD) {
        cost.flops += 12 * (double)rm_desc_count(y);
        cost.scratch_bytes = (uint64_t)(y->dim[1] * y->dim[2]) * sizeof(real);
    }
    return cost;
}

/* The gates of unit j of the row that starts at x. */
typedef rm_min_gates rm_min_gates_at(const real *x, int64_t hidden, int64_t j);

static inline bool rm_min_begins(const remat_call *call, int64_t t, int64_t i) {
    const real *reset = call->x[RM_MIN_RESET].data;
    return reset && reset[t * call->y.desc.dim[1] + i / call->y.desc.dim[2]] > 0;
}

static inline real rm_min_previous(const remat_call *call, int64_t t, int64_t state, int64_t i) {
    const real *y = call->y.data, *h_in = call->state_in[0].data;
    if (rm_min_begins(call, t, i)) return 0;
    return t ? y[(t - 1) * state + i] : h_in ? h_in[i] : 0;
}

static inline void rm_min_define_forward(const remat_call *call, int64_t parts, rm_min_gates_at *gates_at) {
    int64_t tau = call->y.desc.dim[0], hidden = call->y.desc.dim[2], state = call->y.desc.dim[1] * hidden;
    const real *x = call->x[0].data;
    real *y = call->y.data, *h_out = call->state_out[0].data;
    for (int64_t t = 0; t < tau; t++)
        for (int64_t i = 0; i < state; i++) {
            rm_min_gates a = gates_at(x + (t * state + i / hidden * hidden) * parts, hidden, i % hidden);
            y[t * state + i] = a.keep * rm_min_previous(call, t, state, i) + a.take * a.candidate;
        }
    for (int64_t i = 0; i < state; i++) h_out[i] = y[(tau - 1) * state + i];
}

static inline void rm_min_clear_reset(const remat_call *call) {
    real *dreset = call->dx[RM_MIN_RESET].data;
    for (int64_t i = 0; dreset && i < call->y.desc.dim[0] * call->y.desc.dim[1]; i++) dreset[i] = 0;
}

static inline void rm_min_define_backward(const remat_call *call, int64_t parts, rm_min_gates_at *gates_at) {
    int64_t tau = call->y.desc.dim[0], hidden = call->y.desc.dim[2], state = call->y.desc.dim[1] * hidden;
    const real *x = call->x[0].data, *dy = call->dy.data, *dh_out = call->dstate_out[0].data;
    real *dx = call->dx[0].data, *dh = call->scratch, *dh_in = call->dstate_in[0].data;
    for (int64_t i = 0; i < state; i++) dh[i] = dh_out ? dh_out[i] : 0;
    for (int64_t t = tau - 1; t >= 0; t--)
        for (int64_t i = 0; i < state; i++) {
            int64_t row = (t * state + i / hidden * hidden) * parts, j = i % hidden;
            rm_min_gates a = gates_at(x + row, hidden, j);
            real d = dh[i] + dy[t * state + i];
            real dtake = d * (a.candidate - rm_min_previous(call, t, state, i)); /* h' = h + take (candidate - h) */
            if (dx) dx[row + j] = d * a.take * a.slope;
            for (int64_t k = 1; dx && k < parts; k++) dx[row + k * hidden + j] = dtake * a.turn[k - 1];
            dh[i] = rm_min_begins(call, t, i) ? 0 : d * a.keep;
        }
    rm_min_clear_reset(call);
    for (int64_t i = 0; dh_in && i < state; i++) dh_in[i] = dh[i];
}

#ifndef RM_REAL_DOUBLE
void rm_min_forward(rm_min_cell cell, const remat_call *call); /* call.c */
void rm_min_backward(rm_min_cell cell, const remat_call *call);
#endif

/* Samples, for G parts. */
#define RM_MIN_SAMPLES(G)                                                                                              \
    {.name = "a few", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 3, (G)*7), RM_ABSENT}},                            \
        {.name = "one unit", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 3, 1, (G)), RM_ABSENT}},                       \
        {.name = "resets", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 6, 3, (G)*35), RM_SHAPE2(RM_REAL, 6, 3)}},       \
        {.name = "whole vectors and a rest", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 4, 2, (G)*35), RM_ABSENT}}, {  \
        .name = "large enough for threads", .sequence = true, .x = { RM_SHAPE3(RM_REAL, 4, 25, (G)*170), RM_ABSENT }   \
    }

#endif

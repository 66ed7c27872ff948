/* linear_scan.c: the op `linear_scan`: a linear recurrence, element by element:
 *
 *   h' = a h + b,   or h' = b where reset[t,b] > 0                     y = h
 *
 * Computes one timestep after the other, so the order does not depend on the tile. The rounding of an associative
 * scan would depend on where time is cut, and on a CPU it gains nothing if there are enough columns to fill
 * vectors. Each thread has its own columns.
 */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

enum { A, B, RESET, INPUTS };
enum { SPAN = 64 /* columns that a thread computes together through the tile */ };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    TRY(rm_want_real("linear_scan", "a", &x[A]));
    TRY(rm_want_rank("linear_scan", "a", &x[A], 2, REMAT_MAX_RANK));
    TRY(rm_want_same("linear_scan", "a", &x[A], "b", &x[B]));
    if (x[RESET].rank >= 0) TRY(rm_want_reset("linear_scan", &x[RESET], &x[A]));
    *y = x[A];
    *state = rm_desc_make(RM_REAL, x[A].rank - 1, x[A].dim + 1);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = rm_cost_streaming(y, 2, 3);
    if (pass == REMAT_BACKWARD) *out = rm_cost_streaming(y, 3, 5);
    if (pass == REMAT_BACKWARD) out->scratch_bytes = rm_desc_bytes(y) / (uint64_t)y->dim[0];
}

/* A tile (tau, batch, width), and the columns [from, to) of (batch, width) that a loop computes. */
typedef struct {
    int64_t tau, columns, width, batch;
    const real *reset;
} shape;

static shape shape_of(const remat_call *call) {
    const remat_desc *y = &call->y.desc;
    int64_t columns = rm_desc_count(y) / y->dim[0];
    return (shape){y->dim[0], columns, columns / y->dim[1], y->dim[1], call->x[RESET].data};
}

static bool is_reset(const shape *s, int64_t t, int64_t column) {
    return s->reset && s->reset[t * s->batch + column / s->width] > 0;
}

/* Ends the range at the end of a row of the batch, so that a loop has a single reset. */
static int64_t run_end(const shape *s, int64_t from, int64_t to) {
    int64_t row_end = (from / s->width + 1) * s->width;
    return s->reset && row_end < to ? row_end : to;
}

static void forward_span(const remat_call *call, const shape *s, int64_t from, int64_t to) {
    const real *a = call->x[A].data, *b = call->x[B].data, *h = call->state_in[0].data;
    real *y = call->y.data, *h_out = call->state_out[0].data;
    for (int64_t t = 0; t < s->tau; t++, h = y, a += s->columns, b += s->columns, y += s->columns)
        for (int64_t i = from, end; i < to; i = end) {
            end = run_end(s, i, to);
            bool cut = !h || is_reset(s, t, i);
            for (int64_t k = i; k < end && cut; k++) y[k] = b[k];
            for (int64_t k = i; k < end && !cut; k++) y[k] = a[k] * h[k] + b[k];
        }
    for (int64_t i = from; i < to; i++) h_out[i] = h[i];
}

static void forward(const remat_call *call) {
    shape s = shape_of(call);
    RM_PARALLEL_FOR(call->threads, s.tau * s.columns > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t from = 0; from < s.columns; from += SPAN)
                        forward_span(call, &s, from, from + SPAN < s.columns ? from + SPAN : s.columns););
}

/* h' = a h + b:  db = dh', da = dh' h, dh = dh' a. `dh` is scratch; each of the outputs may be NULL. */
static void backward_span(const remat_call *call, const shape *s, int64_t from, int64_t to) {
    const real *a = call->x[A].data, *y = call->y.data, *dy = call->dy.data, *h_in = call->state_in[0].data;
    const real *dh_out = call->dstate_out[0].data;
    real *dh = call->scratch, *da = call->dx[A].data, *db = call->dx[B].data, *dh_in = call->dstate_in[0].data;
    for (int64_t i = from; i < to; i++) dh[i] = dh_out ? dh_out[i] : 0;
    for (int64_t t = s->tau - 1; t >= 0; t--) {
        const real *h = t ? y + (t - 1) * s->columns : h_in;
        int64_t at = t * s->columns;
        for (int64_t i = from; i < to; i++) dh[i] += dy[at + i];
        for (int64_t i = from; db && i < to; i++) db[at + i] = dh[i];
        for (int64_t i = from, end; i < to; i = end) {
            end = run_end(s, i, to);
            bool reset = is_reset(s, t, i);
            for (int64_t k = i; da && k < end; k++) da[at + k] = reset || !h ? 0 : dh[k] * h[k];
            for (int64_t k = i; k < end; k++) dh[k] = reset ? 0 : dh[k] * a[at + k];
        }
    }
    for (int64_t i = from; dh_in && i < to; i++) dh_in[i] = dh[i];
}

static void backward(const remat_call *call) {
    shape s = shape_of(call);
    real *dreset = call->dx[RESET].data;
    if (dreset) memset(dreset, 0, (size_t)(s.tau * s.batch) * sizeof *dreset);
    RM_PARALLEL_FOR(call->threads, s.tau * s.columns > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t from = 0; from < s.columns; from += SPAN)
                        backward_span(call, &s, from, from + SPAN < s.columns ? from + SPAN : s.columns););
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE3(RM_REAL, 5, 2, 7), RM_ABSENT}},
    {.name = "resets",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 6, 3, 5), RM_SHAPE3(RM_REAL, 6, 3, 5), RM_SHAPE2(RM_REAL, 6, 3)}},
    {.name = "no width",
     .sequence = true,
     .x = {RM_SHAPE2(RM_REAL, 4, 3), RM_SHAPE2(RM_REAL, 4, 3), RM_SHAPE2(RM_REAL, 4, 3)}},
    {.name = "large enough for threads",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 4, 9, 480), RM_SHAPE3(RM_REAL, 4, 9, 480), RM_SHAPE2(RM_REAL, 4, 9)}},
};

const remat_op RM_OP(linear_scan) = {
    .struct_bytes = sizeof(remat_op),
    .name = "linear_scan",
    .doc = "y[t] = a[t] y[t-1] + b[t], element by element; where reset[t] (T,B) is above 0, y[t] = b[t]",
    .n_in = INPUTS,
    .n_state = 1,
    .optional = 1u << RESET,
    .resets = 1u << RESET,
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = 1u << A | 1u << RESET, .out = true, .state = true},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(linear_scan)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

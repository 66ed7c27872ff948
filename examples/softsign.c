/* softsign.c: an external op: a softsign with a learned slope per feature.
 *
 *     u = x slope        y = u / (1 + |u|)        dy/du = 1 / (1 + |u|)^2        x, y (..,C), slope (C)
 *
 * The descriptor is at the end of this file; remat_op.h documents its members. `real` is float for sessions
 * and double in softsign_f64.c, for remat_op_check.
 */
#include <math.h>

#include "softsign.h"

#ifdef IN_DOUBLE
typedef double real;
#define REAL REMAT_F64
#define NAME(op) op##_f64
#else
typedef float real;
#define REAL REMAT_F32
#define NAME(op) op
#endif

enum { X, SLOPE, INPUTS };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    char text[REMAT_DESC_TEXT];
    (void)attr, (void)state;
    if (x[X].dtype != REAL || x[X].rank < 1)
        return remat_refuse("softsign: x is %s; it must be rows of real numbers", remat_desc_text(&x[X], text));
    int64_t width = x[X].dim[x[X].rank - 1];
    if (x[SLOPE].dtype != REAL || x[SLOPE].rank != 1 || x[SLOPE].dim[0] != width)
        return remat_refuse(
            "softsign: slope is %s; it must be a vector of %lld real numbers, one for each feature of x",
            remat_desc_text(&x[SLOPE], text), (long long)width);
    *y = x[X];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    double flops = pass == REMAT_BACKWARD ? 9 : 4, arrays = pass == REMAT_BACKWARD ? 3 : 2; /* x, dy, dx; x, y */
    out->flops = flops * (double)remat_desc_count(y);
    out->moved_bytes = arrays * (double)remat_desc_bytes(y);
}

static void forward(const remat_call *call) {
    const real *x = call->x[X].data, *slope = call->x[SLOPE].data;
    real *y = call->y.data;
    int64_t n = remat_desc_count(&call->y.desc), width = remat_desc_count(&call->x[SLOPE].desc);
    for (int64_t i = 0; i < n; i++) {
        real u = x[i] * slope[i % width];
        y[i] = u / (1 + (real)fabs(u));
    }
}

/* dx is overwritten and dslope is added to, each if wanted. The mistake: one factor of the square is missing. */
static void differentiate(const remat_call *call, bool mistake) {
    const real *x = call->x[X].data, *slope = call->x[SLOPE].data, *dy = call->dy.data;
    real *dx = call->dx[X].data, *dslope = call->dx[SLOPE].data;
    int64_t n = remat_desc_count(&call->dy.desc), width = remat_desc_count(&call->x[SLOPE].desc);
    for (int64_t i = 0; i < n; i++) {
        real below = 1 + (real)fabs(x[i] * slope[i % width]);
        real du = dy[i] / (mistake ? below : below * below);
        if (dx) dx[i] = du * slope[i % width];
        if (dslope) dslope[i % width] += du * x[i];
    }
}
static void backward(const remat_call *call) { differentiate(call, false); }
static void broken_backward(const remat_call *call) { differentiate(call, true); }

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {{REAL, 3, {5, 2, 7, 1}}, {REAL, 1, {7, 1, 1, 1}}}},
    {.name = "whole", .x = {{REAL, 2, {3, 4, 1, 1}}, {REAL, 1, {4, 1, 1, 1}}}},
};

/* The slope is shared by all timesteps (`shared`). Backward reads both inputs (`saves`), so neither y nor an aux is
 * saved. Forward costs about as much as reading y (`cheap`), so a lean stage recomputes it. */
#define DESCRIPTOR(its_backward)                                                                                       \
    {                                                                                                                  \
        .struct_bytes = sizeof(remat_op), .name = "softsign",                                                          \
        .doc = "y = u / (1 + |u|), u = x slope; x (..,C), slope (C)", .n_in = INPUTS, .shared = 1u << SLOPE,           \
        .time = REMAT_TIME_POINTWISE, .saves = {.in = 1u << X | 1u << SLOPE}, .infer = infer, .cost = cost,            \
        .on[REMAT_ON_CPU] = {.forward = forward, .backward = its_backward}, .cheap = true, .samples = samples,         \
        .n_samples = sizeof samples / sizeof *samples                                                                  \
    }
const remat_op NAME(softsign) = DESCRIPTOR(backward);
const remat_op NAME(broken_softsign) = DESCRIPTOR(broken_backward);

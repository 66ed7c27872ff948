/* softmax.h: code shared by softmax.c and log_softmax.c: a loop over rows along the last axis. Such a file includes
 * this, defines make_row and slope_row, and ends in its descriptor. */
#include "ops/real.h"

#include "ops/math/row.h"
#include "ops/op.h"
#include "ops/shape.h"

static void make_row(const real *x, int64_t c, real *y);
static void slope_row(const real *y, const real *dy, int64_t c, real *dx);

static remat_status infer_rows(const char *op, const remat_desc *x, remat_desc *y) {
    TRY(rm_want_real(op, "x", x));
    TRY(rm_want_rank(op, "x", x, 1, REMAT_MAX_RANK));
    *y = *x;
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr;
    *out = pass == REMAT_BACKWARD ? rm_cost_streaming(y, 5, 3) : rm_cost_streaming(y, 20, 2);
}

static void forward(const remat_call *call) {
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t rows = rm_desc_rows(&call->y.desc), c = rm_desc_last(&call->y.desc);
    RM_PARALLEL_FOR(call->threads, rows * c > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t r = 0; r < rows; r++) make_row(x + r * c, c, y + r * c););
}

static void backward(const remat_call *call) {
    const real *y = call->y.data, *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t rows = rm_desc_rows(&call->dy.desc), c = rm_desc_last(&call->dy.desc);
    if (!dx) return;
    RM_PARALLEL_FOR(call->threads, rows * c > RM_PARALLEL_MIN_HEAVY,
                    for (int64_t r = 0; r < rows; r++) slope_row(y + r * c, dy + r * c, c, dx + r * c););
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "one row", .x = {RM_SHAPE1(RM_REAL, 9)}},
    {.name = "one class", .x = {RM_SHAPE2(RM_REAL, 3, 1)}},
    {.name = "large enough for threads", .x = {RM_SHAPE2(RM_REAL, 270, 71)}},
};

/* The descriptor except doc. */
#define RM_SOFTMAX_OP(op)                                                                                              \
    .struct_bytes = sizeof(remat_op), .name = #op, .n_in = 1, .time = REMAT_TIME_POINTWISE, .saves = {.out = true},    \
    .infer = infer, .cost = cost, .define_forward = forward, .define_backward = backward,                              \
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(op)}, .samples = samples,                       \
    .n_samples = sizeof samples / sizeof *samples

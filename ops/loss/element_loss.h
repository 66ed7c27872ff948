/* element_loss.h: code shared by mse.c, mae.c, huber.c and bce_with_logits.c: the mean over all elements and timesteps
 * of a function of x and target. Such a file defines VALUE, SLOPE and TARGET_SLOPE (element_loss_math.h), includes
 * this, and ends in its descriptor. Both x and target may need a gradient.
 *
 * Rows along the last axis may be padding: these do not count, and their values are not read. The mean is then over the
 * other rows of all timesteps; target_weight counts them. If no row counts, the loss is 0. */
#include "ops/real.h"

#include "ops/loss/element_loss_math.h"
#include "ops/op.h"
#include "ops/shape.h"

#include <string.h>

enum { X, TARGET, PADDING, TOTAL };

static double delta_of(const void *attr) { return attr ? ((const rm_huber_attr *)attr)->delta : 1; }

static remat_status infer_padding(const char *op, const remat_desc *x) {
    char x_text[REMAT_DESC_TEXT], text[REMAT_DESC_TEXT];
    TRY(rm_want_integer(op, "padding", &x[PADDING]));
    bool fits = x[PADDING].rank == x[X].rank - 1;
    for (int i = 0; i < x[PADDING].rank; i++) fits = fits && x[PADDING].dim[i] == x[X].dim[i];
    REQUIRE(fits, INVALID, "%s: x is %s and padding is %s; padding must have one integer for each row of x", op,
            rm_desc_text(&x[X], x_text), rm_desc_text(&x[PADDING], text));
    return REMAT_OK;
}

static remat_status infer_elements(const char *op, const remat_desc *x, const void *attr, remat_desc *y) {
    TRY(rm_want_real(op, "x", &x[X]));
    TRY(rm_want_same(op, "x", &x[X], "target", &x[TARGET]));
    REQUIRE(delta_of(attr) > 0, INVALID, "%s: delta is %g; it must be above 0", op, delta_of(attr));
    if (x[PADDING].rank >= 0) TRY(infer_padding(op, x));
    REQUIRE(x[TOTAL].rank == (x[PADDING].rank < 0 ? -1 : 0), INVALID,
            "%s: total and padding go together; total must be a scalar, the number of rows that are not padding", op);
    *y = (remat_desc)RM_SCALAR(RM_REAL);
    return REMAT_OK;
}

static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)x, (void)attr;
    return input == PADDING ? 2 : 0;
}

/* Divides by the number of elements of the whole sequence that count. */
static double divided(const remat_call *call, double sum) {
    const remat_desc *shape = &call->x[X].desc;
    const real *rows = call->x[TOTAL].data;
    if (!rows) return sum / rm_call_total(call, shape, rm_desc_count(shape));
    return *rows != 0 ? sum / (*rows * (double)rm_desc_last(shape)) : 0;
}

/* The sums of blocks of elements are added in order, so no bits depend on the number of threads. */
enum { BLOCK = 4096 };
static int64_t count_blocks(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)y, (void)attr;
    *out = rm_cost_streaming(&x[X], 3, pass == REMAT_BACKWARD ? 4 : 2);
    if (pass == REMAT_FORWARD) out->scratch_bytes = (uint64_t)count_blocks(rm_desc_count(&x[X])) * sizeof(double);
}

/* The sum over elements from .. to-1, which all count. */
static double stretch_sum(const remat_call *call, int64_t from, int64_t to) {
    const real *x = call->x[X].data, *target = call->x[TARGET].data;
    double sum = 0, delta = delta_of(call->attr);
    (void)delta;
    for (int64_t i = from; i < to; i++) sum += VALUE((double)x[i], (double)target[i], delta);
    return sum;
}

static bool counts(const remat_call *call, int64_t i) {
    const int32_t *padding = call->x[PADDING].data; /* (rows) */
    return !padding || !padding[i / rm_desc_last(&call->x[X].desc)];
}

/* The end, at most `to`, of the elements that count like element i: the end of its row, or `to` without padding. */
static int64_t stretch_end(const remat_call *call, int64_t i, int64_t to) {
    int64_t v = rm_desc_last(&call->x[X].desc), end = call->x[PADDING].data ? (i / v + 1) * v : to;
    return end < to ? end : to;
}

/* The sum of block b of n elements. */
static double block_sum(const remat_call *call, int64_t b, int64_t n) {
    int64_t to = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
    double sum = 0;
    for (int64_t i = b * BLOCK, end; i < to; i = end) {
        end = stretch_end(call, i, to);
        if (counts(call, i)) sum += stretch_sum(call, i, end);
    }
    return sum;
}

static double sum_of(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[X].desc);
    double sum = 0;
    for (int64_t b = 0; b < count_blocks(n); b++) sum += block_sum(call, b, n);
    return sum;
}

static void define_forward(const remat_call *call) { *(real *)call->y.data = (real)divided(call, sum_of(call)); }

static void forward(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[X].desc), blocks = count_blocks(n);
    double *partial = call->scratch, sum = 0; /* (blocks) */
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t b = 0; b < blocks; b++) partial[b] = block_sum(call, b, n););
    for (int64_t b = 0; b < blocks; b++) sum += partial[b];
    *(real *)call->y.data = (real)divided(call, sum);
}

/* Rarely needed. */
static void total_gradient(const remat_call *call) {
    real *dtotal = call->dx[TOTAL].data;
    const real *rows = call->x[TOTAL].data;
    if (dtotal && *rows != 0) *dtotal -= (real)(divided(call, sum_of(call) * *(const real *)call->dy.data) / *rows);
}

/* The gradients of elements from .. to-1, which all count. */
static void stretch_slopes(const remat_call *call, int64_t from, int64_t to, real factor) {
    const real *x = call->x[X].data, *target = call->x[TARGET].data;
    real *dx = call->dx[X].data, *dtarget = call->dx[TARGET].data, delta = (real)delta_of(call->attr);
    (void)delta;
    for (int64_t i = from; i < to; i++) { /* y = sum over i that count of value(x[i], target[i]) / their number */
        if (dx) dx[i] = SLOPE(x[i], target[i], delta) * factor;
        if (dtarget) dtarget[i] = TARGET_SLOPE(x[i], target[i], delta) * factor;
    }
}

static void clear(const remat_call *call, int64_t from, int64_t to) {
    real *dx = call->dx[X].data, *dtarget = call->dx[TARGET].data;
    if (dx) memset(dx + from, 0, (size_t)(to - from) * sizeof *dx);
    if (dtarget) memset(dtarget + from, 0, (size_t)(to - from) * sizeof *dtarget);
}

static void block_slopes(const remat_call *call, int64_t b, int64_t n, real factor) {
    int64_t to = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
    for (int64_t i = b * BLOCK, end; i < to; i = end) {
        end = stretch_end(call, i, to);
        if (counts(call, i))
            stretch_slopes(call, i, end, factor);
        else
            clear(call, i, end);
    }
}

static void backward(const remat_call *call) {
    int64_t n = rm_desc_count(&call->x[X].desc), blocks = count_blocks(n);
    real factor = (real)divided(call, *(const real *)call->dy.data);
    total_gradient(call);
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t b = 0; b < blocks; b++) block_slopes(call, b, n, factor););
}

#define WITHOUT_PADDING RM_ABSENT, RM_ABSENT
static const remat_sample samples[] = {
    {.name = "sequence",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 3), RM_SHAPE3(RM_REAL, 5, 2, 3), WITHOUT_PADDING}},
    {.name = "sequence of scalars",
     .sequence = true,
     .x = {RM_SHAPE2(RM_REAL, 6, 3), RM_SHAPE2(RM_REAL, 6, 3), WITHOUT_PADDING}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 4, 5), RM_SHAPE2(RM_REAL, 4, 5), WITHOUT_PADDING}},
    {.name = "several blocks", .x = {RM_SHAPE2(RM_REAL, 3, 3000), RM_SHAPE2(RM_REAL, 3, 3000), WITHOUT_PADDING}},
    {.name = "padded",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 4, 3), RM_SHAPE3(RM_REAL, 5, 4, 3), RM_SHAPE2(REMAT_I32, 5, 4), RM_SCALAR(RM_REAL)}},
    {.name = "padded, several blocks",
     .x = {RM_SHAPE2(RM_REAL, 7, 1500), RM_SHAPE2(RM_REAL, 7, 1500), RM_SHAPE1(REMAT_I32, 7), RM_SCALAR(RM_REAL)}},
};

/* The descriptor except doc and attributes. */
#define RM_ELEMENT_LOSS(op)                                                                                            \
    .struct_bytes = sizeof(remat_op), .name = #op, .n_in = 4, .optional = 1u << PADDING | 1u << TOTAL,                 \
    .shared = 1u << TOTAL, .discrete = 1u << PADDING, .time = REMAT_TIME_SUM, .denominator = 1u << TOTAL,              \
    .saves = {.in = 1u << X | 1u << TARGET | 1u << PADDING | 1u << TOTAL}, .infer = infer, .cost = cost,               \
    .bound = bound, .define_forward = define_forward, .define_backward = backward,                                     \
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(op)}, .samples = samples,                       \
    .n_samples = sizeof samples / sizeof *samples

/* pick.c: the op `pick`: one column of each row, chosen by an integer, such as the score of a row's class. Rows whose integer is -1 have
 * none: their result is 0, and they get no gradient. */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

enum { X, INDEX };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    char text[REMAT_DESC_TEXT], index_text[REMAT_DESC_TEXT];
    TRY(rm_want_real("pick", "x", &x[X]));
    TRY(rm_want_rank("pick", "x", &x[X], 2, REMAT_MAX_RANK));
    TRY(rm_want_integer("pick", "index", &x[INDEX]));
    bool fits = x[INDEX].rank == x[X].rank - 1;
    for (int i = 0; i < x[X].rank - 1; i++) fits = fits && x[INDEX].dim[i] == x[X].dim[i];
    REQUIRE(fits, INVALID, "pick: x is %s and index is %s; index must have one integer for each row of x",
            rm_desc_text(&x[X], text), rm_desc_text(&x[INDEX], index_text));
    *y = rm_desc_make(RM_REAL, x[X].rank - 1, x[X].dim);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_cost_streaming(y, 0, 3);
    if (pass == REMAT_BACKWARD) out->moved_bytes += (double)rm_desc_bytes(&x[X]);
}

static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)attr;
    return input == INDEX ? rm_desc_last(&x[X]) : 0;
}

static int64_t ignored(const void *attr, int input) {
    (void)attr;
    return input == INDEX ? -1 : 0;
}

static void forward(const remat_call *call) {
    const real *x = call->x[X].data;            /* (rows,width) */
    const int32_t *index = call->x[INDEX].data; /* (rows) */
    real *y = call->y.data;
    int64_t rows = rm_desc_count(&call->y.desc), width = rm_desc_last(&call->x[X].desc);
    for (int64_t r = 0; r < rows; r++) y[r] = index[r] < 0 ? 0 : x[r * width + index[r]];
}

/* dy in the chosen columns, 0 in all others. */
static void backward(const remat_call *call) {
    const int32_t *index = call->x[INDEX].data;
    const real *dy = call->dy.data;
    real *dx = call->dx[X].data;
    int64_t rows = rm_desc_count(&call->dy.desc), width = rm_desc_last(&call->x[X].desc);
    if (!dx) return;
    RM_PARALLEL_FOR(
        call->threads, rows * width > RM_PARALLEL_MIN, for (int64_t r = 0; r < rows; r++) {
            memset(dx + r * width, 0, (size_t)width * sizeof *dx);
            if (index[r] >= 0) dx[r * width + index[r]] = dy[r];
        });
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE2(REMAT_I32, 5, 2)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11), RM_SHAPE1(REMAT_I32, 3)}},
    {.name = "one column", .x = {RM_SHAPE3(RM_REAL, 3, 2, 1), RM_SHAPE2(REMAT_I32, 3, 2)}},
    {.name = "large enough for threads", .x = {RM_SHAPE2(RM_REAL, 270, 251), RM_SHAPE1(REMAT_I32, 270)}},
};

const remat_op RM_OP(pick) = {
    .struct_bytes = sizeof(remat_op),
    .name = "pick",
    .doc = "y (..) = x[.., index], x (..,C), index (..) integers; 0 where the index is -1",
    .n_in = 2,
    .discrete = 1u << INDEX,
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << INDEX},
    .infer = infer,
    .cost = cost,
    .bound = bound,
    .ignored = ignored,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(pick)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

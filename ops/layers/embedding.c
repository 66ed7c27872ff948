/* embedding.c: the op `embedding`: rows of a table, selected by integers. */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

enum { TOKENS, WEIGHT };

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_integer("embedding", "tokens", &x[TOKENS]));
    TRY(rm_want_rank("embedding", "tokens", &x[TOKENS], 1, REMAT_MAX_RANK - 1));
    TRY(rm_want_real("embedding", "weight", &x[WEIGHT]));
    TRY(rm_want_rank("embedding", "weight", &x[WEIGHT], 2, 2));
    *y = x[TOKENS];
    y->dtype = RM_REAL;
    y->dim[y->rank++] = x[WEIGHT].dim[1];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_cost_streaming(y, pass == REMAT_BACKWARD ? 1 : 0, pass == REMAT_BACKWARD ? 3 : 2);
    out->moved_bytes += (double)rm_desc_bytes(&x[TOKENS]);
}

static int64_t bound(const remat_desc *x, const void *attr, int input) {
    (void)attr;
    return input == TOKENS ? x[WEIGHT].dim[0] : 0;
}

static void forward(const remat_call *call) {
    const int32_t *token = call->x[TOKENS].data; /* (rows)   */
    const real *weight = call->x[WEIGHT].data;   /* (V,C)    */
    real *y = call->y.data;                      /* (rows,C) */
    int64_t rows = rm_desc_count(&call->x[TOKENS].desc), c = call->x[WEIGHT].desc.dim[1];
    RM_PARALLEL_FOR(call->threads, rows * c > RM_PARALLEL_MIN,
                    for (int64_t r = 0; r < rows; r++)
                        memcpy(y + r * c, weight + token[r] * c, (size_t)c * sizeof *y););
}

static void define_backward(const remat_call *call) {
    const int32_t *token = call->x[TOKENS].data;
    const real *dy = call->dy.data;
    real *dweight = call->dx[WEIGHT].data;
    int64_t rows = rm_desc_count(&call->x[TOKENS].desc), c = call->x[WEIGHT].desc.dim[1];
    if (!dweight) return;
    for (int64_t r = 0; r < rows; r++) /* y[r,:] = weight[token[r],:] */
        for (int64_t j = 0; j < c; j++) dweight[token[r] * c + j] += dy[r * c + j];
}

/* A token may occur in many rows, so threads divide the columns, not the rows: every column is summed in row order. */
static void backward(const remat_call *call) {
    const int32_t *token = call->x[TOKENS].data;
    const real *dy = call->dy.data;
    real *dweight = call->dx[WEIGHT].data;
    int64_t rows = rm_desc_count(&call->x[TOKENS].desc), c = call->x[WEIGHT].desc.dim[1];
    int64_t width = (c / call->threads / 16 + 1) * 16; /* whole cache lines */
    if (!dweight) return;
    RM_PARALLEL_FOR(
        call->threads, rows * c > RM_PARALLEL_MIN, for (int64_t from = 0; from < c; from += width) {
            int64_t to = from + width < c ? from + width : c;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t j = from; j < to; j++) dweight[token[r] * c + j] += dy[r * c + j];
        });
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE2(REMAT_I32, 6, 3), RM_SHAPE2(RM_REAL, 5, 4)}},
    {.name = "more axes", .sequence = true, .x = {RM_SHAPE3(REMAT_I32, 5, 2, 3), RM_SHAPE2(RM_REAL, 4, 2)}},
    {.name = "whole", .x = {RM_SHAPE1(REMAT_I32, 4), RM_SHAPE2(RM_REAL, 3, 33)}},
    {.name = "one row", .x = {RM_SHAPE1(REMAT_I32, 1), RM_SHAPE2(RM_REAL, 1, 1)}},
};

const remat_op RM_OP(embedding) = {
    .struct_bytes = sizeof(remat_op),
    .name = "embedding",
    .doc = "y (..,C) = weight[tokens], weight (V,C)",
    .n_in = 2,
    .shared = 1u << WEIGHT,
    .discrete = 1u << TOKENS,
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1u << TOKENS},
    .infer = infer,
    .cost = cost,
    .bound = bound,
    .define_forward = forward,
    .define_backward = define_backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(embedding)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

/* slice.c: the op `slice`: a range of columns of a value. */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    char text[REMAT_DESC_TEXT];
    const rm_slice_attr *a = attr;
    TRY(rm_want_real("slice", "x", &x[0]));
    TRY(rm_want_rank("slice", "x", &x[0], 1, REMAT_MAX_RANK));
    REQUIRE(a, INVALID, "slice: the range of columns is missing; give first and count");
    int64_t width = rm_desc_last(&x[0]);
    REQUIRE(a->first >= 0 && a->first < width && a->count >= 1 && a->count <= width - a->first, INVALID,
            "slice: x is %s, which has no %lld columns from column %lld on; use 0 <= first, 1 <= count and first + "
            "count <= %lld",
            rm_desc_text(&x[0], text), (long long)a->count, (long long)a->first, (long long)width);
    *y = x[0];
    y->dim[y->rank - 1] = a->count;
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_cost_streaming(y, 0, 2);
    if (pass == REMAT_BACKWARD) out->moved_bytes = (double)(rm_desc_bytes(&x[0]) + rm_desc_bytes(y));
}

static void forward(const remat_call *call) {
    int64_t first = ((const rm_slice_attr *)call->attr)->first, rows = rm_desc_rows(&call->y.desc);
    int64_t width = rm_desc_last(&call->x[0].desc), count = rm_desc_last(&call->y.desc);
    const real *x = (const real *)call->x[0].data + first; /* (rows,width) */
    real *y = call->y.data;                                /* (rows,count) */
    RM_PARALLEL_FOR(call->threads, rows * count > RM_PARALLEL_MIN,
                    for (int64_t r = 0; r < rows; r++)
                        memcpy(y + r * count, x + r * width, (size_t)count * sizeof *y););
}

/* dy in its columns, 0 in all others. */
static void backward(const remat_call *call) {
    int64_t first = ((const rm_slice_attr *)call->attr)->first, rows = rm_desc_rows(&call->dy.desc);
    int64_t width = rm_desc_last(&call->x[0].desc), count = rm_desc_last(&call->dy.desc);
    const real *dy = call->dy.data;
    real *dx = call->dx[0].data;
    if (!dx) return;
    RM_PARALLEL_FOR(
        call->threads, rows * width > RM_PARALLEL_MIN, for (int64_t r = 0; r < rows; r++) {
            memset(dx + r * width, 0, (size_t)first * sizeof *dx);
            memcpy(dx + r * width + first, dy + r * count, (size_t)count * sizeof *dx);
            memset(dx + r * width + first + count, 0, (size_t)(width - first - count) * sizeof *dx);
        });
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}, .attr = &(rm_slice_attr){2, 3}},
    {.name = "whole, to the end", .x = {RM_SHAPE2(RM_REAL, 3, 11)}, .attr = &(rm_slice_attr){10, 1}},
    {.name = "all of a vector", .x = {RM_SHAPE1(RM_REAL, 4)}, .attr = &(rm_slice_attr){0, 4}},
    {.name = "large enough for threads", .x = {RM_SHAPE2(RM_REAL, 270, 251)}, .attr = &(rm_slice_attr){1, 249}},
};

const remat_op RM_OP(slice) = {
    .struct_bytes = sizeof(remat_op),
    .name = "slice",
    .doc = "y (..,count) = columns first .. first + count - 1 of x (..,C)",
    .n_in = 1,
    .attr_bytes = sizeof(rm_slice_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(slice)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

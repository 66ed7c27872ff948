/* concat.c: the op `concat`: joins two to four values along one axis, the last without attributes. */
#include "ops/real.h"

#include <string.h>

#include "ops/layout/concat.h"
#include "ops/op.h"
#include "ops/shape.h"

/* Checks that x[i] has the shape of x[0], except along the axis. */
static remat_status check_beside(const remat_desc *x, int i, int axis) {
    char first[REMAT_DESC_TEXT], other[REMAT_DESC_TEXT];
    remat_desc alike = x[i];
    if (alike.rank == x[0].rank) alike.dim[axis] = x[0].dim[axis];
    REQUIRE(rm_desc_equal(&alike, &x[0]), INVALID,
            "concat: x[0] is %s and x[%d] is %s; they may differ only along axis %d, where they are joined",
            rm_desc_text(&x[0], first), i, rm_desc_text(&x[i], other), axis);
    return REMAT_OK;
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_concat_attr *a = attr;
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real("concat", "x[0]", &x[0]));
    TRY(rm_want_rank("concat", "x[0]", &x[0], 1, REMAT_MAX_RANK));
    REQUIRE(!a || (a->axis >= 0 && a->axis < x[0].rank), INVALID, "concat: x[0] is %s, which has no axis %lld",
            rm_desc_text(&x[0], text), (long long)a->axis);
    const int axis = rm_concat_axis(&x[0], attr);
    *y = x[0];
    for (int i = 1; i < RM_CONCAT_MOST; i++) {
        if (x[i].rank < 0) continue;
        TRY(check_beside(x, i, axis));
        y->dim[axis] += x[i].dim[axis];
    }
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 0, 2);
}

/* y (rows,W1+W2+..), x[i] (rows,Wi) */
static void forward(const remat_call *call) {
    int64_t rows = rm_concat_rows(&call->y.desc, call->attr), wide = rm_desc_count(&call->y.desc) / rows, at = 0;
    for (int i = 0; i < RM_CONCAT_MOST; i++) {
        if (call->x[i].desc.rank < 0) continue;
        const real *x = call->x[i].data;
        real *y = (real *)call->y.data + at;
        int64_t width = rm_desc_count(&call->x[i].desc) / rows;
        RM_PARALLEL_FOR(call->threads, rows * width > RM_PARALLEL_MIN,
                        for (int64_t r = 0; r < rows; r++)
                            memcpy(y + r * wide, x + r * width, (size_t)width * sizeof *y););
        at += width;
    }
}

/* Each gradient is its columns of dy. */
static void backward(const remat_call *call) {
    int64_t rows = rm_concat_rows(&call->dy.desc, call->attr), wide = rm_desc_count(&call->dy.desc) / rows, at = 0;
    for (int i = 0; i < RM_CONCAT_MOST; i++) {
        if (call->x[i].desc.rank < 0) continue;
        const real *dy = (const real *)call->dy.data + at;
        real *dx = call->dx[i].data;
        int64_t width = rm_desc_count(&call->x[i].desc) / rows;
        at += width;
        if (!dx) continue;
        RM_PARALLEL_FOR(call->threads, rows * width > RM_PARALLEL_MIN,
                        for (int64_t r = 0; r < rows; r++)
                            memcpy(dx + r * width, dy + r * wide, (size_t)width * sizeof *dx););
    }
}

static const rm_concat_attr channels = {1}, timed = {2}, first = {0};
static const remat_sample samples[] = {
    {.name = "sequence",
     .sequence = true,
     .x = {RM_SHAPE3(RM_REAL, 5, 2, 7), RM_SHAPE3(RM_REAL, 5, 2, 3), RM_ABSENT, RM_ABSENT}},
    {.name = "four",
     .x = {RM_SHAPE2(RM_REAL, 3, 1), RM_SHAPE2(RM_REAL, 3, 11), RM_SHAPE2(RM_REAL, 3, 2), RM_SHAPE2(RM_REAL, 3, 4)}},
    {.name = "vectors", .x = {RM_SHAPE1(RM_REAL, 2), RM_SHAPE1(RM_REAL, 1), RM_SHAPE1(RM_REAL, 3), RM_ABSENT}},
    {.name = "channels of planes",
     .attr = &channels,
     .x = {RM_SHAPE4(RM_REAL, 2, 3, 2, 3), RM_SHAPE4(RM_REAL, 2, 1, 2, 3), RM_ABSENT, RM_ABSENT}},
    {.name = "an inner axis of a sequence",
     .sequence = true,
     .attr = &timed,
     .x = {RM_SHAPE4(RM_REAL, 4, 2, 1, 3), RM_SHAPE4(RM_REAL, 4, 2, 2, 3), RM_ABSENT, RM_ABSENT}},
    {.name = "the first axis",
     .attr = &first,
     .x = {RM_SHAPE2(RM_REAL, 2, 3), RM_SHAPE2(RM_REAL, 1, 3), RM_SHAPE2(RM_REAL, 3, 3), RM_ABSENT}},
    {.name = "large enough for threads",
     .x = {RM_SHAPE2(RM_REAL, 270, 251), RM_SHAPE2(RM_REAL, 270, 2), RM_ABSENT, RM_ABSENT}},
};

const remat_op RM_OP(concat) = {
    .struct_bytes = sizeof(remat_op),
    .name = "concat",
    .doc = "y = 2 to 4 inputs joined along an axis, the last by default: (..,C1), (..,C2) -> (..,C1+C2)",
    .n_in = RM_CONCAT_MOST,
    .attr_bytes = sizeof(rm_concat_attr),
    .optional = 1u << 2 | 1u << 3,
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(concat)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

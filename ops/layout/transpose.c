/* transpose.c: the op `transpose`: swaps two axes, PyTorch's x.transpose(one, other). */
#include "ops/layout/transpose.h"

#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_transpose_attr *a = attr;
    char text[REMAT_DESC_TEXT];
    TRY(rm_want_real("transpose", "x", x));
    REQUIRE(a && a->one >= 0 && a->one < a->other && a->other < x->rank, INVALID,
            "transpose: x is %s, and axes %lld and %lld cannot be swapped; give two of its axes, the first before the "
            "second",
            rm_desc_text(x, text), a ? (long long)a->one : 0, a ? (long long)a->other : 0);
    *y = *x;
    y->dim[a->one] = x->dim[a->other], y->dim[a->other] = x->dim[a->one];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 0, 2);
}

/* Block by block, so that neither side touches a new cache line for every element. from: (one,middle,other,inner). */
enum { BLOCK = 16 };
static void turn_block(const rm_transpose_shape *s, int64_t m, int64_t i, int64_t j, const real *from, real *to) {
    for (int64_t a = i; a < s->one && a < i + BLOCK; a++)
        for (int64_t b = j; b < s->other && b < j + BLOCK; b++) {
            const real *source = from + ((a * s->middle + m) * s->other + b) * s->inner;
            real *place = to + ((b * s->middle + m) * s->one + a) * s->inner;
            for (int64_t k = 0; k < s->inner; k++) place[k] = source[k];
        }
}

static void turn(const remat_call *call, rm_transpose_shape s, const real *from, real *to) {
    int64_t size = s.one * s.middle * s.other * s.inner, strips = (s.one + BLOCK - 1) / BLOCK;
    RM_PARALLEL_FOR(
        call->threads, s.outer * size > RM_PARALLEL_MIN, for (int64_t n = 0; n < s.outer * strips; n++) {
            const int64_t at = n / strips * size;
            for (int64_t m = 0; m < s.middle; m++)
                for (int64_t j = 0; j < s.other; j += BLOCK)
                    turn_block(&s, m, n % strips * BLOCK, j, from + at, to + at);
        });
}

static void forward(const remat_call *call) {
    turn(call, rm_transpose_shape_of(&call->x[0].desc, call->attr), call->x[0].data, call->y.data);
}

static void backward(const remat_call *call) {
    if (call->dx[0].data)
        turn(call, rm_transpose_shape_of(&call->dy.desc, call->attr), call->dy.data, call->dx[0].data);
}

static const rm_transpose_attr first = {0, 1}, planes = {1, 3}, timed = {2, 3};
static const remat_sample samples[] = {
    {.name = "matrix", .attr = &first, .x = {RM_SHAPE2(RM_REAL, 5, 21)}},
    {.name = "far apart", .attr = &planes, .x = {RM_SHAPE4(RM_REAL, 2, 3, 4, 5)}},
    {.name = "inner axis", .attr = &first, .x = {RM_SHAPE3(RM_REAL, 4, 3, 6)}},
    {.name = "sequence", .sequence = true, .attr = &timed, .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 5)}},
    {.name = "large enough for threads", .attr = &first, .x = {RM_SHAPE2(RM_REAL, 270, 251)}},
};

const remat_op RM_OP(transpose) = {
    .struct_bytes = sizeof(remat_op),
    .name = "transpose",
    .doc = "y = x with two axes swapped",
    .n_in = 1,
    .attr_bytes = sizeof(rm_transpose_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(transpose)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

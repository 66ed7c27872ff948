/* pad.c: the op `pad`: zeros around planes, PyTorch's ZeroPad2d. */
#include "ops/layout/pad.h"

#include <string.h>

#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    const rm_pad_attr *a = attr;
    TRY(rm_want_real("pad", "x", x));
    TRY(rm_want_rank("pad", "x", x, 3, REMAT_MAX_RANK));
    *y = *x;
    for (int d = 0; d < 2; d++) {
        int64_t *size = &y->dim[x->rank - 2 + d];
        REQUIRE(a && a->before[d] >= 0 && a->after[d] >= 0 && a->before[d] <= INT32_MAX && a->after[d] <= INT32_MAX &&
                    !__builtin_add_overflow(*size, a->before[d] + a->after[d], size),
                INVALID, "pad: %lld zeros before and %lld after cannot be added; both must be from 0 to 2^31 - 1",
                a ? (long long)a->before[d] : 0, a ? (long long)a->after[d] : 0);
    }
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 0, 2);
}

static void forward(const remat_call *call) {
    const rm_pad_shape s = rm_pad_shape_of(&call->x[0].desc, call->attr);
    const real *x = call->x[0].data;
    real *y = call->y.data;
    RM_PARALLEL_FOR(
        call->threads, rm_desc_count(&call->y.desc) > RM_PARALLEL_MIN,
        for (int64_t row = 0; row < s.planes * s.out[0]; row++) {
            int64_t plane = row / s.out[0], i = row % s.out[0] - s.before[0];
            real *to = y + row * s.out[1];
            memset(to, 0, (size_t)s.out[1] * sizeof *to);
            if (i >= 0 && i < s.in[0])
                memcpy(to + s.before[1], x + (plane * s.in[0] + i) * s.in[1], (size_t)s.in[1] * sizeof *to);
        });
}

static void backward(const remat_call *call) {
    const rm_pad_shape s = rm_pad_shape_of(&call->x[0].desc, call->attr);
    const real *dy = call->dy.data;
    real *dx = call->dx[0].data;
    if (!dx) return;
    RM_PARALLEL_FOR(
        call->threads, rm_desc_count(&call->dy.desc) > RM_PARALLEL_MIN,
        for (int64_t row = 0; row < s.planes * s.in[0]; row++) {
            int64_t plane = row / s.in[0], i = row % s.in[0] + s.before[0];
            memcpy(dx + row * s.in[1], dy + (plane * s.out[0] + i) * s.out[1] + s.before[1],
                   (size_t)s.in[1] * sizeof *dx);
        });
}

static const rm_pad_attr around = {{1, 2}, {3, 0}}, below = {{0, 0}, {1, 1}};
static const remat_sample samples[] = {
    {.name = "planes", .attr = &around, .x = {RM_SHAPE4(RM_REAL, 2, 3, 4, 5)}},
    {.name = "sequence", .sequence = true, .attr = &below, .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 5)}},
    {.name = "large enough for threads", .attr = &around, .x = {RM_SHAPE4(RM_REAL, 2, 5, 83, 81)}},
};

const remat_op RM_OP(pad) = {
    .struct_bytes = sizeof(remat_op),
    .name = "pad",
    .doc = "y = zeros around each plane of x (..,H,W)",
    .n_in = 1,
    .attr_bytes = sizeof(rm_pad_attr),
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(pad)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

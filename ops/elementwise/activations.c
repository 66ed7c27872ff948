/* activations.c: the descriptors of the ops in activations.def, and their loops on the CPU. All that differs from one to the
 * next is in that list. */
#include "ops/real.h"

#include "ops/elementwise/activation.h"
#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const char *op, const rm_desc *x, rm_desc *y) {
    TRY(rm_want_real(op, "x", &x[0]));
    *y = x[0];
    return REMAT_OK;
}

static const rm_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11)}},
    {.name = "one element", .x = {RM_SHAPE1(RM_REAL, 1)}},
};

/* What backward reads, x or y: where it is in a call, and how the descriptor says so. */
#define KEPT_x call->x[0].data
#define KEPT_y call->y.data
#define SAVES_x .in = 1u << 0
#define SAVES_y .out = true

#define ACTIVATION(op, formula, reads, derivative, forward_flops, backward_flops, is_cheap, text)                      \
    static remat_status infer_##op(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {                   \
        (void)attr, (void)state;                                                                                       \
        return infer(#op, x, y);                                                                                       \
    }                                                                                                                  \
    static void cost_##op(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out) {          \
        (void)x, (void)attr;                                                                                           \
        *out = pass == RM_BACKWARD ? rm_cost_streaming(y, backward_flops, 3) : rm_cost_streaming(y, forward_flops, 2); \
    }                                                                                                                  \
    static void forward_##op(const rm_call *call) {                                                                    \
        const real *x = call->x[0].data;                                                                               \
        real *y = call->y.data;                                                                                        \
        int64_t n = rm_desc_count(&call->y.desc);                                                                      \
        RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) y[i] = rm_##op(x[i]););    \
    }                                                                                                                  \
    static void backward_##op(const rm_call *call) {                                                                   \
        const real *kept = KEPT_##reads, *dy = call->dy.data;                                                          \
        real *dx = call->dx[0].data;                                                                                   \
        int64_t n = rm_desc_count(&call->dy.desc);                                                                     \
        if (!dx) return;                                                                                               \
        RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,                                                            \
                        for (int64_t i = 0; i < n; i++) dx[i] = rm_##op##_backward(dy[i], kept[i]););                  \
    }                                                                                                                  \
    const rm_op RM_OP(op) = {                                                                                          \
        .struct_bytes = sizeof(rm_op),                                                                                 \
        .name = #op,                                                                                                   \
        .doc = text,                                                                                                   \
        .n_in = 1,                                                                                                     \
        .time = RM_TIME_POINTWISE,                                                                                     \
        .saves = {SAVES_##reads},                                                                                      \
        .infer = infer_##op,                                                                                           \
        .cost = cost_##op,                                                                                             \
        .define_forward = forward_##op,                                                                                \
        .define_backward = backward_##op,                                                                              \
        .on = {{.forward = forward_##op, .backward = backward_##op}, RM_CUDA_KERNELS(op)},                             \
        .cheap = is_cheap,                                                                                             \
        .samples = samples,                                                                                            \
        .n_samples = sizeof samples / sizeof *samples,                                                                 \
    };
#include "ops/elementwise/activations.def"

/* activations.c: descriptors and definitions of the ops in activations.def, and the calls of their CPU loops
 * (cpu/activations.c). activations.def holds everything that differs between them. */
#include "ops/real.h"

#include "ops/elementwise/activation.h"
#include "ops/op.h"
#include "ops/cpu/kernels.h"
#include "ops/shape.h"

static remat_status infer(const char *op, const remat_desc *x, remat_desc *y) {
    TRY(rm_want_real(op, "x", &x[0]));
    *y = x[0];
    return REMAT_OK;
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11)}},
    {.name = "one element", .x = {RM_SHAPE1(RM_REAL, 1)}},
};
static const remat_sample positive_samples[] = {
    {.name = "sequence", .sequence = true, .positive = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "whole", .positive = true, .x = {RM_SHAPE2(RM_REAL, 3, 11)}},
    {.name = "one element", .positive = true, .x = {RM_SHAPE1(RM_REAL, 1)}},
};

/* The tensor that backward reads, x or y: its place in a call, and its declaration in the descriptor. */
#define KEPT_x call->x[0].data
#define KEPT_y call->y.data
#define SAVES_x .in = 1u << 0
#define SAVES_y .out = true

#ifdef RM_REAL_DOUBLE
#define KERNELS(op)                                                                                                    \
    { .forward = forward_##op, .backward = backward_##op } /* the definitions */
#else
enum { BLOCK = 1 << 12 };
#define IN_BLOCKS(call, n, loop)                                                                                       \
    RM_PARALLEL_FOR((call)->threads, (n) > RM_PARALLEL_MIN, for (int64_t i = 0; i < (n); i += BLOCK) {                 \
        int64_t count = (n)-i < BLOCK ? (n)-i : BLOCK;                                                                 \
        loop;                                                                                                          \
    })

static void run_forward(const remat_call *call, rm_activation which) {
    const rm_activation_loops *loops = &rm_cell_kernels_get()->activation[which];
    const float *x = call->x[0].data;
    float *y = call->y.data;
    IN_BLOCKS(call, rm_desc_count(&call->y.desc), loops->forward(x + i, y + i, count));
}

static void run_backward(const remat_call *call, rm_activation which, const float *kept) {
    const rm_activation_loops *loops = &rm_cell_kernels_get()->activation[which];
    const float *dy = call->dy.data;
    float *dx = call->dx[0].data;
    if (dx) IN_BLOCKS(call, rm_desc_count(&call->dy.desc), loops->backward(dy + i, kept + i, dx + i, count));
}

#define ACTIVATION(op, formula, reads, derivative, ...)                                                                \
    static void run_forward_##op(const remat_call *call) { run_forward(call, RM_ACTIVATION_##op); }                    \
    static void run_backward_##op(const remat_call *call) { run_backward(call, RM_ACTIVATION_##op, KEPT_##reads); }
#include "ops/elementwise/activations.def"
#undef ACTIVATION
#define KERNELS(op)                                                                                                    \
    { .forward = run_forward_##op, .backward = run_backward_##op }
#endif

#define ACTIVATION(op, formula, reads, derivative, forward_flops, backward_flops, is_cheap, is_positive, text)         \
    static remat_status infer_##op(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {          \
        (void)attr, (void)state;                                                                                       \
        return infer(#op, x, y);                                                                                       \
    }                                                                                                                  \
    static void cost_##op(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass,                 \
                          remat_cost *out) {                                                                           \
        (void)x, (void)attr;                                                                                           \
        *out =                                                                                                         \
            pass == REMAT_BACKWARD ? rm_cost_streaming(y, backward_flops, 3) : rm_cost_streaming(y, forward_flops, 2); \
    }                                                                                                                  \
    static void forward_##op(const remat_call *call) {                                                                 \
        const real *x = call->x[0].data;                                                                               \
        real *y = call->y.data;                                                                                        \
        int64_t n = rm_desc_count(&call->y.desc);                                                                      \
        RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN, for (int64_t i = 0; i < n; i++) y[i] = rm_##op(x[i]););    \
    }                                                                                                                  \
    static void backward_##op(const remat_call *call) {                                                                \
        const real *kept = KEPT_##reads, *dy = call->dy.data;                                                          \
        real *dx = call->dx[0].data;                                                                                   \
        int64_t n = rm_desc_count(&call->dy.desc);                                                                     \
        if (!dx) return;                                                                                               \
        RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,                                                            \
                        for (int64_t i = 0; i < n; i++) dx[i] = rm_##op##_backward(dy[i], kept[i]););                  \
    }                                                                                                                  \
    const remat_op RM_OP(op) = {                                                                                       \
        .struct_bytes = sizeof(remat_op),                                                                              \
        .name = #op,                                                                                                   \
        .doc = text,                                                                                                   \
        .n_in = 1,                                                                                                     \
        .time = REMAT_TIME_POINTWISE,                                                                                  \
        .saves = {SAVES_##reads},                                                                                      \
        .infer = infer_##op,                                                                                           \
        .cost = cost_##op,                                                                                             \
        .define_forward = forward_##op,                                                                                \
        .define_backward = backward_##op,                                                                              \
        .on = {KERNELS(op), RM_CUDA_KERNELS(op)},                                                                      \
        .cheap = is_cheap,                                                                                             \
        .samples = is_positive ? positive_samples : samples,                                                           \
        .n_samples = sizeof samples / sizeof *samples,                                                                 \
    };
#include "ops/elementwise/activations.def"

/* mse.c: the mean squared difference of two values of one shape, over all their elements and timesteps. Either side may
 * want a gradient. */
#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

enum { X, TARGET };

static remat_status infer(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("mse", "x", &x[X]));
    TRY(rm_want_same("mse", "x", &x[X], "target", &x[TARGET]));
    *y = (rm_desc)RM_SCALAR(RM_REAL);
    return REMAT_OK;
}

/* Elements are dealt out in blocks whose sums are added in order: no bit depends on the threads. */
enum { BLOCK = 4096 };
static int64_t count_blocks(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

static void cost(const rm_desc *x, const rm_desc *y, const void *attr, rm_pass pass, rm_cost *out) {
    (void)y, (void)attr;
    *out = rm_cost_streaming(&x[X], 3, pass == RM_BACKWARD ? 4 : 2);
    if (pass == RM_FORWARD) out->scratch_bytes = (uint64_t)count_blocks(rm_desc_count(&x[X])) * sizeof(double);
}

static double sum_of_squares(const real *x, const real *target, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((double)x[i] - target[i]) * ((double)x[i] - target[i]);
    return sum;
}

static void define_forward(const rm_call *call) {
    const rm_desc *shape = &call->x[X].desc;
    int64_t n = rm_desc_count(shape);
    double sum = sum_of_squares(call->x[X].data, call->x[TARGET].data, n);
    *(real *)call->y.data = (real)(sum / rm_call_total(call, shape, n));
}

static void forward(const rm_call *call) {
    const rm_desc *shape = &call->x[X].desc;
    const real *x = call->x[X].data, *target = call->x[TARGET].data;
    int64_t n = rm_desc_count(shape), blocks = count_blocks(n);
    double *partial = call->scratch, sum = 0; /* (blocks) */
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t b = 0; b < blocks; b++) partial[b] = sum_of_squares(
                        x + b * BLOCK, target + b * BLOCK, n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK););
    for (int64_t b = 0; b < blocks; b++) sum += partial[b];
    *(real *)call->y.data = (real)(sum / rm_call_total(call, shape, n));
}

static void backward(const rm_call *call) {
    const rm_desc *shape = &call->x[X].desc;
    const real *x = call->x[X].data, *target = call->x[TARGET].data;
    real *dx = call->dx[X].data, *dtarget = call->dx[TARGET].data;
    int64_t n = rm_desc_count(shape);
    real factor = (real)(2 * *(const real *)call->dy.data / rm_call_total(call, shape, n));
    RM_PARALLEL_FOR(
        call->threads, n > RM_PARALLEL_MIN,
        for (int64_t i = 0; i < n; i++) { /* y = sum over i of (x[i] - target[i])^2 / total */
                                          real slope = (x[i] - target[i]) * factor;
                                          if (dx) dx[i] = slope;
                                          if (dtarget) dtarget[i] = -slope;
        });
}

static const rm_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 3), RM_SHAPE3(RM_REAL, 5, 2, 3)}},
    {.name = "sequence of scalars", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 6, 3), RM_SHAPE2(RM_REAL, 6, 3)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 4, 5), RM_SHAPE2(RM_REAL, 4, 5)}},
    {.name = "several blocks", .x = {RM_SHAPE2(RM_REAL, 3, 3000), RM_SHAPE2(RM_REAL, 3, 3000)}},
};

const rm_op RM_OP(mse) = {
    .struct_bytes = sizeof(rm_op),
    .name = "mse",
    .doc = "y = mean over all elements of (x - target)^2; same shape",
    .n_in = 2,
    .time = RM_TIME_SUM,
    .saves = {.in = 1u << X | 1u << TARGET},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(mse)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

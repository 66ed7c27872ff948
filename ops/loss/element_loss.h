/* element_loss.h: what mse.c, mae.c, huber.c and bce_with_logits.c share: the mean over all elements and timesteps of a function of x
 * and target. Such a file says which, as VALUE, SLOPE and TARGET_SLOPE (element_loss_math.h), includes this, and ends in its
 * descriptor. Either side may want a gradient. */
#include "ops/real.h"

#include "ops/loss/element_loss_math.h"
#include "ops/op.h"
#include "ops/shape.h"

enum { X, TARGET };

static double delta_of(const void *attr) { return attr ? ((const rm_huber_attr *)attr)->delta : 1; }

static remat_status infer_elements(const char *op, const rm_desc *x, const void *attr, rm_desc *y) {
    TRY(rm_want_real(op, "x", &x[X]));
    TRY(rm_want_same(op, "x", &x[X], "target", &x[TARGET]));
    REQUIRE(delta_of(attr) > 0, INVALID, "%s: delta is %g; it must be above 0", op, delta_of(attr));
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

/* Of block b of n elements. */
static double block_sum(const rm_call *call, int64_t b, int64_t n) {
    const real *x = call->x[X].data, *target = call->x[TARGET].data;
    double sum = 0, delta = delta_of(call->attr);
    (void)delta;
    for (int64_t i = b * BLOCK; i < n && i < (b + 1) * BLOCK; i++) sum += VALUE((double)x[i], (double)target[i], delta);
    return sum;
}

static void define_forward(const rm_call *call) {
    const rm_desc *shape = &call->x[X].desc;
    int64_t n = rm_desc_count(shape);
    double sum = 0;
    for (int64_t b = 0; b < count_blocks(n); b++) sum += block_sum(call, b, n);
    *(real *)call->y.data = (real)(sum / rm_call_total(call, shape, n));
}

static void forward(const rm_call *call) {
    const rm_desc *shape = &call->x[X].desc;
    int64_t n = rm_desc_count(shape), blocks = count_blocks(n);
    double *partial = call->scratch, sum = 0; /* (blocks) */
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t b = 0; b < blocks; b++) partial[b] = block_sum(call, b, n););
    for (int64_t b = 0; b < blocks; b++) sum += partial[b];
    *(real *)call->y.data = (real)(sum / rm_call_total(call, shape, n));
}

static void backward(const rm_call *call) {
    const rm_desc *shape = &call->x[X].desc;
    const real *x = call->x[X].data, *target = call->x[TARGET].data;
    real *dx = call->dx[X].data, *dtarget = call->dx[TARGET].data;
    int64_t n = rm_desc_count(shape);
    real factor = (real)(*(const real *)call->dy.data / rm_call_total(call, shape, n));
    real delta = (real)delta_of(call->attr);
    (void)delta;
    RM_PARALLEL_FOR(
        call->threads, n > RM_PARALLEL_MIN,
        for (int64_t i = 0; i < n; i++) { /* y = sum over i of value(x[i], target[i]) / total */
                                          if (dx) dx[i] = SLOPE(x[i], target[i], delta) * factor;
                                          if (dtarget) dtarget[i] = TARGET_SLOPE(x[i], target[i], delta) * factor;
        });
}

static const rm_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 3), RM_SHAPE3(RM_REAL, 5, 2, 3)}},
    {.name = "sequence of scalars", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 6, 3), RM_SHAPE2(RM_REAL, 6, 3)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 4, 5), RM_SHAPE2(RM_REAL, 4, 5)}},
    {.name = "several blocks", .x = {RM_SHAPE2(RM_REAL, 3, 3000), RM_SHAPE2(RM_REAL, 3, 3000)}},
};

/* The descriptor but for doc and attributes. */
#define RM_ELEMENT_LOSS(op)                                                                                            \
    .struct_bytes = sizeof(rm_op), .name = #op, .n_in = 2, .time = RM_TIME_SUM,                                        \
    .saves = {.in = 1u << X | 1u << TARGET}, .infer = infer, .cost = cost, .define_forward = define_forward,           \
    .define_backward = backward, .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(op)},              \
    .samples = samples, .n_samples = sizeof samples / sizeof *samples

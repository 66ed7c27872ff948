/* reverse.c: the op `reverse`: a sequence in reverse order. A call reverses one tile; the graph visits the tiles
 * in reverse order (REMAT_TIME_REVERSE). */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("reverse", "x", &x[0]));
    TRY(rm_want_rank("reverse", "x", &x[0], 2, REMAT_MAX_RANK));
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 0, 2);
}

/* to[steps - 1 - t] = from[t] */
static void reverse_tile(const remat_call *call, const real *from, real *to) {
    int64_t steps = call->x[0].desc.dim[0], n = rm_desc_count(&call->x[0].desc), width = n / steps;
    RM_PARALLEL_FOR(call->threads, n > RM_PARALLEL_MIN,
                    for (int64_t t = 0; t < steps; t++)
                        memcpy(to + (steps - 1 - t) * width, from + t * width, (size_t)width * sizeof *to););
}

static void forward(const remat_call *call) { reverse_tile(call, call->x[0].data, call->y.data); }

static void backward(const remat_call *call) {
    if (call->dx[0].data) reverse_tile(call, call->dy.data, call->dx[0].data);
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "one timestep", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 1, 3, 2)}},
    {.name = "no features", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 4, 3)}},
    {.name = "more axes", .sequence = true, .x = {RM_SHAPE4(RM_REAL, 4, 3, 2, 5)}},
    {.name = "large enough for threads", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 67, 4, 250)}},
};

const remat_op RM_OP(reverse) = {
    .struct_bytes = sizeof(remat_op),
    .name = "reverse",
    .doc = "y[t] = x[T-1-t], x (T,B,..)",
    .n_in = 1,
    .time = REMAT_TIME_REVERSE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(reverse)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

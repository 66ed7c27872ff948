/* last_step.c: the op `last_step`: the last timestep of a sequence, for a head that classifies the whole sequence. */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("last_step", "x", &x[0]));
    TRY(rm_want_rank("last_step", "x", &x[0], 2, REMAT_MAX_RANK));
    *y = rm_desc_make(RM_REAL, x[0].rank - 1, x[0].dim + 1);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_cost_streaming(y, 0, 2);
    if (pass == REMAT_BACKWARD) out->moved_bytes = (double)(rm_desc_bytes(&x[0]) + rm_desc_bytes(y));
}

static void forward(const remat_call *call) {
    int64_t steps = call->x[0].desc.dim[0], width = rm_desc_count(&call->y.desc);
    memcpy(call->y.data, (const real *)call->x[0].data + (steps - 1) * width, (size_t)width * sizeof(real));
}

/* y = x[T-1]: the gradient of every other timestep, and so of every other tile, is 0. */
static void backward(const remat_call *call) {
    int64_t steps = call->x[0].desc.dim[0], width = rm_desc_count(&call->dy.desc);
    real *dx = call->dx[0].data;
    if (!dx) return;
    memset(dx, 0, (size_t)(steps * width) * sizeof *dx);
    if (call->t0 + steps == call->t_total) memcpy(dx + (steps - 1) * width, call->dy.data, (size_t)width * sizeof *dx);
}

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "one timestep", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 1, 3, 2)}},
    {.name = "no features", .sequence = true, .x = {RM_SHAPE2(RM_REAL, 4, 3)}},
};

const remat_op RM_OP(last_step) = {
    .struct_bytes = sizeof(remat_op),
    .name = "last_step",
    .doc = "y (B,..) = x[T-1], x (T,B,..)",
    .n_in = 1,
    .time = REMAT_TIME_LAST,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(last_step)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

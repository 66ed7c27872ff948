/* as_sequence.c: the op `as_sequence`: copies a value without a time axis to a sequence, which can be read in tiles. */
#include "ops/real.h"

#include <string.h>

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("as_sequence", "x", &x[0]));
    TRY(rm_want_rank("as_sequence", "x", &x[0], 2, REMAT_MAX_RANK));
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 0, 2);
}

static void forward(const remat_call *call) { memcpy(call->y.data, call->x[0].data, rm_desc_bytes(&call->y.desc)); }
static void backward(const remat_call *call) {
    if (call->dx[0].data) memcpy(call->dx[0].data, call->dy.data, rm_desc_bytes(&call->dy.desc));
}

static const remat_sample samples[] = {
    {.name = "rows", .x = {RM_SHAPE3(RM_REAL, 5, 1, 7)}},
    {.name = "no features", .x = {RM_SHAPE2(RM_REAL, 4, 3)}},
};

const remat_op RM_OP(as_sequence) = {
    .struct_bytes = sizeof(remat_op),
    .name = "as_sequence",
    .doc = "y = x, with its first axis as time",
    .n_in = 1,
    .time = REMAT_TIME_BEGIN,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(as_sequence)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

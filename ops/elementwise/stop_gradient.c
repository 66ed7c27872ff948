/* stop_gradient.c: the op `stop_gradient`: the identity, which back-propagation takes for a constant (PyTorch's detach). */
#include <string.h>

#include "ops/real.h"

#include "ops/op.h"
#include "ops/shape.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    TRY(rm_want_real("stop_gradient", "x", &x[0]));
    *y = x[0];
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)attr, (void)pass;
    *out = rm_cost_streaming(y, 1, 2);
}

static void forward(const remat_call *call) { memcpy(call->y.data, call->x[0].data, rm_desc_bytes(&call->y.desc)); }

static const remat_sample samples[] = {
    {.name = "sequence", .sequence = true, .x = {RM_SHAPE3(RM_REAL, 5, 2, 7)}},
    {.name = "whole", .x = {RM_SHAPE2(RM_REAL, 3, 11)}},
};

const remat_op RM_OP(stop_gradient) = {
    .struct_bytes = sizeof(remat_op),
    .name = "stop_gradient",
    .doc = "y = x, which has no gradient; any shape",
    .n_in = 1,
    .time = REMAT_TIME_POINTWISE,
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .on = {{.forward = forward}, RM_CUDA_FORWARD(stop_gradient)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
    .constant = 1,
};

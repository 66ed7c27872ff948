/* mul.c: the op `mul`: the element-wise product of two values that broadcast. */
#include "ops/elementwise/broadcast.h"

RM_BROADCAST_SHAPES("mul", 5)

static void forward(const remat_call *call) { RM_BROADCAST_FORWARD(call, a * b); }

/* y = a b */
static void backward(const remat_call *call) {
    rm_broadcast_gradient(call, 0, (rm_broadcast_slope){1, RM_TIMES, .other = call->x[rm_broadcast_second(call)].data});
    rm_broadcast_gradient(call, 1, (rm_broadcast_slope){1, RM_TIMES, .other = call->x[A].data});
}

const remat_op RM_OP(mul) = {
    RM_BROADCAST_OP,
    .name = "mul",
    .doc = "y = a b, element by element; shapes broadcast as in NumPy",
    .saves = {.in = 1u << A | 1u << B | 1u << SHARED},
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(mul)},
};

/* sub.c: the op `sub`: the difference of two values that broadcast. */
#include "ops/elementwise/broadcast.h"

RM_BROADCAST_SHAPES("sub", 3)

static void forward(const remat_call *call) { RM_BROADCAST_FORWARD(call, a - b); }

/* y = a - b */
static void backward(const remat_call *call) {
    rm_broadcast_gradient(call, 0, (rm_broadcast_slope){.sign = 1});
    rm_broadcast_gradient(call, 1, (rm_broadcast_slope){.sign = -1});
}

const remat_op RM_OP(sub) = {
    RM_BROADCAST_OP,
    .name = "sub",
    .doc = "y = a - b; shapes broadcast as in NumPy",
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(sub)},
};

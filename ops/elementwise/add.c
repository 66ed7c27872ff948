/* add.c: the op `add`: the sum of two values that broadcast. (If a value is used twice, the engine itself adds its
 * gradients.) */
#include "ops/elementwise/broadcast.h"

RM_BROADCAST_SHAPES("add", 3)

static void forward(const remat_call *call) { RM_BROADCAST_FORWARD(call, a + b); }

/* y = a + b: both gradients are dy. */
static void backward(const remat_call *call) {
    for (int operand = 0; operand < 2; operand++) rm_broadcast_gradient(call, operand, (rm_broadcast_slope){.sign = 1});
}

const remat_op RM_OP(add) = {
    RM_BROADCAST_OP,
    .name = "add",
    .doc = "y = a + b; shapes broadcast as in NumPy",
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(add)},
};

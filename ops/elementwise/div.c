/* div.c: the op `div`: the quotient of two values that broadcast. */
#include "ops/elementwise/broadcast.h"

RM_BROADCAST_SHAPES("div", 5)

static void forward(const remat_call *call) { RM_BROADCAST_FORWARD(call, a / b); }

/* y = a / b, dy/db = -a / b^2 */
static void backward(const remat_call *call) {
    const real *b = call->x[rm_broadcast_second(call)].data;
    rm_broadcast_gradient(call, 0, (rm_broadcast_slope){1, RM_OVER, .other = b});
    rm_broadcast_gradient(call, 1, (rm_broadcast_slope){-1, RM_TIMES, .other = call->x[A].data, .own = b});
}

const remat_op RM_OP(div) = {
    RM_BROADCAST_OP,
    .name = "div",
    .doc = "y = a / b, element by element; shapes broadcast as in NumPy",
    .saves = {.in = 1u << A | 1u << B | 1u << SHARED},
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(div)},
};

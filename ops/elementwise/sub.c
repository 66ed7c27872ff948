/* sub.c: the op `sub`: the difference of two values that broadcast. */
#include "ops/elementwise/broadcast.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    return rm_broadcast_infer("sub", x, y);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    rm_broadcast_cost(x, y, 3, pass, out);
}

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

/* masked.c: the op `masked`: a value with zeros where a mask is not positive, whatever the value and its gradient are there. */
#include <string.h>

#include "ops/elementwise/broadcast.h"

RM_BROADCAST_SHAPES("masked", 4)

static void forward(const remat_call *call) { RM_BROADCAST_FORWARD(call, b > 0 ? a : 0); }

/* y is constant in b, but for its jumps. The gradient of a shared input adds up: there is nothing to add. */
static void backward(const remat_call *call) {
    void *db = call->dx[B].data;
    rm_broadcast_gradient(call, 0,
                          (rm_broadcast_slope){1, RM_WHERE_ON, .other = call->x[rm_broadcast_second(call)].data});
    if (call->x[B].desc.rank >= 0 && db) memset(db, 0, (size_t)rm_desc_count(&call->x[B].desc) * sizeof(real));
}

const remat_op RM_OP(masked) = {
    RM_BROADCAST_OP,
    .name = "masked",
    .doc = "y = a where b > 0, elsewhere 0, also where a is infinite or NaN; shapes broadcast as in NumPy. b has no "
           "gradient",
    .saves = {.in = 1u << B | 1u << SHARED},
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(masked)},
};

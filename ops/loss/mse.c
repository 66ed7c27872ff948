/* mse.c: the mean squared difference of two values of one shape. difference.h has the loops. */
#define VALUE rm_mse_value
#define SLOPE rm_mse_slope
#include "ops/loss/difference.h"

static remat_status infer(const rm_desc *x, const void *attr, rm_desc *y, rm_desc *state) {
    (void)attr, (void)state;
    return infer_difference("mse", x, NULL, y);
}

const rm_op RM_OP(mse) = {
    RM_DIFFERENCE_OP(mse),
    .doc = "y = mean over all elements of (x - target)^2; same shape",
};

/* mse.c: the mean squared difference of two values of one shape. element_loss.h has the loops. */
#define VALUE rm_mse_value
#define SLOPE rm_mse_slope
#define TARGET_SLOPE rm_mse_target_slope
#include "ops/loss/element_loss.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    return infer_elements("mse", x, NULL, y);
}

const remat_op RM_OP(mse) = {
    RM_ELEMENT_LOSS(mse),
    .doc = "y = mean over all elements of (x - target)^2, without padded rows",
};

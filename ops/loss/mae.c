/* mae.c: the mean absolute difference of two values of one shape, torch.nn.functional.l1_loss. element_loss.h has the
 * loops. */
#define VALUE rm_mae_value
#define SLOPE rm_mae_slope
#define TARGET_SLOPE rm_mae_target_slope
#include "ops/loss/element_loss.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    return infer_elements("mae", x, NULL, y);
}

const remat_op RM_OP(mae) = {
    RM_ELEMENT_LOSS(mae),
    .doc = "y = mean over all elements of |x - target|, without padded rows",
};

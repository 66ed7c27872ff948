/* huber.c: the mean of d^2/2 for differences |d| up to delta and of delta (|d| - delta/2) for larger ones,
 * torch.nn.functional.huber_loss. element_loss.h has the loops. */
#define VALUE rm_huber_value
#define SLOPE rm_huber_slope
#define TARGET_SLOPE rm_huber_target_slope
#include "ops/loss/element_loss.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    return infer_elements("huber", x, attr, y);
}

const remat_op RM_OP(huber) = {
    RM_ELEMENT_LOSS(huber),
    .doc = "y = mean over all elements of d^2/2 if |d| <= delta, else delta (|d| - delta/2), without padded rows; "
           "d = x - target",
    .attr_bytes = sizeof(rm_huber_attr),
};

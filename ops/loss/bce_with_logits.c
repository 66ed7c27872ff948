/* bce_with_logits.c: binary cross entropy of logits x and targets in [0,1], PyTorch's BCEWithLogitsLoss, for
 * multi-label classification. element_loss.h has the loops. */
#define VALUE rm_bce_value
#define SLOPE rm_bce_slope
#define TARGET_SLOPE rm_bce_target_slope
#include "ops/loss/element_loss.h"

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr, (void)state;
    return infer_elements("bce_with_logits", x, NULL, y);
}

const remat_op RM_OP(bce_with_logits) = {
    RM_ELEMENT_LOSS(bce_with_logits),
    .doc = "y = mean over all elements of -t log p - (1 - t) log(1 - p), without padded rows; "
           "p = sigmoid(x), t the target",
};

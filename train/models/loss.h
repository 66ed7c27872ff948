/* loss.h: the loss of a model, by the kind of its answers (data/answers.def) and by name (losses.def). */
#ifndef RM_LOSS_H
#define RM_LOSS_H

#include "train/models/model.h"

remat_value rm_model_loss(remat_graph *g, const rm_model_spec *spec, remat_value logits, remat_value target);
/* The loss is a mean over targets that are not ignored: remat_config.loss_mean. */
bool rm_model_counts(const rm_model_spec *spec);
/* Whether the loss of this name has the trait (losses.def). */
bool rm_loss_is(const char *name, const char *trait);

#endif

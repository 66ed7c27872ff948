/* recurrent.h: PyTorch's lstm, gru and rnn, layer by layer (drawn in model.h). */
#ifndef RM_MODELS_RECURRENT_H
#define RM_MODELS_RECURRENT_H

#include "train/models/model.h"

/* A layer in one direction of time over x (T,B,width); with `reverse`, the caller passes x in reversed time. Parameters are named
 * PREFIX.weight_ih_lN and so on. h has rm_recurrent_width numbers. */
remat_value rm_recurrent_layer(remat_graph *g, const rm_model_spec *spec, const char *prefix, int64_t layer,
                               remat_value x, int64_t width, bool reverse);
int64_t rm_recurrent_width(const rm_model_spec *spec);
int64_t rm_recurrent_states(const rm_model_spec *spec); /* number of states that the cell carries from timestep to
                                                           timestep */

#endif

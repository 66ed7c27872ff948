/* recurrent.h: the models lstm, gru and rnn, PyTorch's, in layers (model.h has the picture). */
#ifndef RM_MODELS_RECURRENT_H
#define RM_MODELS_RECURRENT_H

#include "train/models/model.h"

/* INVALID: what cannot be tied, or projected. */
remat_status rm_recurrent_check(const rm_model_spec *spec);

/* A layer in one direction of time, of x (T,B,width) or, where `reverse`, of x in reversed time; its parameters are called
 * PREFIX.weight_ih_lN and so on. Its h has rm_recurrent_width numbers. */
remat_value rm_recurrent_layer(remat_graph *g, const rm_model_spec *spec, const char *prefix, int64_t layer,
                               remat_value x, int64_t width, bool reverse);
int64_t rm_recurrent_width(const rm_model_spec *spec);

/* (T,B,K) or (B,K) of the input, tokens (T,B) or numbers (T,B,F). */
remat_value rm_recurrent_logits(remat_graph *g, const rm_model_spec *spec, remat_value x);

#endif

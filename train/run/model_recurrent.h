/* model_recurrent.h: the models lstm, gru and rnn, PyTorch's, in layers (model.h has the picture). */
#ifndef RM_MODEL_RECURRENT_H
#define RM_MODEL_RECURRENT_H

#include "train/run/model.h"

/* INVALID: what cannot be tied, or projected. */
remat_status rm_recurrent_check(const rm_model_spec *spec);

/* (T,B,K) or (B,K) of the input, tokens (T,B) or numbers (T,B,F). */
remat_value rm_recurrent_logits(remat_graph *g, const rm_model_spec *spec, remat_value x);

#endif

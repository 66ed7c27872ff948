/* minimal.h: the models mingru and minlstm: minLM of minGRU-pytorch with its convolutions, parameters named, shaped and
 * started as there, so that its state_dict is read and written.
 *
 *     token_emb ─ block 0 ─ ... ─ block L-1 ─ norm ─ [last step] ─ to_logits
 *
 *     block    x = x + convolution of x: of each feature over 3 timesteps, then of width 1
 *              x = x + to_out minGRU to_hidden_and_gate norm x, 3/2 as wide inside
 *              x = x + feed forward of norm x, 4 times as wide inside; dropout
 *
 * Numbers come in through a linear layer, `input`, which minLM does not have.
 */
#ifndef RM_MODELS_MINIMAL_H
#define RM_MODELS_MINIMAL_H

#include "train/models/model.h"

remat_status rm_minimal_check(const rm_model_spec *spec); /* INVALID: what these models do not have */
/* (T,B,K) or (B,K) of the input, tokens (T,B) or numbers (T,B,F). */
remat_value rm_minimal_logits(remat_graph *g, const rm_model_spec *spec, remat_value x);

#endif

/* gpt2.h: the model gpt2 (Radford et al. 2019), with the names, shapes and starting distributions of Hugging Face's GPT2LMHeadModel:
 * --layers blocks of --hidden numbers with --heads heads, the head tied to the embedding.
 *
 *     x = wte[token] + wpe[timestep];  each block:  x += c_proj(attention(c_attn(ln_1 x)));  x += c_proj(gelu(c_fc(ln_2 x)))
 *
 * Dropout stands where GPT-2 has it, but for the one within attention. */
#ifndef RM_MODELS_GPT2_H
#define RM_MODELS_GPT2_H

#include "train/models/model.h"

remat_status rm_gpt2_check(const rm_model_spec *spec); /* INVALID: what this model does not have */
/* (T,B,K) of the tokens (T,B). */
remat_value rm_gpt2_logits(remat_graph *g, const rm_model_spec *spec, remat_value x);

#endif

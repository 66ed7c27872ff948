/* translate.h: `remat sample` with a model of --task=seq2seq: reads lines and writes the decoder's output for each. */
#ifndef RM_TRANSLATE_H
#define RM_TRANSLATE_H

#include "train/run/setup.h"

/* Translates --prompt, or each line of standard input, with the weights of `state` or of --init. */
remat_status rm_translate(rm_options *options, const char *state, const rm_state_point *point);

#endif

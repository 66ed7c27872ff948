/* translate.h: what `remat sample` does with a model of --task=seq2seq: reads lines, and writes for each what the decoder makes of it. */
#ifndef RM_TRANSLATE_H
#define RM_TRANSLATE_H

#include "train/run/setup.h"

/* --prompt, or each line of the standard input; with the weights of `state` or of --init. */
remat_status rm_translate(rm_options *options, const char *state, const rm_state_point *point);

#endif

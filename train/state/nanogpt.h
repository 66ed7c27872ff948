/* nanogpt.h: nanoGPT's checkpoints hold GPT-2's products as nn.Linear does, weights (outputs,inputs); Hugging Face's Conv1D and Remat hold
 * them as (inputs,outputs). The other names and shapes are the same but for a prefix. */
#ifndef RM_NANOGPT_H
#define RM_NANOGPT_H

#include "train/state/safetensors.h"

/* Whether the file has nanoGPT's layout. */
bool rm_nanogpt_wrote(const rm_safetensors *file);
/* Whether the array with this name, of ours, is transposed there. */
bool rm_nanogpt_transposes(const char *ours);

#endif

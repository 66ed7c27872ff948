/* presets.h: --preset=NAME: values for flags that the user does not give, one row per preset. A row is for one global batch size
 * (batch x ranks x --accumulate-steps). Without --batch, it becomes this rank's share of that; otherwise the two must agree, unless
 * --scale-lr adapts the learning rate: the row's batch size is then --base-batch. */
#ifndef RM_PRESETS_H
#define RM_PRESETS_H

#include "train/flags/options.h"

typedef struct {
    const char *flag;
    char value[24];
} rm_preset_value;

#define RM_PRESET_VALUES 11
typedef struct {
    char name[32];
    int64_t batch; /* global */
    rm_preset_value value[RM_PRESET_VALUES];
} rm_preset;

/* INVALID: unknown; the message lists the names. */
remat_status rm_preset_find(const char *name, rm_preset *out);

/* For --preset=list: each preset with its flags. */
void rm_presets_print(FILE *out);

/* Sets --batch to the rank's share, or checks it. Call it once options->world_size is the number of ranks and a training state has
 * been read. Does nothing without --preset. */
remat_status rm_preset_share_batch(rm_options *options);

#endif

/* presets.h: --preset=NAME: defaults under the user's own flags, as one row of flags and values each. A row is for one global
 * batch (batch x ranks x --accumulate-steps). Where --batch is not given it becomes this rank's share of that; otherwise they
 * must agree, unless --scale-lr says how the learning rate follows another batch: the row's is then --base-batch. */
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

/* INVALID lists the names. */
remat_status rm_preset_find(const char *name, rm_preset *out);

/* For --preset=list: each as the flags that it stands for. */
void rm_presets_print(FILE *out);

/* Sets --batch to its share, or checks it: once the number of ranks is in options->world_size, and a training state has
 * been looked at. Nothing to do without --preset. */
remat_status rm_preset_share_batch(rm_options *options);

#endif

/* part.h: --eval-split: a share of the samples of a data set is evaluated on, the others are trained on. Each of the two parts is a
 * data set by itself, a view of the whole one. */
#ifndef RM_PART_H
#define RM_PART_H

#include "train/data/dataset.h"

typedef struct {
    double share; /* of the samples, for evaluations; rounded to whole samples */
    bool random;  /* drawn as by PyTorch's random_split; false: the last samples */
    int64_t seed; /* of the draw */
} rm_split;

/* "0.1" or "0.1:random". INVALID: neither, or not a share between 0 and 1. */
remat_status rm_split_parse(const char *text, rm_split *out);

/* The part that is trained on, or with `held_out` that for evaluations. It owns `whole`, also after an error. INVALID when a part has
 * no samples. */
remat_status rm_part_open(rm_dataset *whole, const rm_split *split, bool held_out, rm_dataset **out);

#endif

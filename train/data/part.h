/* part.h: --eval-split: splits the samples of a data set into a part for training and a part for evaluation. Each part is a data set,
 * a view of the whole one. */
#ifndef RM_PART_H
#define RM_PART_H

#include "train/data/dataset.h"

typedef struct {
    double share; /* of the samples, for evaluation; rounded to whole samples */
    bool random;  /* random samples, the same as PyTorch's random_split; false: the last samples */
    int64_t seed; /* for random samples */
} rm_split;

/* Parses "0.1" or "0.1:random". INVALID: malformed, or not between 0 and 1. */
remat_status rm_split_parse(const char *text, rm_split *out);

/* Opens the part for training, or with `held_out` the part for evaluation. It takes ownership of `whole`, even after an error.
 * INVALID when a part has no samples. */
remat_status rm_part_open(rm_dataset *whole, const rm_split *split, bool held_out, rm_dataset **out);

#endif

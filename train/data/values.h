/* values.h: labels that are numbers, for regress: what an answer is follows from their shape.
 *
 *     (N), (N,V)      a sample has one answer, of V numbers
 *     (N,T,V)         each timestep has one; (N,T) too, where --every-step says so */
#ifndef RM_VALUES_H
#define RM_VALUES_H

#include "train/data/dataset.h"

typedef struct {
    float *value;         /* (N,V) or (N,T,V) in row-major order; freed with rm_free */
    int64_t steps, width; /* T, or 1; V */
    bool every_step;
} rm_values;

/* Of `count` samples of `timesteps` each, from source->labels. INVALID where they do not fit those, or source->values, or are
 * no numbers. Of samples that end earlier (`lengths`, (count); NULL: none does) what is there behind the end is not read, and 0. */
remat_status rm_values_read(const rm_data_source *source, int64_t count, int64_t timesteps, const int32_t *lengths,
                            rm_values *out);

#endif

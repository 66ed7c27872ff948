/* class_weights.h: what each class counts in the loss: --class-weights=0.5,1,2, or the name of a file of them (.npy, (K)). */
#ifndef RM_CLASS_WEIGHTS_H
#define RM_CLASS_WEIGHTS_H

#include "engine/status.h"

/* *weights is the caller's, of `classes` numbers, freed with rm_free. `budget` as in rm_data_source. INVALID where there are not so
 * many, one is negative or no number, or all are 0. */
remat_status rm_class_weights_read(const char *text, uint64_t budget, int64_t classes, float **weights);

#endif

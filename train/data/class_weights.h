/* class_weights.h: what each class counts in the loss: --class-weights=0.5,1,2, or the name of a file of them (.npy, (K)). */
#ifndef RM_CLASS_WEIGHTS_H
#define RM_CLASS_WEIGHTS_H

#include "train/data/dataset.h"

/* Into the data set, one for each of its classes, before batches are made of it. `budget` as in rm_data_source. INVALID where there
 * are not so many, one is negative or no number, or all are 0. */
remat_status rm_class_weights_read(const char *text, uint64_t budget, rm_dataset *dataset);

#endif

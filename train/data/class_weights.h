/* class_weights.h: the loss weight of each class: --class-weights=0.5,1,2, or the path of a file (.npy, (K)). */
#ifndef RM_CLASS_WEIGHTS_H
#define RM_CLASS_WEIGHTS_H

#include "train/data/dataset.h"

/* Sets the weights of the data set, one per class. Call it before creating batches. `budget` as in rm_data_source. INVALID when
 * the count is not the number of classes, a weight is negative or not a number, or all are 0. */
remat_status rm_class_weights_read(const char *text, uint64_t budget, rm_dataset *dataset);

#endif

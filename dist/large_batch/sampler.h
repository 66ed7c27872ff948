/* sampler.h: cuts a rank's samples into batches like PyTorch's BatchSampler. Which samples a rank gets is part of the
 * public interface: remat_sampler in engine/remat.h, implemented in sampler.c. Both are pure arithmetic: only the epoch
 * and the position in it need to be saved. train/data/loader.h combines them for training. */
#ifndef RM_SAMPLER_H
#define RM_SAMPLER_H

#include "engine/status.h"

/* Of a rank's `samples`, batch k contains samples k * batch, k * batch + 1, ... The last one may be shorter, or is
 * dropped. The number of batches, and the length of one of them. */
int64_t rm_batch_count(int64_t samples, int64_t batch, bool drop_last);
int64_t rm_batch_length(int64_t samples, int64_t batch, int64_t k);

#endif

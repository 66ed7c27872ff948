/* sampler.h: batches of a rank's samples, as PyTorch's BatchSampler cuts them. Which samples a rank has is part of the public
 * interface: remat_sampler in engine/remat.h, which sampler.c makes. Pure arithmetic: nothing to save but the epoch and how
 * far it has got. What training makes of both is train/data/loader.h's business. */
#ifndef RM_SAMPLER_H
#define RM_SAMPLER_H

#include "engine/status.h"

/* Of `samples` of one rank, batch k has samples k * batch, k * batch + 1, ...; the last may be shorter, or is left out. How many
 * batches there are, and the length of one of them. */
int64_t rm_batch_count(int64_t samples, int64_t batch, bool drop_last);
int64_t rm_batch_length(int64_t samples, int64_t batch, int64_t k);

#endif

/* sampler.h: which samples a rank sees, and in what order: PyTorch's DistributedSampler, index for index, so that a run
 * here and a run there read the same data. Pure arithmetic on (n, seed, epoch, replicas, rank): nothing to save but the
 * epoch and how far it has got. Its BatchSampler is at the end. What training makes of both is train/loader.h's business.
 *
 *   order      = shuffle ? a permutation of 0..n-1 drawn from seed + epoch : 0..n-1
 *   padded     = order[k mod n] for k < total   (drop_last: the first `total` of order)
 *   rank r has padded[r], padded[r + W], padded[r + 2W], ...
 */
#ifndef RM_SAMPLER_H
#define RM_SAMPLER_H

#include "engine/status.h"

typedef struct {
    int64_t n; /* samples in the data set, 1 .. 2^32-1 */
    int64_t replicas, rank;
    int64_t seed;
    bool shuffle, drop_last;
} rm_sampler_config;

typedef struct rm_sampler rm_sampler;

/* The order of epoch 0. INVALID names what is wrong in the config; MEMORY: 4 bytes a sample are needed. */
remat_status rm_sampler_create(const rm_sampler_config *config, rm_sampler **out);
void rm_sampler_free(rm_sampler *sampler);

void rm_sampler_set_epoch(rm_sampler *sampler, int64_t epoch); /* epoch >= 0; redraws the order, allocates nothing */
int64_t rm_sampler_count(const rm_sampler *sampler);           /* samples of this rank in one epoch; may be 0 */
int64_t rm_sampler_at(const rm_sampler *sampler, int64_t k);   /* the k-th sample of this rank, 0 <= k < count */

/* PyTorch's BatchSampler over `samples` of one rank: batch k is samples k * batch, k * batch + 1, ...; the last may be
 * shorter, or is left out. Batches there are, and the length of one of them. */
int64_t rm_batch_count(int64_t samples, int64_t batch, bool drop_last);
int64_t rm_batch_length(int64_t samples, int64_t batch, int64_t k);

#endif

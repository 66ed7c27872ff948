/* loader.h: divides the order of dist/large_batch/sampler.h among ranks, and cuts it into batches (batch.h). It tracks the
 * position of the run and can start at any position, on any number of ranks.
 *
 * The G samples of one update, its global batch, are consecutive in the epoch's order. With W ranks, B samples (--batch) on each
 * and K micro steps:
 *
 *   plain   G = W B K. Micro step t of rank r has order[consumed + t W B + r + W i], i = 0 .. B-1: the same batches as PyTorch's
 *           DistributedSampler and DataLoader give to rank r.
 *   shards  G = W B. Rank r has order[consumed + r + W k], k = 0 .. B-1, and divides it into V/W = K micro batches of B/K samples:
 *           the t-th has k = j + K i, j = remat_micro_shard(t), which are the samples of rank v = r + W j of V.
 *   stateful  G = W B K. The data is divided into W B equal parts. Row r + W i reads part r + W i, one sample per micro step, so
 *           each sample continues the previous one, except at the start of an epoch: PyTorch's batchify.
 *
 * An epoch ends when fewer than G samples are left; they are dropped (PyTorch's drop_last). With `pad`, up to W-1 samples from the
 * start of the epoch first make the number of samples a multiple of W, as DistributedSampler does by default.
 *
 * The position is `consumed`: the number of samples of this epoch that all ranks together have used. It does not depend on W, B
 * or K, so a run that is resumed on other ranks in the middle of an epoch repeats no sample and skips none. */
#ifndef RM_LOADER_H
#define RM_LOADER_H

#include "dist/large_batch/sampler.h"
#include "train/data/batch.h"
#include "train/data/by_length.h"
#include "train/data/workers.h"

typedef struct {
    int64_t batch; /* B */
    int64_t seed;
    bool shuffle, pad;
    int64_t rank, size;  /* r, W; size 0: 1 */
    int64_t micro_steps; /* K; 0: 1 */
    int64_t shards;      /* V = W K, all powers of two: the same bits for any W; 0: plain */
    bool stateful;       /* rows continue from batch to batch */
    int64_t threads;     /* worker threads that prepare the next batch, if the data allows several; 0: none */
    bool by_length;      /* group samples of similar length (by_length.h), if the data has lengths */
} rm_loader_config;

typedef struct {
    int64_t epoch, consumed; /* start of an update; consumed <= samples */
    int64_t micro;           /* index of the micro step */
} rm_loader_place;

typedef struct {
    rm_batch batch; /* of one micro step: sessions are planned for batch.batch samples */
    remat_sampler *sampler;
    rm_by_length *by_length; /* NULL: the sampler's order */
    rm_loader_config config;
    int64_t samples;         /* in the data set */
    int64_t global;          /* G: samples per update, on all ranks */
    int64_t per_epoch;       /* updates in a whole epoch */
    int64_t epoch, consumed; /* start of the next update; consumed <= samples */
    int64_t micro;           /* the next micro step of that update */
    bool begins;             /* the batch does not continue the previous one */
    /* The batch that is being prepared: */
    rm_workers *workers; /* NULL: no threads */
    bool under_way;
    rm_loader_place filling;
    uint32_t *sample; /* sample index of each row */
    rm_batch spare;   /* with threads: the buffer that is filled, then swapped with `batch` */
} rm_loader;

/* `dataset` is borrowed. INVALID when it has fewer samples than an update needs, or B is not divisible by K. Free even after an
 * error. With threads, the loader must not move in memory. */
remat_status rm_loader_create(rm_dataset *dataset, const rm_loader_config *config, rm_loader *out);
void rm_loader_free(rm_loader *loader);
remat_status rm_loader_seek(rm_loader *loader, int64_t epoch, int64_t consumed);
/* Fills the batch with the samples of the next micro step, in the next epoch if this one has ended. */
remat_status rm_loader_next(rm_loader *loader);
/* Updates from the current position to the end of epoch `epochs`; 0 when that is reached. */
int64_t rm_loader_left(const rm_loader *loader, int64_t epochs);

#endif

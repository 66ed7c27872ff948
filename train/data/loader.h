/* loader.h: the order of dist/large_batch/sampler.h, shared out among ranks and cut into batches (batch.h). Knows how far the run
 * has got, and can start there again, on any number of ranks.
 *
 * The samples of one update, its global batch, lie one after the other in the epoch's order. W ranks, B samples (--batch)
 * on each, K micro steps:
 *
 *   plain   G = W B K of them. Micro step t of rank r has order[consumed + t W B + r + W i], i = 0 .. B-1: what PyTorch's
 *           DistributedSampler and a DataLoader give rank r, batch for batch.
 *   shards  G = W B. Rank r has order[consumed + r + W k], k = 0 .. B-1, and cuts it into V/W = K micro batches of B/K: the
 *           t-th has k = j + K i, j = remat_micro_shard(t). So it has what rank v = r + W j of V would have had.
 *   stateful  G = W B K. Row r + W i, of W B, reads the i-th of equal stretches of the data, one sample a micro step: PyTorch's
 *           batchify. Its samples go on where the one before ended, but for an epoch's first.
 *
 * An epoch ends when fewer than G samples are left; those are dropped (as with PyTorch's drop_last). With `pad` up to W-1
 * samples from the epoch's beginning may fill the ranks' last samples up, as DistributedSampler does by default; what then
 * is still too few for G is dropped all the same.
 *
 * A position is `consumed`: samples of this epoch that all ranks together have had. It means the same for any W, B and K, so
 * a run that is resumed on other ranks in the middle of an epoch repeats no sample and skips none. */
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
    bool stateful;       /* rows go on from batch to batch */
    int64_t threads; /* that make the next batch while this one is computed; 0: none, where the data can do with many */
    bool by_length;  /* samples of like lengths beside each other (by_length.h), of data that knows lengths */
} rm_loader_config;

typedef struct {
    int64_t epoch, consumed; /* where an update begins; consumed <= samples */
    int64_t micro;           /* of its micro steps */
} rm_loader_place;

typedef struct {
    rm_batch batch; /* of a micro step: sessions are planned for batch.batch samples */
    remat_sampler *sampler;
    rm_by_length *by_length; /* NULL: in the sampler's order */
    rm_loader_config config;
    int64_t samples;         /* in the data set */
    int64_t global;          /* G: samples of an update, on all ranks */
    int64_t per_epoch;       /* updates in a whole epoch */
    int64_t epoch, consumed; /* where the next update begins; consumed <= samples */
    int64_t micro;           /* the next micro step, of that update */
    bool begins;             /* the batch's samples do not go on where those of the batch before ended */
    /* Of a batch that is being made: where its samples lie, into which buffers. */
    rm_workers *workers; /* NULL: there are no threads */
    bool under_way;
    rm_loader_place filling;
    uint32_t *sample; /* by row */
    rm_batch spare;   /* with threads; it and `batch` change places */
} rm_loader;

/* Over all of `dataset`, which is borrowed. INVALID when it has fewer samples than an update needs, or B cannot be cut into
 * K parts. Free in any case. With threads it must not move. */
remat_status rm_loader_create(rm_dataset *dataset, const rm_loader_config *config, rm_loader *out);
void rm_loader_free(rm_loader *loader);
remat_status rm_loader_seek(rm_loader *loader, int64_t epoch, int64_t consumed);
/* Fills the batch with the samples of the next micro step, going on to the next epoch where one ends. */
remat_status rm_loader_next(rm_loader *loader);
/* Updates from where it is until `epochs` epochs have ended; 0 when they have. */
int64_t rm_loader_left(const rm_loader *loader, int64_t epochs);

#endif

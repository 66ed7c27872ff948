/* by_length.h: an epoch's order that groups samples of similar length (--bucket-by-length). The sampler's order is split into pools.
 * Each pool is sorted by length (pairs: source length, then target length) and split into buckets from a random offset, with
 * wrap-around. Seed and epoch determine the order of the buckets. A batch therefore spans one or two buckets. The order does not
 * depend on batch size or ranks: a position names the same sample on every rank. */
#ifndef RM_BY_LENGTH_H
#define RM_BY_LENGTH_H

#include "dist/large_batch/sampler.h"
#include "train/data/dataset.h"

enum { RM_POOL = 4096, RM_BUCKET = 256 }; /* samples */

typedef struct {
    uint32_t sample;
    int32_t length, answer; /* answer: the target's length for pairs, else 0 */
    int32_t place;          /* position in the pool before sorting */
} rm_long_sample;

typedef struct {
    const rm_dataset *dataset;    /* borrowed; one with `length` */
    const remat_sampler *sampler; /* borrowed */
    uint64_t seed;
    bool shuffle;        /* shuffle buckets; otherwise order them by length */
    int64_t epoch, pool; /* those in `sorted`; -1: none */
    rm_long_sample sorted[RM_POOL];
    uint32_t turn;                       /* offset in `sorted` of the first bucket */
    int32_t bucket[RM_POOL / RM_BUCKET]; /* in epoch order */
} rm_by_length;

/* The sample at `position`, 0 .. dataset->count-1, of the epoch that the sampler is set to. Not thread-safe. */
int64_t rm_by_length_at(rm_by_length *order, int64_t epoch, int64_t position);

#endif

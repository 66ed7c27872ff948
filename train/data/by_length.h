/* by_length.h: an epoch's order with samples of like lengths beside each other (--bucket-by-length). The sampler's order is cut into
 * pools; a pool is sorted by length (of pairs by the source's, then by the target's), and cut into buckets, beginning anywhere and going
 * round, which come in an order drawn from seed and epoch. So a batch has samples of one bucket, or two. The order does not depend on
 * batches or ranks: a position in it means the same to any of them. */
#ifndef RM_BY_LENGTH_H
#define RM_BY_LENGTH_H

#include "dist/large_batch/sampler.h"
#include "train/data/dataset.h"

enum { RM_POOL = 4096, RM_BUCKET = 256 }; /* samples */

typedef struct {
    uint32_t sample;
    int32_t length, answer; /* answer: of pairs, the target's; else 0 */
    int32_t place;          /* in the pool, before it was sorted */
} rm_long_sample;

typedef struct {
    const rm_dataset *dataset;   /* borrowed; one with `length` */
    const remat_sampler *sampler; /* borrowed */
    uint64_t seed;
    bool shuffle;                 /* buckets; else they come by length */
    int64_t epoch, pool;          /* that is sorted; -1: none */
    rm_long_sample sorted[RM_POOL];
    uint32_t turn;                       /* where in `sorted` the first bucket begins */
    int32_t bucket[RM_POOL / RM_BUCKET]; /* in the order in which they come */
} rm_by_length;

/* The sample in this position, 0 .. dataset->count-1, of the epoch whose order the sampler has. Not for several threads at once. */
int64_t rm_by_length_at(rm_by_length *order, int64_t epoch, int64_t position);

#endif

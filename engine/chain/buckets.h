/* buckets.h: orders parameters as the backward pass finishes their gradients, cuts them into buckets, and finds when
 * each bucket is final. resident.c lays out parameters, gradients and optimizer state in this order; the executor
 * passes on a bucket when it is final. Main entries: rm_buckets_cut before the programs are written,
 * rm_buckets_find_final after.
 *
 *     bucket 0                          bucket 1
 *     | head.bias | head.weight | 0 0 | rnn.bias_hh | ... | 0 |      the same in parameters and in gradients
 *     |  part of rank 0  |  of rank 1  |  of rank 0  |  of 1  |
 *
 * The order is estimated from the graph, by the first node that reads a parameter. The moment at which a bucket is final
 * is exact, because it is taken from the programs that will run. A wrong estimate costs overlap, never correctness. */
#ifndef RM_BUCKETS_H
#define RM_BUCKETS_H

#include "engine/chain/chain.h"

/* Fills chain->at.buckets, after nodes have been ordered and stages cut. Calls ranks->agree, if it is set. */
remat_status rm_buckets_cut(rm_chain *chain, const remat_ranks *ranks);

/* Fills `stage` and `after` of each bucket, after the programs have been written. */
void rm_buckets_find_final(rm_chain *chain);

/* This rank's part of a bucket: its length, and its start relative to the bucket's, in floats. */
static inline int64_t rm_part_count(const rm_buckets *buckets, const rm_bucket *bucket) {
    return bucket->count / buckets->parts;
}
static inline int64_t rm_part_at(const rm_buckets *buckets, const rm_bucket *bucket) {
    return buckets->rank * rm_part_count(buckets, bucket);
}

#endif

/* buckets.h: parameters in the order in which the backward pass is done with their gradients, cut into buckets; and when it
 * is done with each bucket. resident.c puts parameters, gradients and the optimizer's state where this says; the executor
 * stops for a bucket where this says. Main entries: rm_buckets_cut before the programs are written, rm_buckets_find_final
 * after.
 *
 *     bucket 0                          bucket 1
 *     | head.bias | head.weight | 0 0 | rnn.bias_hh | ... | 0 |      the same in parameters and in gradients
 *     |  part of rank 0  |  of rank 1  |  of rank 0  |  of 1  |
 *
 * The order is a guess from the graph: which node reads a parameter first. When a bucket is final is not: it is read off the
 * programs that will run. So a wrong guess would cost overlap, never a sum. */
#ifndef RM_BUCKETS_H
#define RM_BUCKETS_H

#include "engine/chain/chain.h"

/* Fills chain->at.buckets. The nodes are ordered, the stages cut; calls ranks->agree, if there is one. */
remat_status rm_buckets_cut(rm_chain *chain, const remat_ranks *ranks);

/* Fills in stage and after. The programs are written. */
void rm_buckets_find_final(rm_chain *chain);

/* This rank's part of a bucket: where it begins, in floats from the bucket's begin, and how long it is. */
static inline int64_t rm_part_count(const rm_buckets *buckets, const rm_bucket *bucket) {
    return bucket->count / buckets->parts;
}
static inline int64_t rm_part_at(const rm_buckets *buckets, const rm_bucket *bucket) {
    return buckets->rank * rm_part_count(buckets, bucket);
}

#endif

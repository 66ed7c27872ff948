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

#include "memory/problem.h"

struct rm_chain;
struct rm_program;

typedef struct {
    int32_t value; /* id in the graph */
    int32_t bucket; /* -1: it is frozen */
    int64_t at, count;   /* floats: where it begins, from the section's begin; how many */
    int64_t first, held; /* of its elements, those in this rank's part: all, unless the optimizer is sharded */
    double lr_factor, weight_decay; /* of its group (groups.c) */
    uint8_t used;        /* the loss depends on it, on some rank, and it is to be trained */
} rm_parameter;

/* Final after `after[option]` instructions of the backward program of `stage`; stage -1: of the epilogue, after[0]. */
typedef struct {
    int64_t at, count;             /* floats, from the section's begin */
    int32_t first_param, n_params; /* positions in `order` */
    int64_t stage;
    int32_t after[RM_MAX_OPTIONS];
} rm_bucket;

typedef struct {
    rm_parameter *param; /* n_params, in order of definition */
    int32_t *order;      /* positions in `param` of those that are trained, in the order of the layout */
    rm_bucket *item;
    int32_t n_params, n;
    int32_t n_trained;   /* of n_params; the others are frozen, and in no bucket */
    int32_t rank, parts; /* of how many equal parts of a bucket which is this rank's; 0 of 1: not sharded */
    int64_t count;       /* floats of a section: of all buckets */
} rm_buckets;

/* Fills chain->at.buckets. The nodes are ordered, the stages cut; calls ranks->agree, if there is one. */
remat_status rm_buckets_cut(struct rm_chain *chain, const remat_ranks *ranks);
void rm_buckets_free(rm_buckets *buckets);

/* Fills in stage and after. The programs are written. */
void rm_buckets_find_final(struct rm_chain *chain);

/* This rank's part of a bucket: where it begins, in floats from the bucket's begin, and how long it is. */
static inline int64_t rm_part_count(const rm_buckets *buckets, const rm_bucket *bucket) {
    return bucket->count / buckets->parts;
}
static inline int64_t rm_part_at(const rm_buckets *buckets, const rm_bucket *bucket) {
    return buckets->rank * rm_part_count(buckets, bucket);
}

#endif

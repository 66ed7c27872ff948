/* nccl_tree.h: RM_TREE over NCCL, which has no sum in a given order: a sequence of sums of two ranks. */
#ifndef RM_NCCL_TREE_H
#define RM_NCCL_TREE_H

#include "dist/nccl/nccl_comm.h"

enum { RM_NCCL_TREE_LEVELS = 14 }; /* rank numbers have 15 bits */

/* pairs[k] connects this rank with rank XOR (size/2 >> k). Created by the first sum that needs them. */
typedef struct {
    ncclComm_t pairs[RM_NCCL_TREE_LEVELS];
    int levels;
} rm_nccl_tree;

typedef struct {
    ncclDataType_t type; /* a type in which x + y = y + x */
    size_t count, bytes;
    const void *in;
    void *out; /* may equal `in` */
} rm_nccl_sum;

/* out = the sum of all ranks' in, in the order of RM_TREE (group.h), on every rank; size is a power of two. Runs
 * log2(size) all-reduces between two ranks each, one after the other, and returns when the sum is complete. */
remat_status rm_nccl_tree_sum(rm_nccl *nccl, rm_nccl_tree *tree, ncclComm_t world, int rank, int size,
                              const rm_nccl_sum *sum);

void rm_nccl_tree_end(rm_nccl *nccl, rm_nccl_tree *tree, void (*end)(rm_nccl *nccl, ncclComm_t *comm));

#endif

/* nccl_tree.h: RM_TREE over NCCL, which has no sum in a given order: as a sequence of sums of two. */
#ifndef RM_NCCL_TREE_H
#define RM_NCCL_TREE_H

#include "dist/nccl/nccl_comm.h"

enum { RM_NCCL_TREE_LEVELS = 14 }; /* ranks are numbered by 15 bits */

/* pairs[k] joins this rank with rank XOR (size/2 >> k). Made by the first sum that wants them. */
typedef struct {
    ncclComm_t pairs[RM_NCCL_TREE_LEVELS];
    int levels;
} rm_nccl_tree;

typedef struct {
    ncclDataType_t type; /* one in which x + y = y + x */
    size_t count, bytes;
    const void *in;
    void *out; /* may be in */
} rm_nccl_sum;

/* out = the sum of all ranks' in, in the order of RM_TREE (group.h), on every rank; size is a power of two. Costs log2(size)
 * all-reduces between two ranks each, one after the other; returns when it is there. */
remat_status rm_nccl_tree_sum(rm_nccl *nccl, rm_nccl_tree *tree, ncclComm_t world, int rank, int size,
                              const rm_nccl_sum *sum);

void rm_nccl_tree_end(rm_nccl *nccl, rm_nccl_tree *tree, void (*end)(rm_nccl *nccl, ncclComm_t *comm));

#endif

/* nccl_tree.c: rm_nccl_tree_sum, which has the same order for any number of ranks.
 *
 * t(r) = t(r) + t(r + w) for all r < w, with w = W/2, W/4, ..., 1. If ranks r and r + w both compute this sum, every
 * rank of the upper half equals one of the lower half and can continue like it. Level w then is an all-reduce between
 * each rank and rank XOR w. W = 4:
 *
 *     rank   0    1    2    3          w = 2: (0,2) (1,3)       w = 1: (0,1) (2,3)
 *          x0   x1   x2   x3   ──►  x0+x2 x1+x3 x0+x2 x1+x3  ──►  (x0+x2)+(x1+x3) on all
 *
 * A sum of two is a single addition, which is commutative: the bits are those of the definition whichever operand comes
 * first in NCCL. */
#include "dist/nccl/nccl_tree.h"

static remat_status meet(rm_nccl *nccl, rm_nccl_tree *tree, ncclComm_t world, int rank, int size) {
    for (int width = size >> (tree->levels + 1); width > 0; width /= 2, tree->levels++)
        TRY(rm_nccl_split(nccl, world, rank & ~width, rank, &tree->pairs[tree->levels]));
    return REMAT_OK;
}

static remat_status copy(rm_nccl *nccl, const rm_nccl_sum *sum) {
    if (sum->in == sum->out) return REMAT_OK;
    cudaError_t error =
        nccl->lib->cudaMemcpyAsync(sum->out, sum->in, sum->bytes, cudaMemcpyDeviceToDevice, nccl->stream);
    return rm_cuda_check(nccl->lib, error, "copying on the GPU");
}

remat_status rm_nccl_tree_sum(rm_nccl *nccl, rm_nccl_tree *tree, ncclComm_t world, int rank, int size,
                              const rm_nccl_sum *sum) {
    TRY(meet(nccl, tree, world, rank, size));
    TRY(copy(nccl, sum));
    for (int level = 0; level < tree->levels; level++) {
        ncclComm_t pair = tree->pairs[level];
        TRY(rm_nccl_issued(
            nccl, pair,
            nccl->lib->ncclAllReduce(sum->out, sum->out, sum->count, sum->type, ncclSum, pair, nccl->stream)));
        /* Waits for each pair before the next, since only one communicator is polled for failures */
        TRY(rm_nccl_drain(nccl, pair));
    }
    return REMAT_OK;
}

void rm_nccl_tree_end(rm_nccl *nccl, rm_nccl_tree *tree, void (*end)(rm_nccl *nccl, ncclComm_t *comm)) {
    while (tree->levels > 0) end(nccl, &tree->pairs[--tree->levels]);
}

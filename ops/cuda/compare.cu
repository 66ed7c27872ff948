/* compare.cu: the kernels of compare.h. Two launches: partial sums, one per block; then their sum, which is stored or
 * compared. Atomic additions would give the same bits here, as integer sums do not depend on order; they are not
 * needed. */
#include "ops/cuda/reduce.cuh"

static __global__ void add_terms(const void *state, uint64_t bytes, uint64_t seed, uint64_t *partial) {
    const uint64_t *word = (const uint64_t *)state;
    const int64_t whole = (int64_t)(bytes / 8);
    uint64_t sum = 0;
    RM_EACH(i, whole) sum += rm_compare_term(word[i], i, seed);
    if (bytes % 8 && blockIdx.x == 0 && threadIdx.x == 0)
        sum += rm_compare_term(((const uint32_t *)state)[2 * whole], whole, seed);
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* One warp. */
static __global__ void settle(const uint64_t *partial, int64_t n, rm_comparison check) {
    uint64_t sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += RM_WARP) sum += partial[i];
    sum = rm_warp_sum(sum);
    if (threadIdx.x == 0) rm_compare_settle(&check, sum);
}

void rm_compare_cuda(const rm_cuda_queue *queue, const rm_comparison *check) {
    uint64_t *partial = (uint64_t *)queue->partial;
    int64_t blocks = rm_blocks_within((int64_t)(check->bytes + 7) / 8, 4 * RM_SUM_THREADS, RM_CUDA_PARTIALS);
    RM_LAUNCH_TOGETHER(add_terms, blocks, RM_SUM_THREADS, queue, check->state, check->bytes, check->seed, partial);
    RM_LAUNCH_TOGETHER(settle, 1, RM_WARP, queue, partial, blocks, *check);
}

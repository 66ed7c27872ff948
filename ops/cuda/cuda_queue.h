/* cuda_queue.h: the type behind remat_call.queue on a CUDA device. engine/cuda/device.c owns the queues; the launchers
 * in the .cu files (ops/cuda/kernel.cuh) use them. This header names no CUDA types, so C files can include it without
 * the toolkit. */
#ifndef RM_CUDA_QUEUE_H
#define RM_CUDA_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/cuda/compare.h"
#include "ops/optimizers/optimizer.h"

/* Long arrays are summed in two launches: first at most this many partial sums, each over a part whose length depends
 * on the array's length alone; then the sum of these in order. */
#define RM_CUDA_PARTIALS 1024
/* For partial sums of all kinds. */
#define RM_CUDA_PARTIAL_BYTES (256 << 10)

/* C (m,n) = A B, or with `add` C += A B: row-major, in device memory; rows of a matrix start ld numbers
 * apart. A is (m,k), stored (k,m) if transpose_a; B is (k,n), stored (n,k) if transpose_b.
 *
 * m, n and k are 1 or more, and C overlaps neither A nor B.
 *
 * `rows_like`: each row of C has the same bits as in a product of rows_like rows (with the same n, k, transpositions
 * and add); 0: no such requirement. So one product can rebuild the gates of a whole tile bit-identically to the
 * products of single timesteps. Requirements: m is a multiple of rows_like, A is not transposed, and the operands of
 * both products have the same alignment: ld and the address of each group of rows_like rows are multiples of 4 numbers,
 * of 2, or neither, in both alike.
 *
 * `batch`: so many products of this shape, whose matrices start stride_a, stride_b and stride_c numbers apart; 0 or 1:
 * one, and strides have no effect. A and B may be shared (0 apart), the C must not overlap. rows_like is 0 then. */
typedef struct {
    const float *a, *b;
    float *c;
    int64_t m, n, k, lda, ldb, ldc, rows_like;
    bool transpose_a, transpose_b, add;
    int64_t batch, stride_a, stride_b, stride_c;
} rm_cuda_product;

typedef struct rm_cuda_queue {
    void *stream;    /* cudaStream_t: launches go here, in order */
    double *partial; /* RM_CUDA_PARTIAL_BYTES of device memory, for work on this queue alone */
    int clusters; /* clusters of 16 blocks (cluster.cuh), one block per multiprocessor, that run at once; 0: launchers must
                     not use clusters */

    /* cuBLAS, or plain loops in the tests. The same call gives the same bits. */
    void (*multiply)(const struct rm_cuda_queue *, const rm_cuda_product *);

    /* A launcher with many small launches brackets them, so that they are recorded as one CUDA graph:
     *     if (rm_cuda_begin(queue, call, sizeof *call)) { launches; rm_cuda_end(queue); }
     * `key` holds everything that the launches depend on: shapes, addresses. If a graph was recorded under the same
     * key, begin launches it and returns false; so the kernels follow one another without gaps. NULL: no recording,
     * every launch goes out by itself. */
    bool (*begin)(const struct rm_cuda_queue *, const void *key, size_t bytes);
    void (*end)(const struct rm_cuda_queue *);
} rm_cuda_queue;

static inline bool rm_cuda_begin(const rm_cuda_queue *queue, const void *key, size_t bytes) {
    return !queue->begin || queue->begin(queue, key, bytes);
}
static inline void rm_cuda_end(const rm_cuda_queue *queue) {
    if (queue->end) queue->end(queue);
}

/* rm_sum_of_squares on CUDA. Queued: it overwrites *sum, one double in device memory. */
void rm_sum_of_squares_cuda(const rm_cuda_queue *queue, const float *x, int64_t n, double *sum);

/* Queues the check. */
void rm_compare_cuda(const rm_cuda_queue *queue, const rm_comparison *check);

/* The value of rm_cuda_queue.clusters for this thread's current GPU. */
int rm_clusters_cuda(void);

/* 0 if this build has kernels for this thread's current GPU, else the CUDA error that launching one would
 * give. All kernels are compiled for the same GPUs, so only one is queried. */
int rm_kernels_error_cuda(void);

#endif

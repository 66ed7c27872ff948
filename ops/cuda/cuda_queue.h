/* cuda_queue.h: what remat_call.queue points to on a CUDA device: what the launchers in ops/NAME.cu (ops/cuda/kernel.cuh) need of a
 * queue that engine/cuda/device.c owns. No CUDA type is named here, so that C files which know no toolkit can read it. */
#ifndef RM_CUDA_QUEUE_H
#define RM_CUDA_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/cuda/compare.h"
#include "ops/optimizers/optimizer.h"

/* Sums of long arrays are made in two launches: at most so many partial sums, each of a part of the array whose length
 * follows from the array's, then their sum in order. */
#define RM_CUDA_PARTIALS 1024

/* C (m,n) = A B, or with `add` C += A B: row-major, in device memory; a row of a matrix begins ld numbers after the one
 * before. A is (m,k), stored (k,m) if transpose_a; B is (k,n), stored (n,k) if transpose_b.
 *
 * m, n and k are 1 or more, and C overlaps neither A nor B.
 *
 * `rows_like`: a row of C has the bits that it has in a product of rows_like rows (and of the same n, k, transpositions,
 * add); 0: this product stands for itself. A whole tile's gates are rebuilt by one product that way, to the bits that the
 * products of single timesteps left. m is a multiple of it, A is not transposed, and both products' operands are aligned
 * alike: whether ld, and the address of each rows_like rows, are multiples of 4 numbers, of 2, or neither, is the same for
 * both. */
typedef struct {
    const float *a, *b;
    float *c;
    int64_t m, n, k, lda, ldb, ldc, rows_like;
    bool transpose_a, transpose_b, add;
} rm_cuda_product;

typedef struct rm_cuda_queue {
    void *stream;    /* cudaStream_t: launches go here, in order */
    double *partial; /* RM_CUDA_PARTIALS doubles of device memory, for work on this queue alone */
    int clusters; /* of 16 blocks (cluster.cuh), each with a multiprocessor to itself: how many run at once; 0: launchers
                        take another way */

    /* By cuBLAS, or in the tests by plain loops. The same call gives the same bits. */
    void (*multiply)(const struct rm_cuda_queue *, const rm_cuda_product *);

    /* A launcher that makes many small launches brackets them:
     *     if (rm_cuda_begin(queue, call, sizeof *call)) { launches; rm_cuda_end(queue); }
     * `key` holds all that they depend on: shapes, addresses. What was recorded under the same key (a CUDA graph) is launched
     * again as one, and begin says false; so launches follow one another without gaps. NULL: every launch is made by itself. */
    bool (*begin)(const struct rm_cuda_queue *, const void *key, size_t bytes);
    void (*end)(const struct rm_cuda_queue *);
} rm_cuda_queue;

static inline bool rm_cuda_begin(const rm_cuda_queue *queue, const void *key, size_t bytes) {
    return !queue->begin || queue->begin(queue, key, bytes);
}
static inline void rm_cuda_end(const rm_cuda_queue *queue) {
    if (queue->end) queue->end(queue);
}

/* The CUDA side of rm_sum_of_squares: *sum, one double of device memory, is overwritten when the queue gets there. */
void rm_sum_of_squares_cuda(const rm_cuda_queue *queue, const float *x, int64_t n, double *sum);

/* The check is made when the queue gets there. */
void rm_compare_cuda(const rm_cuda_queue *queue, const rm_comparison *check);

/* What rm_cuda_queue.clusters is on the GPU that this thread has chosen. */
int rm_clusters_cuda(void);

/* Whether the kernels of this build are made for the GPU that this thread has chosen: 0, or the error that CUDA would give
 * with the first of them. All are compiled for the same GPUs, so one of them is asked about. */
int rm_kernels_error_cuda(void);

#endif

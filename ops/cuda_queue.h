/* cuda_queue.h: what rm_call.queue points to on a CUDA device: what the launchers in ops/NAME.cu (ops/kernel.cuh) need of a
 * queue that engine/cuda.c owns. No CUDA type is named here, so that C files which know no toolkit can read it. */
#ifndef RM_CUDA_QUEUE_H
#define RM_CUDA_QUEUE_H

#include <stdint.h>

#include "ops/optimizer.h"

/* Sums of long arrays are made in two launches: at most so many partial sums, each of a part of the array whose length
 * follows from the array's, then their sum in order. */
#define RM_CUDA_PARTIALS 1024

typedef struct rm_cuda_queue {
    void *stream;    /* cudaStream_t: launches go here, in order */
    void *blas;      /* cublasHandle_t, set to that stream */
    double *partial; /* RM_CUDA_PARTIALS doubles of device memory, for work on this queue alone */
} rm_cuda_queue;

/* The CUDA side of rm_sum_of_squares: *sum, one double of device memory, is overwritten when the queue gets there. */
void rm_sum_of_squares_cuda(const rm_cuda_queue *queue, const float *x, int64_t n, double *sum);

#endif

/* bf16.h: numbers in bf16 in the memory of a GPU, the upper halves of floats; rounded to nearest, ties to even. */
#ifndef RM_BF16_H
#define RM_BF16_H

#include "ops/cuda/cuda_queue.h"

/* to (rows, columns), rows to_ld numbers apart, = from, rows ld apart. `to` starts at a multiple of 8 bytes, and to_ld
 * is a multiple of 4 if there are several rows. Queued. */
void rm_round_cuda(const rm_cuda_queue *queue, int64_t rows, int64_t columns, int64_t ld, const float *from,
                   int64_t to_ld, uint16_t *to);

#endif

/* cudnn_cells.h: kernels of Remat's own for layers that cuDNN runs (engine/cuda/rnn.c); in cudnn_cells.cu. */
#ifndef RM_CUDNN_CELLS_H
#define RM_CUDNN_CELLS_H

#include "ops/cuda/cuda_queue.h"

/* A layer's weights as cuDNN arranges them: a matrix and a bias for each gate of x and of h. */
enum { RM_CUDA_PIECES = 16 };
typedef struct {
    const float *from;
    float *to;
    int64_t count;
} rm_cuda_piece;
typedef struct {
    int n;
    rm_cuda_piece piece[RM_CUDA_PIECES];
} rm_cuda_pieces;

/* to[i] += from[i] of each piece; no two of them overlap. */
void rm_add_pieces_cuda(const rm_cuda_queue *queue, const rm_cuda_pieces *pieces);

#endif

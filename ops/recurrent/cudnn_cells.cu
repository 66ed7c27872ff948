/* cudnn_cells.cu: kernels for the work that cuDNN's RNN leaves to us (engine/cuda/rnn.c): cudnn_cells.h. No op is
 * defined here. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/recurrent/cudnn_cells.h"
}

static __global__ void add(rm_cuda_pieces pieces) {
    for (int p = 0; p < pieces.n; p++) {
        const rm_cuda_piece piece = pieces.piece[p];
        RM_EACH(i, piece.count) piece.to[i] += piece.from[i];
    }
}

void rm_add_pieces_cuda(const rm_cuda_queue *queue, const rm_cuda_pieces *pieces) {
    int64_t most = 0;
    for (int p = 0; p < pieces->n; p++)
        if (pieces->piece[p].count > most) most = pieces->piece[p].count;
    RM_LAUNCH_EACH(add, most, queue, *pieces);
}

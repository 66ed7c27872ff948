/* bf16.cu: the kernel of bf16.h. */
#include "ops/cuda/bf16.cuh"

extern "C" {
#include "ops/cuda/bf16.h"
}

/* `columns` is rounded up to `padded`, a multiple of 4, so that no four crosses rows. */
static __global__ void round_rows(int64_t n, int64_t padded, int64_t columns, int64_t ld, const float *from,
                                  int64_t to_ld, uint16_t *to) {
    RM_EACH_FOUR(i, n) {
        const int64_t row = rm_row_of(i, padded), column = i - row * padded;
        rm_store_halves(to + row * to_ld + column, columns - column,
                        rm_load_four(from + row * ld + column, columns - column));
    }
}

void rm_round_cuda(const rm_cuda_queue *queue, int64_t rows, int64_t columns, int64_t ld, const float *from,
                   int64_t to_ld, uint16_t *to) {
    if (ld == columns && to_ld == columns) columns = ld = to_ld = rows * columns, rows = 1;
    const int64_t padded = (columns + 3) / 4 * 4, n = rows * padded;
    RM_LAUNCH_FOURS(round_rows, n, queue, n, padded, columns, ld, from, to_ld, to);
}

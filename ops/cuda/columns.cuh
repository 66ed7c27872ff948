/* columns.cuh: adds the column sums of a matrix to a vector: gradients of biases (linear.cu and the cells).
 * The order of a sum depends on the number of rows alone. */
#ifndef RM_COLUMNS_CUH
#define RM_COLUMNS_CUH

#include "ops/cuda/kernel.cuh"

enum { RM_COLUMNS = 32 /* per block */, RM_COLUMN_PARTS = 32 /* parts of the rows, one per warp */ };

/* out (n) += sums over the rows of x (rows,n), whose rows start ld numbers apart. Part p sums every RM_COLUMN_PARTS-th
 * row from row p on; the parts are added in order. */
static __global__ void rm_add_columns(int64_t rows, int64_t n, int64_t ld, const float *x, float *out) {
    __shared__ float of_part[RM_COLUMN_PARTS][RM_COLUMNS];
    int64_t lane = threadIdx.x % RM_COLUMNS, part = threadIdx.x / RM_COLUMNS;
    int64_t j = (int64_t)blockIdx.x * RM_COLUMNS + lane;
    float sum = 0;
    for (int64_t r = part; r < rows && j < n; r += RM_COLUMN_PARTS) sum += x[r * ld + j];
    of_part[part][lane] = sum;
    __syncthreads();
    if (part > 0 || j >= n) return;
    for (int p = 1; p < RM_COLUMN_PARTS; p++) sum += of_part[p][lane];
    out[j] += sum;
}

static inline void rm_launch_add_columns(const void *queue, int64_t rows, int64_t n, int64_t ld, const float *x,
                                         float *out) {
    RM_LAUNCH_TOGETHER(rm_add_columns, rm_blocks_of(n, RM_COLUMNS), RM_COLUMNS * RM_COLUMN_PARTS, queue, rows, n, ld, x,
                       out);
}

#endif

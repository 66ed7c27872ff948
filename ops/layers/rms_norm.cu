/* rms_norm.cu: the CUDA kernels of the op `rms_norm` (rms_norm.c). A warp handles a row; gradients of gain are summed
 * over rows by blocks of columns. */
#include "ops/cuda/reduce.cuh"

enum { X, GAIN, ROWS = 4 /* per block */, PARTS = 8 /* parts of the rows, for gain */ };

static __global__ void forward(int64_t rows, int64_t c, double epsilon, const float *x, const float *gain, float *y,
                               float *rstd) {
    int64_t lane = threadIdx.x % RM_WARP, r = (int64_t)blockIdx.x * ROWS + threadIdx.x / RM_WARP;
    if (r >= rows) return; /* whole warps */
    double sum = 0;
    for (int64_t i = lane; i < c; i += RM_WARP) sum += (double)x[r * c + i] * (double)x[r * c + i];
    float factor = (float)(1 / sqrt(rm_warp_sum(sum) / (double)c + epsilon));
    for (int64_t i = lane; i < c; i += RM_WARP) y[r * c + i] = x[r * c + i] * factor * gain[i];
    if (rstd && lane == 0) rstd[r] = factor;
}

/* With g = dy gain and xhat = x rstd, dx = rstd (g - xhat mean(g xhat)). */
static __global__ void backward_rows(int64_t rows, int64_t c, const float *x, const float *gain, const float *dy,
                                     const float *rstd, float *dx) {
    int64_t lane = threadIdx.x % RM_WARP, r = (int64_t)blockIdx.x * ROWS + threadIdx.x / RM_WARP;
    if (r >= rows) return;
    double sum = 0;
    for (int64_t i = lane; i < c; i += RM_WARP) sum += (double)(dy[r * c + i] * gain[i]) * (double)x[r * c + i];
    float mean = (float)(rm_warp_sum(sum) * rstd[r] / (double)c);
    for (int64_t i = lane; i < c; i += RM_WARP)
        dx[r * c + i] = rstd[r] * (dy[r * c + i] * gain[i] - x[r * c + i] * rstd[r] * mean);
}

/* dgain += sum of dy xhat. A block handles 32 columns; its warp p sums every PARTS-th row from row p on, and the parts
 * are added in order. */
static __global__ void backward_columns(int64_t rows, int64_t c, const float *x, const float *dy, const float *rstd,
                                        float *dgain) {
    __shared__ float of_part[PARTS][RM_WARP];
    int64_t lane = threadIdx.x % RM_WARP, part = threadIdx.x / RM_WARP, i = (int64_t)blockIdx.x * RM_WARP + lane;
    float sum = 0;
    for (int64_t r = part; r < rows && i < c; r += PARTS) sum += dy[r * c + i] * (x[r * c + i] * rstd[r]);
    of_part[part][lane] = sum;
    __syncthreads();
    if (part > 0 || i >= c) return;
    for (int p = 1; p < PARTS; p++) sum += of_part[p][lane];
    dgain[i] += sum;
}

void rm_rms_norm_forward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->x[X].desc;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    RM_LAUNCH_TOGETHER(forward, rm_blocks_of(rows, ROWS), ROWS * RM_WARP, call->queue, rows, c,
                       ((const rm_rms_norm_attr *)call->attr)->epsilon, (const float *)call->x[X].data,
                       (const float *)call->x[GAIN].data, (float *)call->y.data, (float *)call->aux);
}

void rm_rms_norm_backward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->dy.desc;
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    const float *rstd = (const float *)call->aux;
    float *dx = (float *)call->dx[X].data, *dgain = (float *)call->dx[GAIN].data;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    if (dx)
        RM_LAUNCH_TOGETHER(backward_rows, rm_blocks_of(rows, ROWS), ROWS * RM_WARP, call->queue, rows, c, x,
                           (const float *)call->x[GAIN].data, dy, rstd, dx);
    if (dgain)
        RM_LAUNCH_TOGETHER(backward_columns, rm_blocks_of(c, RM_WARP), PARTS * RM_WARP, call->queue, rows, c, x, dy,
                           rstd, dgain);
}

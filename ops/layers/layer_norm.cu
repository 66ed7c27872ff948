/* layer_norm.cu: the CUDA kernels of the op `layer_norm` (layer_norm.c). `bias` may be NULL. A warp handles a row; gradients of gain and
 * bias are summed over rows by blocks of columns. */
#include "ops/cuda/reduce.cuh"

enum { X, GAIN, BIAS, ROWS = 4 /* per block */, PARTS = 8 /* parts of the rows, for gain and bias */ };

/* Statistics of a row, in aux: xhat[i] = (x[i] - mean) rstd. */
typedef struct {
    float mean, rstd;
} row_facts;

static __global__ void forward(int64_t rows, int64_t c, double epsilon, const float *x, const float *gain,
                               const float *bias, float *y, row_facts *facts) {
    int64_t lane = threadIdx.x % RM_WARP, r = (int64_t)blockIdx.x * ROWS + threadIdx.x / RM_WARP;
    if (r >= rows) return;         /* whole warps */
    double mean = 0, variance = 0; /* two passes: the difference of two large sums would lose the variance */
    for (int64_t i = lane; i < c; i += RM_WARP) mean += x[r * c + i];
    mean = rm_warp_sum(mean) / (double)c;
    for (int64_t i = lane; i < c; i += RM_WARP) variance += (x[r * c + i] - mean) * (x[r * c + i] - mean);
    variance = rm_warp_sum(variance) / (double)c;
    row_facts f = {(float)mean, (float)(1 / sqrt(variance + epsilon))};
    for (int64_t i = lane; i < c; i += RM_WARP) y[r * c + i] = (x[r * c + i] - f.mean) * f.rstd * gain[i] + (bias ? bias[i] : 0);
    if (facts && lane == 0) facts[r] = f;
}

/* With g = dy gain, dx = rstd (g - mean(g) - xhat mean(g xhat)). */
static __global__ void backward_rows(int64_t rows, int64_t c, const float *x, const float *gain, const float *dy,
                                     const row_facts *facts, float *dx) {
    int64_t lane = threadIdx.x % RM_WARP, r = (int64_t)blockIdx.x * ROWS + threadIdx.x / RM_WARP;
    if (r >= rows) return;
    row_facts f = facts[r];
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = lane; i < c; i += RM_WARP) {
        double g = dy[r * c + i] * gain[i];
        mean_g += g;
        mean_gx += g * ((x[r * c + i] - f.mean) * f.rstd);
    }
    mean_g = rm_warp_sum(mean_g) / (double)c;
    mean_gx = rm_warp_sum(mean_gx) / (double)c;
    for (int64_t i = lane; i < c; i += RM_WARP) {
        float xhat = (x[r * c + i] - f.mean) * f.rstd;
        dx[r * c + i] = f.rstd * (dy[r * c + i] * gain[i] - (float)mean_g - xhat * (float)mean_gx);
    }
}

/* y = xhat gain + bias:  dgain += sum of dy xhat,  dbias += sum of dy. A block handles 32 columns; its warp p sums
 * every PARTS-th row from row p on, and the parts are added in order. Either output may be NULL. */
static __global__ void backward_columns(int64_t rows, int64_t c, const float *x, const float *dy,
                                        const row_facts *facts, float *dgain, float *dbias) {
    __shared__ float gain_part[PARTS][RM_WARP], bias_part[PARTS][RM_WARP];
    int64_t lane = threadIdx.x % RM_WARP, part = threadIdx.x / RM_WARP, i = (int64_t)blockIdx.x * RM_WARP + lane;
    float of_gain = 0, of_bias = 0;
    for (int64_t r = part; r < rows && i < c; r += PARTS) {
        of_gain += dy[r * c + i] * ((x[r * c + i] - facts[r].mean) * facts[r].rstd);
        of_bias += dy[r * c + i];
    }
    gain_part[part][lane] = of_gain, bias_part[part][lane] = of_bias;
    __syncthreads();
    if (part > 0 || i >= c) return;
    for (int p = 1; p < PARTS; p++) of_gain += gain_part[p][lane], of_bias += bias_part[p][lane];
    if (dgain) dgain[i] += of_gain;
    if (dbias) dbias[i] += of_bias;
}

void rm_layer_norm_forward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->x[X].desc;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    RM_LAUNCH_TOGETHER(forward, rm_blocks_of(rows, ROWS), ROWS * RM_WARP, call->queue, rows, c,
                       ((const rm_layer_norm_attr *)call->attr)->epsilon, (const float *)call->x[X].data,
                       (const float *)call->x[GAIN].data, (const float *)call->x[BIAS].data, (float *)call->y.data,
                       (row_facts *)call->aux);
}

void rm_layer_norm_backward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->dy.desc;
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    const row_facts *facts = (const row_facts *)call->aux;
    float *dx = (float *)call->dx[X].data, *dgain = (float *)call->dx[GAIN].data;
    float *dbias = (float *)call->dx[BIAS].data;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    if (dx)
        RM_LAUNCH_TOGETHER(backward_rows, rm_blocks_of(rows, ROWS), ROWS * RM_WARP, call->queue, rows, c, x,
                           (const float *)call->x[GAIN].data, dy, facts, dx);
    if (dgain || dbias)
        RM_LAUNCH_TOGETHER(backward_columns, rm_blocks_of(c, RM_WARP), PARTS * RM_WARP, call->queue, rows, c, x, dy,
                           facts, dgain, dbias);
}

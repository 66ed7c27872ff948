/* group_norm.cu: the CUDA kernels of the op `group_norm` (group_norm.c). A block handles a group of a sample; for gain
 * and bias, a channel. */
#include "ops/cuda/reduce.cuh"

enum { X, GAIN, BIAS };

/* Statistics of a group of a sample, in aux: xhat[i] = (x[i] - mean) rstd. */
typedef struct {
    float mean, rstd;
} group_statistics;

/* x is (samples,channels,inner), split into samples * groups rows of `each` channels. */
typedef struct {
    int64_t samples, channels, inner, groups, each;
} shape;

static shape shape_of(const remat_desc *x, const void *attr) {
    const rm_group_norm_attr *a = (const rm_group_norm_attr *)attr;
    shape s = {1, x->dim[a->axis], 1, a->groups, x->dim[a->axis] / a->groups};
    for (int d = 0; d < x->rank; d++)
        if (d < a->axis) s.samples *= x->dim[d];
        else if (d > a->axis) s.inner *= x->dim[d];
    return s;
}

static __global__ void forward(shape s, double epsilon, const float *x, const float *gain, const float *bias, float *y,
                               group_statistics *facts) {
    const int64_t r = blockIdx.x, n = s.each * s.inner, first = r % s.groups * s.each;
    const float *row = x + r * n;
    double mean = 0, variance = 0; /* two passes: the difference of two large sums would lose the variance */
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mean += row[i];
    mean = rm_block_sum_for_all(mean) / (double)n;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) variance += (row[i] - mean) * (row[i] - mean);
    variance = rm_block_sum_for_all(variance) / (double)n;
    group_statistics f = {(float)mean, (float)(1 / sqrt(variance + epsilon))};
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        int64_t c = first + rm_row_of(i, s.inner);
        y[r * n + i] = (row[i] - f.mean) * f.rstd * gain[c] + bias[c];
    }
    if (facts && threadIdx.x == 0) facts[r] = f;
}

/* With g = dy gain, dx = rstd (g - mean(g) - xhat mean(g xhat)). */
static __global__ void backward_row(shape s, const float *x, const float *gain, const float *dy, const group_statistics *facts,
                                    float *dx) {
    const int64_t r = blockIdx.x, n = s.each * s.inner, first = r % s.groups * s.each;
    group_statistics f = facts[r];
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        double g = dy[r * n + i] * gain[first + rm_row_of(i, s.inner)];
        mean_g += g;
        mean_gx += g * ((x[r * n + i] - f.mean) * f.rstd);
    }
    mean_g = rm_block_sum_for_all(mean_g) / (double)n;
    mean_gx = rm_block_sum_for_all(mean_gx) / (double)n;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        float xhat = (x[r * n + i] - f.mean) * f.rstd;
        dx[r * n + i] = f.rstd * (dy[r * n + i] * gain[first + rm_row_of(i, s.inner)] - (float)mean_g - xhat * (float)mean_gx);
    }
}

/* y = xhat gain + bias:  dgain += sum of dy xhat,  dbias += sum of dy. Either may be NULL. */
static __global__ void backward_channel(shape s, const float *x, const float *dy, const group_statistics *facts, float *dgain,
                                        float *dbias) {
    const int64_t c = blockIdx.x, count = s.samples * s.inner;
    double of_gain = 0, of_bias = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        int64_t n = rm_row_of(i, s.inner), at = (n * s.channels + c) * s.inner + i - n * s.inner;
        group_statistics f = facts[n * s.groups + c / s.each];
        of_gain += dy[at] * ((x[at] - f.mean) * f.rstd);
        of_bias += dy[at];
    }
    of_gain = rm_block_sum(of_gain);
    of_bias = rm_block_sum(of_bias);
    if (threadIdx.x) return;
    if (dgain) dgain[c] += (float)of_gain;
    if (dbias) dbias[c] += (float)of_bias;
}

void rm_group_norm_forward_cuda(const remat_call *call) {
    shape s = shape_of(&call->x[X].desc, call->attr);
    RM_LAUNCH_TOGETHER(forward, s.samples * s.groups, RM_SUM_THREADS, call->queue, s,
                       ((const rm_group_norm_attr *)call->attr)->epsilon, (const float *)call->x[X].data,
                       (const float *)call->x[GAIN].data, (const float *)call->x[BIAS].data, (float *)call->y.data,
                       (group_statistics *)call->aux);
}

void rm_group_norm_backward_cuda(const remat_call *call) {
    shape s = shape_of(&call->x[X].desc, call->attr);
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    const group_statistics *facts = (const group_statistics *)call->aux;
    float *dx = (float *)call->dx[X].data, *dgain = (float *)call->dx[GAIN].data, *dbias = (float *)call->dx[BIAS].data;
    if (dx)
        RM_LAUNCH_TOGETHER(backward_row, s.samples * s.groups, RM_SUM_THREADS, call->queue, s, x,
                           (const float *)call->x[GAIN].data, dy, facts, dx);
    if (dgain || dbias)
        RM_LAUNCH_TOGETHER(backward_channel, s.channels, RM_SUM_THREADS, call->queue, s, x, dy, facts, dgain, dbias);
}

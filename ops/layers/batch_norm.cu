/* batch_norm.cu: the CUDA kernels of the op `batch_norm` (batch_norm.c). A block sums a channel; each thread normalises
 * elements. */
#include "ops/cuda/reduce.cuh"

enum { X, RUNNING_MEAN, RUNNING_VAR, GAIN, BIAS };

/* The result of `once`: the number of elements per channel in the statistics (0: running statistics), then `channels`
 * means and as many rstds. */
typedef struct {
    double *count;
    float *mean, *rstd;
} batch_statistics;
static batch_statistics parts_of(const remat_call *call, int64_t channels) {
    float *mean = (float *)((double *)call->once + 1);
    return (batch_statistics){(double *)call->once, mean, mean + channels};
}

typedef struct {
    int64_t channels, inner, each; /* each: elements of a channel */
} layout;

static layout layout_of(const remat_desc *x, const void *attr) {
    const rm_batch_norm_attr *a = (const rm_batch_norm_attr *)attr;
    layout l = {x->dim[a->axis], 1, 0};
    for (int64_t d = a->axis + 1; d < x->rank; d++) l.inner *= x->dim[d];
    l.each = rm_desc_count(x) / l.channels;
    return l;
}

/* The index of element i of channel c. */
static __device__ int64_t place(layout l, int64_t c, int64_t i) {
    int64_t outer = rm_row_of(i, l.inner);
    return (outer * l.channels + c) * l.inner + i - outer * l.inner;
}

static void sum_over_ranks(const remat_call *call, double *values, int64_t count) {
    if (((const rm_batch_norm_attr *)call->attr)->sync) remat_sum_over_ranks(call, values, count);
}

/* ---- Once -------------------------------------------------------------------------------------------------------- */

/* sums[c], followed by the number of elements per channel. */
static __global__ void add_sums(layout l, const float *x, double *sums) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < l.each; i += blockDim.x) sum += x[place(l, blockIdx.x, i)];
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    if (threadIdx.x == 0 && blockIdx.x == 0) sums[l.channels] = (double)l.each;
}

static __global__ void add_squares(layout l, const float *x, const double *sums, double *squares) {
    double sum = 0, mean = sums[blockIdx.x] / sums[l.channels];
    for (int64_t i = threadIdx.x; i < l.each; i += blockDim.x) {
        double d = x[place(l, blockIdx.x, i)] - mean;
        sum += d * d;
    }
    sum = rm_block_sum(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

static __global__ void conclude(int64_t channels, double momentum, double epsilon, const double *sums,
                                const double *squares, batch_statistics f, float *running_mean, float *running_var) {
    double n = sums[channels];
    RM_EACH(c, channels) {
        double mean = sums[c] / n, unbiased = squares[c] / (n > 1 ? n - 1 : 1);
        f.mean[c] = (float)mean;
        f.rstd[c] = (float)(1 / sqrt(squares[c] / n + epsilon));
        running_mean[c] = (float)((1 - momentum) * running_mean[c] + momentum * mean);
        running_var[c] = (float)((1 - momentum) * running_var[c] + momentum * unbiased);
        if (c == 0) *f.count = n;
    }
}

static __global__ void take_running(int64_t channels, double epsilon, const float *mean, const float *var,
                                    batch_statistics f) {
    RM_EACH(c, channels) {
        f.mean[c] = mean[c];
        f.rstd[c] = (float)(1 / sqrt(var[c] + epsilon));
        if (c == 0) *f.count = 0;
    }
}

void rm_batch_norm_once_cuda(const remat_call *call) {
    const rm_batch_norm_attr *a = (const rm_batch_norm_attr *)call->attr;
    layout l = layout_of(&call->x[X].desc, a);
    batch_statistics f = parts_of(call, l.channels);
    const float *x = (const float *)call->x[X].data;
    float *mean = (float *)call->x[RUNNING_MEAN].data, *var = (float *)call->x[RUNNING_VAR].data;
    double *sums = (double *)call->scratch, *squares = sums + l.channels + 1;
    if (!call->training) {
        RM_LAUNCH_EACH(take_running, l.channels, call->queue, l.channels, a->epsilon, (const float *)mean,
                       (const float *)var, f);
        return;
    }
    RM_LAUNCH_TOGETHER(add_sums, l.channels, RM_SUM_THREADS, call->queue, l, x, sums);
    sum_over_ranks(call, sums, l.channels + 1);
    RM_LAUNCH_TOGETHER(add_squares, l.channels, RM_SUM_THREADS, call->queue, l, x, (const double *)sums, squares);
    sum_over_ranks(call, squares, l.channels);
    RM_LAUNCH_EACH(conclude, l.channels, call->queue, l.channels, a->momentum, a->epsilon, (const double *)sums,
                   (const double *)squares, f, mean, var);
}

/* ---- Forward and backward ---------------------------------------------------------------------------------------- */

static __global__ void normalise(layout l, const float *x, batch_statistics f, const float *gain, const float *bias,
                                 float *y) {
    RM_EACH(i, l.each * l.channels) {
        int64_t row = rm_row_of(i, l.inner), c = row - rm_row_of(row, l.channels) * l.channels;
        float scale = f.rstd[c] * (gain ? gain[c] : 1), shift = bias ? bias[c] : 0;
        y[i] = (x[i] - f.mean[c]) * scale + shift;
    }
}

void rm_batch_norm_forward_cuda(const remat_call *call) {
    layout l = layout_of(&call->x[X].desc, call->attr);
    RM_LAUNCH_EACH(normalise, l.each * l.channels, call->queue, l, (const float *)call->x[X].data,
                   parts_of(call, l.channels), (const float *)call->x[GAIN].data, (const float *)call->x[BIAS].data,
                   (float *)call->y.data);
}

static __global__ void add_gradients(layout l, const float *x, const float *dy, batch_statistics f, double *of_dy,
                                     double *of_products, float *dgain, float *dbias) {
    double sum = 0, products = 0;
    float mean = f.mean[blockIdx.x], rstd = f.rstd[blockIdx.x];
    for (int64_t i = threadIdx.x; i < l.each; i += blockDim.x) {
        int64_t at = place(l, blockIdx.x, i);
        sum += dy[at];
        products += (double)dy[at] * ((x[at] - mean) * rstd);
    }
    sum = rm_block_sum(sum), products = rm_block_sum(products);
    if (threadIdx.x > 0) return;
    of_dy[blockIdx.x] = sum, of_products[blockIdx.x] = products;
    if (dgain) dgain[blockIdx.x] += (float)products;
    if (dbias) dbias[blockIdx.x] += (float)sum;
}

static __global__ void differentiate(layout l, const float *x, const float *dy, batch_statistics f, const float *gain,
                                     const double *of_dy, const double *of_products, float *dx) {
    double share = *f.count > 0 ? 1 / *f.count : 0;
    RM_EACH(i, l.each * l.channels) {
        int64_t row = rm_row_of(i, l.inner), c = row - rm_row_of(row, l.channels) * l.channels;
        float rstd = f.rstd[c], scale = rstd * (gain ? gain[c] : 1);
        float mean_dy = (float)(of_dy[c] * share), mean_products = (float)(of_products[c] * share);
        dx[i] = scale * (dy[i] - mean_dy - (x[i] - f.mean[c]) * rstd * mean_products);
    }
}

void rm_batch_norm_backward_cuda(const remat_call *call) {
    layout l = layout_of(&call->dy.desc, call->attr);
    batch_statistics f = parts_of(call, l.channels);
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    double *of_dy = (double *)call->scratch, *of_products = of_dy + l.channels;
    RM_LAUNCH_TOGETHER(add_gradients, l.channels, RM_SUM_THREADS, call->queue, l, x, dy, f, of_dy, of_products,
                       (float *)call->dx[GAIN].data, (float *)call->dx[BIAS].data);
    sum_over_ranks(call, of_dy, 2 * l.channels);
    if (call->dx[X].data)
        RM_LAUNCH_EACH(differentiate, l.each * l.channels, call->queue, l, x, dy, f, (const float *)call->x[GAIN].data,
                       (const double *)of_dy, (const double *)of_products, (float *)call->dx[X].data);
}

/* batch_norm.cu: the CUDA kernels of the op `batch_norm` (batch_norm.c). Statistics and sums of gradients read their
 * arrays once (channels.cuh); each thread normalises four elements at a time. */
#include "ops/cuda/channels.cuh"

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

/* ---- Once -------------------------------------------------------------------------------------------------------- */

/* This rank's part: sums[c], followed by the number of elements per channel; squared distances from its own means. */
struct batch_moments {
    typedef rm_moments sum;
    int64_t channels;
    const float *x;
    double *sums, *squares, *means;
    __device__ void take(sum *m, int64_t, const rm_place &p) const { rm_moments_add(m, rm_load_place(x, p), p.count); }
    __device__ sum end(const sum &m) const { return rm_moments_of(m); }
    __device__ void conclude(int64_t c, const sum &m) const {
        sums[c] = m.mean * m.n, squares[c] = m.m2, means[c] = m.mean;
        if (c == 0) sums[channels] = m.n;
    }
};

/* Squared distances from the mean over all ranks, instead of from this rank's own. */
static __global__ void move_to_common_mean(layout l, const double *sums, const double *means, double *squares) {
    RM_EACH(c, l.channels) {
        double apart = means[c] - sums[c] / sums[l.channels];
        squares[c] += (double)l.each * apart * apart;
    }
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
    double *sums = (double *)call->scratch, *squares = sums + l.channels + 1, *means = squares + l.channels;
    if (!call->training) {
        RM_LAUNCH_EACH(take_running, l.channels, call->queue, l.channels, a->epsilon, (const float *)mean,
                       (const float *)var, f);
        return;
    }
    rm_launch_channels(call->queue, batch_moments{l.channels, x, sums, squares, means}, l.each / l.inner, l.channels,
                       l.inner, l.channels * l.inner);
    if (a->sync) {
        remat_sum_over_ranks(call, sums, l.channels + 1);
        RM_LAUNCH_EACH(move_to_common_mean, l.channels, call->queue, l, (const double *)sums, (const double *)means,
                       squares);
        remat_sum_over_ranks(call, squares, l.channels);
    }
    RM_LAUNCH_EACH(conclude, l.channels, call->queue, l.channels, a->momentum, a->epsilon, (const double *)sums,
                   (const double *)squares, f, mean, var);
}

/* ---- Forward and backward ---------------------------------------------------------------------------------------- */

/* f(k, channel, starts) for each of the four elements from i on; starts: the channel is another than the last one's. */
template <typename F> static __device__ inline void each_of_four(const layout &l, int64_t i, F f) {
    int64_t row = rm_row_of(i, l.inner), rest = i - row * l.inner, c = row - rm_row_of(row, l.channels) * l.channels;
    bool starts = true;
    RM_UNROLL for (int k = 0; k < 4; k++) {
        f(k, c, starts);
        starts = ++rest == l.inner;
        if (starts) rest = 0, c = c + 1 < l.channels ? c + 1 : 0;
    }
}

static __global__ void normalise(layout l, const float *x, batch_statistics f, const float *gain, const float *bias,
                                 float *y) {
    const int64_t n = l.each * l.channels;
    RM_EACH_FOUR(i, n) {
        rm_four four = rm_load_four(x + i, n - i);
        float mean = 0, scale = 0, shift = 0;
        each_of_four(l, i, [&](int k, int64_t c, bool starts) {
            if (starts) mean = f.mean[c], scale = f.rstd[c] * (gain ? gain[c] : 1), shift = bias ? bias[c] : 0;
            four.v[k] = (four.v[k] - mean) * scale + shift;
        });
        rm_store_four(y + i, n - i, four);
    }
}

void rm_batch_norm_forward_cuda(const remat_call *call) {
    layout l = layout_of(&call->x[X].desc, call->attr);
    RM_LAUNCH_FOURS(normalise, l.each * l.channels, call->queue, l, (const float *)call->x[X].data,
                    parts_of(call, l.channels), (const float *)call->x[GAIN].data, (const float *)call->x[BIAS].data,
                    (float *)call->y.data);
}

struct batch_gradients {
    typedef rm_sums<2> sum;
    const float *x, *dy;
    batch_statistics f;
    double *of_dy, *of_products;
    float *dgain, *dbias;
    __device__ void take(sum *s, int64_t c, const rm_place &p) const {
        const rm_four v = rm_load_place(x, p), d = rm_load_place(dy, p);
        const float mean = f.mean[c], rstd = f.rstd[c];
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < p.count) {
            s->v[0] += d.v[k];
            s->v[1] += (double)d.v[k] * ((v.v[k] - mean) * rstd);
        }
    }
    __device__ sum end(const sum &s) const { return s; }
    __device__ void conclude(int64_t c, const sum &s) const {
        of_dy[c] = s.v[0], of_products[c] = s.v[1];
        if (dgain) dgain[c] += (float)s.v[1];
        if (dbias) dbias[c] += (float)s.v[0];
    }
};

static __global__ void differentiate(layout l, const float *x, const float *dy, batch_statistics f, const float *gain,
                                     const double *of_dy, const double *of_products, float *dx) {
    const int64_t n = l.each * l.channels;
    const double share = *f.count > 0 ? 1 / *f.count : 0;
    RM_EACH_FOUR(i, n) {
        const rm_four v = rm_load_four(x + i, n - i);
        rm_four d = rm_load_four(dy + i, n - i);
        float mean = 0, rstd = 0, scale = 0, mean_dy = 0, mean_products = 0;
        each_of_four(l, i, [&](int k, int64_t c, bool starts) {
            if (starts) {
                mean = f.mean[c], rstd = f.rstd[c], scale = rstd * (gain ? gain[c] : 1);
                mean_dy = (float)(of_dy[c] * share), mean_products = (float)(of_products[c] * share);
            }
            d.v[k] = scale * (d.v[k] - mean_dy - (v.v[k] - mean) * rstd * mean_products);
        });
        rm_store_four(dx + i, n - i, d);
    }
}

void rm_batch_norm_backward_cuda(const remat_call *call) {
    layout l = layout_of(&call->dy.desc, call->attr);
    batch_statistics f = parts_of(call, l.channels);
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    double *of_dy = (double *)call->scratch, *of_products = of_dy + l.channels;
    float *dgain = (float *)call->dx[GAIN].data, *dbias = (float *)call->dx[BIAS].data;
    rm_launch_channels(call->queue, batch_gradients{x, dy, f, of_dy, of_products, dgain, dbias}, l.each / l.inner,
                       l.channels, l.inner, l.channels * l.inner);
    if (((const rm_batch_norm_attr *)call->attr)->sync) remat_sum_over_ranks(call, of_dy, 2 * l.channels);
    if (call->dx[X].data)
        RM_LAUNCH_FOURS(differentiate, l.each * l.channels, call->queue, l, x, dy, f, (const float *)call->x[GAIN].data,
                        (const double *)of_dy, (const double *)of_products, (float *)call->dx[X].data);
}

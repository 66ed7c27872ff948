/* batch_norm.cu: the CUDA kernels of the op `batch_norm` (batch_norm.c). Statistics and sums of gradients read their
 * arrays once (channels.cuh); each thread normalises four elements at a time. */
#include "ops/cuda/channels.cuh"

#include "ops/elementwise/activation.h"

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

static bool has_relu(const remat_call *call) { return ((const rm_batch_norm_attr *)call->attr)->relu; }

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

/* What an element needs of its channel: y = (x - mean) scale + shift. */
typedef struct {
    float mean, rstd, scale, shift;
} normal;
/* The vectors of the layer: statistics, and the parameters, each of which may be NULL. */
typedef struct {
    batch_statistics f;
    const float *gain, *bias;
} vectors;
static vectors vectors_of(const remat_call *call, int64_t channels) {
    return {parts_of(call, channels), (const float *)call->x[GAIN].data, (const float *)call->x[BIAS].data};
}
static __device__ inline normal normal_of(const vectors &v, int64_t c) {
    const float rstd = v.f.rstd[c];
    return {v.f.mean[c], rstd, rstd * (v.gain ? v.gain[c] : 1), v.bias ? v.bias[c] : 0};
}
static __device__ inline float apply(const normal &f, float x) { return (x - f.mean) * f.scale + f.shift; }

/* What follows: nothing, or relu. from_dy: the gradient of the normalised value; whether relu passes it is computed again
 * from x, as in the forward pass. */
struct nothing {
    static __device__ float of(float y) { return y; }
    static __device__ float from_dy(const normal &, float, float dy) { return dy; }
};
struct then_relu {
    static __device__ float of(float y) { return rm_relu(y); }
    static __device__ float from_dy(const normal &f, float x, float dy) { return rm_relu_backward(dy, apply(f, x)); }
};

template <typename After>
static __global__ void normalise(layout l, const float *x, vectors v, float *y) {
    const int64_t n = l.each * l.channels;
    RM_EACH_FOUR(i, n) {
        rm_four four = rm_load_four(x + i, n - i);
        normal f = {};
        each_of_four(l, i, [&](int k, int64_t c, bool starts) {
            if (starts) f = normal_of(v, c);
            four.v[k] = After::of(apply(f, four.v[k]));
        });
        rm_store_four(y + i, n - i, four);
    }
}

template <typename After> static void forward(const remat_call *call) {
    layout l = layout_of(&call->x[X].desc, call->attr);
    RM_LAUNCH_FOURS(normalise<After>, l.each * l.channels, call->queue, l, (const float *)call->x[X].data,
                    vectors_of(call, l.channels), (float *)call->y.data);
}

void rm_batch_norm_forward_cuda(const remat_call *call) {
    if (has_relu(call))
        forward<then_relu>(call);
    else
        forward<nothing>(call);
}

template <typename After> struct batch_gradients {
    typedef rm_sums<2> sum;
    const float *x, *dy;
    vectors v;
    double *of_dy, *of_products;
    float *dgain, *dbias;
    __device__ void take(sum *s, int64_t c, const rm_place &p) const {
        const rm_four at = rm_load_place(x, p), of_y = rm_load_place(dy, p);
        const normal f = normal_of(v, c);
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < p.count) {
            const float d = After::from_dy(f, at.v[k], of_y.v[k]);
            s->v[0] += d;
            s->v[1] += (double)d * ((at.v[k] - f.mean) * f.rstd);
        }
    }
    __device__ sum end(const sum &s) const { return s; }
    __device__ void conclude(int64_t c, const sum &s) const {
        of_dy[c] = s.v[0], of_products[c] = s.v[1];
        if (dgain) dgain[c] += (float)s.v[1];
        if (dbias) dbias[c] += (float)s.v[0];
    }
};

template <typename After>
static __global__ void differentiate(layout l, const float *x, const float *dy, vectors v, const double *of_dy,
                                     const double *of_products, float *dx) {
    const int64_t n = l.each * l.channels;
    const double share = *v.f.count > 0 ? 1 / *v.f.count : 0;
    RM_EACH_FOUR(i, n) {
        const rm_four at = rm_load_four(x + i, n - i);
        rm_four d = rm_load_four(dy + i, n - i);
        normal f = {};
        float mean_dy = 0, mean_products = 0;
        each_of_four(l, i, [&](int k, int64_t c, bool starts) {
            if (starts) {
                f = normal_of(v, c);
                mean_dy = (float)(of_dy[c] * share), mean_products = (float)(of_products[c] * share);
            }
            d.v[k] = f.scale * (After::from_dy(f, at.v[k], d.v[k]) - mean_dy - (at.v[k] - f.mean) * f.rstd * mean_products);
        });
        rm_store_four(dx + i, n - i, d);
    }
}

template <typename After> static void backward(const remat_call *call) {
    layout l = layout_of(&call->dy.desc, call->attr);
    const vectors v = vectors_of(call, l.channels);
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    double *of_dy = (double *)call->scratch, *of_products = of_dy + l.channels;
    float *dgain = (float *)call->dx[GAIN].data, *dbias = (float *)call->dx[BIAS].data;
    rm_launch_channels(call->queue, batch_gradients<After>{x, dy, v, of_dy, of_products, dgain, dbias}, l.each / l.inner,
                       l.channels, l.inner, l.channels * l.inner);
    if (((const rm_batch_norm_attr *)call->attr)->sync) remat_sum_over_ranks(call, of_dy, 2 * l.channels);
    if (call->dx[X].data)
        RM_LAUNCH_FOURS(differentiate<After>, l.each * l.channels, call->queue, l, x, dy, v, (const double *)of_dy,
                        (const double *)of_products, (float *)call->dx[X].data);
}

void rm_batch_norm_backward_cuda(const remat_call *call) {
    if (has_relu(call))
        backward<then_relu>(call);
    else
        backward<nothing>(call);
}

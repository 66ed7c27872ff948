/* group_norm.cu: the CUDA kernels of the op `group_norm` (group_norm.c). A warp or a block handles a group of a sample
 * (fours.cuh); gradients of gain and bias are sums over channels (channels.cuh). */
#include "ops/cuda/channels.cuh"

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
        if (d < a->axis)
            s.samples *= x->dim[d];
        else if (d > a->axis)
            s.inner *= x->dim[d];
    return s;
}

/* Gain or bias of the four elements from i on, of a row whose first channel is `first`; NULL: 0. */
static __device__ inline rm_four by_channel(const shape &s, const float *of_channel, int64_t first, int64_t i) {
    rm_four four = {};
    if (!of_channel) return four;
    int64_t c = rm_row_of(i, s.inner), rest = i - c * s.inner;
    RM_UNROLL for (int k = 0; k < 4; k++) {
        if (c < s.each) four.v[k] = of_channel[first + c];
        if (++rest == s.inner) rest = 0, c++;
    }
    return four;
}

template <int W>
RM_ROW_KERNEL forward(shape s, double epsilon, const float *x, const float *gain, const float *bias, float *y,
                      group_statistics *facts) {
    enum { HELD = RM_ROW_FOURS };
    const int64_t r = rm_row<W>(), n = s.each * s.inner, first = r % s.groups * s.each;
    if (r >= s.samples * s.groups) return; /* whole warps */
    const float *row = x + r * n;
    const rm_held<HELD> held = rm_hold<W, HELD>(row, n);
    double mean = 0, variance = 0; /* two sums: the difference of two large ones would lose the variance */
    rm_each_of_row<W>(held, row, n, [&](int64_t, float v) { mean += v; });
    mean = rm_row_sum<W>(mean) / (double)n;
    rm_each_of_row<W>(held, row, n, [&](int64_t, float v) { variance += (v - mean) * (v - mean); });
    variance = rm_row_sum<W>(variance) / (double)n;
    const group_statistics f = {(float)mean, (float)(1 / sqrt(variance + epsilon))};
    rm_each_four<W, HELD>(n, [&](int64_t i, int h) {
        rm_four v = rm_four_of(held, row, n, i, h);
        const rm_four g = by_channel(s, gain, first, i), b = by_channel(s, bias, first, i);
        RM_UNROLL for (int k = 0; k < 4; k++) v.v[k] = (v.v[k] - f.mean) * f.rstd * g.v[k] + b.v[k];
        rm_store_four(y + r * n + i, n - i, v);
    });
    if (facts && threadIdx.x % W == 0) facts[r] = f;
}

/* With g = dy gain, dx = rstd (g - mean(g) - xhat mean(g xhat)). */
template <int W>
RM_ROW_KERNEL backward_row(shape s, const float *all_x, const float *gain, const float *all_dy,
                           const group_statistics *facts, float *dx) {
    enum { HELD = W == RM_ROW_MOST ? RM_ROW_FOURS / 2 : RM_ROW_FOURS }; /* two rows have to fit */
    const int64_t r = rm_row<W>(), n = s.each * s.inner, first = r % s.groups * s.each;
    if (r >= s.samples * s.groups) return;
    const float *x = all_x + r * n, *dy = all_dy + r * n;
    const group_statistics f = facts[r];
    const rm_held<HELD> held_x = rm_hold<W, HELD>(x, n), held_dy = rm_hold<W, HELD>(dy, n);
    double mean_g = 0, mean_gx = 0;
    rm_each_four<W, HELD>(n, [&](int64_t i, int h) { /* past the row's end g is 0 */
                                                     const rm_four v = rm_four_of(held_x, x, n, i, h),
                                                                   d = rm_four_of(held_dy, dy, n, i, h);
                                                     const rm_four of_gain = by_channel(s, gain, first, i);
                                                     RM_UNROLL for (int k = 0; k < 4; k++) {
                                                         double g = d.v[k] * of_gain.v[k];
                                                         mean_g += g;
                                                         mean_gx += g * ((v.v[k] - f.mean) * f.rstd);
                                                     }
    });
    mean_g = rm_row_sum<W>(mean_g) / (double)n;
    mean_gx = rm_row_sum<W>(mean_gx) / (double)n;
    rm_each_four<W, HELD>(n, [&](int64_t i, int h) {
        const rm_four v = rm_four_of(held_x, x, n, i, h), of_gain = by_channel(s, gain, first, i);
        rm_four d = rm_four_of(held_dy, dy, n, i, h);
        RM_UNROLL for (int k = 0; k < 4; k++) {
            float xhat = (v.v[k] - f.mean) * f.rstd;
            d.v[k] = f.rstd * (d.v[k] * of_gain.v[k] - (float)mean_g - xhat * (float)mean_gx);
        }
        rm_store_four(dx + r * n + i, n - i, d);
    });
}

/* y = xhat gain + bias:  dgain += sum of dy xhat,  dbias += sum of dy. Either may be NULL. */
struct vector_gradients {
    typedef rm_sums<2> sum;
    shape s;
    const float *x, *dy;
    const group_statistics *facts;
    float *dgain, *dbias;
    __device__ void take(sum *to, int64_t c, const rm_place &p) const {
        const rm_four v = rm_load_place(x, p), d = rm_load_place(dy, p);
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < p.count) {
            const group_statistics f = facts[(p.outer + k * p.outer_step) * s.groups + c / s.each];
            to->v[0] += d.v[k] * ((v.v[k] - f.mean) * f.rstd);
            to->v[1] += d.v[k];
        }
    }
    __device__ sum end(const sum &of) const { return of; }
    __device__ void conclude(int64_t c, const sum &of) const {
        if (dgain) dgain[c] += (float)of.v[0];
        if (dbias) dbias[c] += (float)of.v[1];
    }
};

void rm_group_norm_forward_cuda(const remat_call *call) {
    shape s = shape_of(&call->x[X].desc, call->attr);
    RM_LAUNCH_ROWS(forward, s.samples * s.groups, s.each * s.inner, call->queue, s,
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
        RM_LAUNCH_ROWS(backward_row, s.samples * s.groups, s.each * s.inner, call->queue, s, x,
                       (const float *)call->x[GAIN].data, dy, facts, dx);
    if (dgain || dbias)
        rm_launch_channels(call->queue, vector_gradients{s, x, dy, facts, dgain, dbias}, s.samples, s.channels, s.inner,
                           s.channels * s.inner);
}

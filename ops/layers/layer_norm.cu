/* layer_norm.cu: the CUDA kernels of the op `layer_norm` (layer_norm.c). `bias` may be NULL. A warp or a block handles a
 * row (fours.cuh); gradients of gain and bias are sums down the columns (channels.cuh). */
#include "ops/cuda/channels.cuh"

enum { X, GAIN, BIAS };

/* Statistics of a row, in aux: xhat[i] = (x[i] - mean) rstd. */
typedef struct {
    float mean, rstd;
} row_facts;

template <int W>
RM_ROW_KERNEL forward(int64_t rows, int64_t c, double epsilon, const float *all_x, const float *gain, const float *bias,
                      float *y, row_facts *facts) {
    enum { HELD = RM_ROW_FOURS };
    const int64_t r = rm_row<W>();
    if (r >= rows) return; /* whole warps */
    const float *x = all_x + r * c;
    const rm_held<HELD> held = rm_hold<W, HELD>(x, c);
    double mean = 0, variance = 0; /* two sums: the difference of two large ones would lose the variance */
    rm_each_of_row<W>(held, x, c, [&](int64_t, float v) { mean += v; });
    mean = rm_row_sum<W>(mean) / (double)c;
    rm_each_of_row<W>(held, x, c, [&](int64_t, float v) { variance += (v - mean) * (v - mean); });
    variance = rm_row_sum<W>(variance) / (double)c;
    const row_facts f = {(float)mean, (float)(1 / sqrt(variance + epsilon))};
    rm_each_four<W, HELD>(c, [&](int64_t i, int h) {
        rm_four v = rm_four_of(held, x, c, i, h);
        const rm_four g = rm_load_four(gain + i, c - i), b = bias ? rm_load_four(bias + i, c - i) : rm_four{};
        RM_UNROLL for (int k = 0; k < 4; k++) v.v[k] = (v.v[k] - f.mean) * f.rstd * g.v[k] + b.v[k];
        rm_store_four(y + r * c + i, c - i, v);
    });
    if (facts && threadIdx.x % W == 0) facts[r] = f;
}

/* With g = dy gain, dx = rstd (g - mean(g) - xhat mean(g xhat)). */
template <int W>
RM_ROW_KERNEL backward_rows(int64_t rows, int64_t c, const float *all_x, const float *gain, const float *all_dy,
                            const row_facts *facts, float *dx) {
    enum { HELD = W == RM_ROW_MOST ? RM_ROW_FOURS / 2 : RM_ROW_FOURS }; /* two rows have to fit */
    const int64_t r = rm_row<W>();
    if (r >= rows) return;
    const row_facts f = facts[r];
    const float *x = all_x + r * c, *dy = all_dy + r * c;
    const rm_held<HELD> held_x = rm_hold<W, HELD>(x, c), held_dy = rm_hold<W, HELD>(dy, c);
    double mean_g = 0, mean_gx = 0;
    rm_each_four<W, HELD>(c, [&](int64_t i, int h) { /* past the row's end g is 0 */
                                                     const rm_four v = rm_four_of(held_x, x, c, i, h),
                                                                   d = rm_four_of(held_dy, dy, c, i, h);
                                                     const rm_four of_gain = rm_load_four(gain + i, c - i);
                                                     RM_UNROLL for (int k = 0; k < 4; k++) {
                                                         double g = d.v[k] * of_gain.v[k];
                                                         mean_g += g;
                                                         mean_gx += g * ((v.v[k] - f.mean) * f.rstd);
                                                     }
    });
    mean_g = rm_row_sum<W>(mean_g) / (double)c;
    mean_gx = rm_row_sum<W>(mean_gx) / (double)c;
    rm_each_four<W, HELD>(c, [&](int64_t i, int h) {
        const rm_four v = rm_four_of(held_x, x, c, i, h), of_gain = rm_load_four(gain + i, c - i);
        rm_four d = rm_four_of(held_dy, dy, c, i, h);
        RM_UNROLL for (int k = 0; k < 4; k++) {
            float xhat = (v.v[k] - f.mean) * f.rstd;
            d.v[k] = f.rstd * (d.v[k] * of_gain.v[k] - (float)mean_g - xhat * (float)mean_gx);
        }
        rm_store_four(dx + r * c + i, c - i, d);
    });
}

/* y = xhat gain + bias:  dgain += sum of dy xhat,  dbias += sum of dy. Either may be NULL. */
struct vector_gradients {
    typedef rm_sums<2> sum;
    const float *x, *dy;
    const row_facts *facts;
    float *dgain, *dbias;
    __device__ void take(sum *s, int64_t, const rm_place &p) const {
        const rm_four v = rm_load_place(x, p), d = rm_load_place(dy, p);
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < p.count) {
            const row_facts f = facts[p.outer + k * p.outer_step];
            s->v[0] += d.v[k] * ((v.v[k] - f.mean) * f.rstd);
            s->v[1] += d.v[k];
        }
    }
    __device__ sum end(const sum &s) const { return s; }
    __device__ void conclude(int64_t c, const sum &s) const {
        if (dgain) dgain[c] += (float)s.v[0];
        if (dbias) dbias[c] += (float)s.v[1];
    }
};

void rm_layer_norm_forward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->x[X].desc;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    RM_LAUNCH_ROWS(forward, rows, c, call->queue, rows, c, ((const rm_layer_norm_attr *)call->attr)->epsilon,
                   (const float *)call->x[X].data, (const float *)call->x[GAIN].data, (const float *)call->x[BIAS].data,
                   (float *)call->y.data, (row_facts *)call->aux);
}

void rm_layer_norm_backward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->dy.desc;
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    const row_facts *facts = (const row_facts *)call->aux;
    float *dx = (float *)call->dx[X].data, *dgain = (float *)call->dx[GAIN].data;
    float *dbias = (float *)call->dx[BIAS].data;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    if (dx)
        RM_LAUNCH_ROWS(backward_rows, rows, c, call->queue, rows, c, x, (const float *)call->x[GAIN].data, dy, facts,
                       dx);
    if (dgain || dbias) rm_launch_channels(call->queue, vector_gradients{x, dy, facts, dgain, dbias}, rows, c, 1, c);
}

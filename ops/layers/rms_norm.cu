/* rms_norm.cu: the CUDA kernels of the op `rms_norm` (rms_norm.c). A warp or a block handles a row (fours.cuh); gradients
 * of gain are sums down the columns: beside dx if a block holds a row (norm.h), else on their own (channels.cuh). */
#include "ops/layers/norm_sums.cuh"

enum { X, GAIN };

template <int W>
RM_ROW_KERNEL forward(int64_t rows, int64_t c, double epsilon, const float *all_x, const float *gain, float *y,
                      float *rstd) {
    enum { HELD = RM_ROW_FOURS };
    const int64_t r = rm_row<W>();
    if (r >= rows) return; /* whole warps */
    const float *x = all_x + r * c;
    const rm_held<HELD> held = rm_hold<W, HELD>(x, c);
    double sum = 0;
    rm_each_of_row<W>(held, x, c, [&](int64_t, float v) { sum += (double)v * (double)v; });
    const float factor = (float)(1 / sqrt(rm_row_sum<W>(sum) / (double)c + epsilon));
    rm_each_four<W, HELD>(c, [&](int64_t i, int h) {
        rm_four v = rm_four_of(held, x, c, i, h);
        const rm_four g = rm_load_four(gain + i, c - i);
        RM_UNROLL for (int k = 0; k < 4; k++) v.v[k] = v.v[k] * factor * g.v[k];
        rm_store_four(y + r * c + i, c - i, v);
    });
    if (rstd && threadIdx.x % W == 0) rstd[r] = factor;
}

/* With g = dy gain and xhat = x rstd, dx = rstd (g - xhat mean(g xhat)), for a row; dx may be NULL. also(h, k, dy, xhat)
 * sees element k of the four at h. */
template <int W, int HELD, typename F>
static __device__ inline void backward_row(int64_t r, int64_t c, const float *all_x, const float *gain,
                                           const float *all_dy, float factor, float *dx, F also) {
    const float *x = all_x + r * c, *dy = all_dy + r * c;
    const rm_held<HELD> held_x = rm_hold<W, HELD>(x, c), held_dy = rm_hold<W, HELD>(dy, c);
    double sum = 0;
    rm_each_four<W, HELD>(c, [&](int64_t i, int h) {
        const rm_four v = rm_four_of(held_x, x, c, i, h), d = rm_four_of(held_dy, dy, c, i, h);
        const rm_four g = rm_load_four(gain + i, c - i);
        RM_UNROLL for (int k = 0; k < 4; k++) sum += (double)(d.v[k] * g.v[k]) * (double)v.v[k];
    });
    const float mean = (float)(rm_row_sum<W>(sum) * factor / (double)c);
    rm_each_four<W, HELD>(c, [&](int64_t i, int h) {
        const rm_four v = rm_four_of(held_x, x, c, i, h), g = rm_load_four(gain + i, c - i);
        rm_four d = rm_four_of(held_dy, dy, c, i, h);
        RM_UNROLL for (int k = 0; k < 4; k++) {
            also(h, k, d.v[k], v.v[k] * factor);
            d.v[k] = factor * (d.v[k] * g.v[k] - v.v[k] * factor * mean);
        }
        if (dx) rm_store_four(dx + r * c + i, c - i, d);
    });
}

template <int W>
RM_ROW_KERNEL backward_rows(int64_t rows, int64_t c, const float *x, const float *gain, const float *dy,
                            const float *rstd, float *dx) {
    enum { HELD = W == RM_ROW_MOST ? RM_ROW_FOURS / 2 : RM_ROW_FOURS }; /* two rows have to fit */
    const int64_t r = rm_row<W>();
    if (r < rows) backward_row<W, HELD>(r, c, x, gain, dy, rstd[r], dx, [](int, int, float, float) {});
}

/* The same, and the sums of dy xhat over the block's rows. Without dx, too: they have the same bits. */
template <int W>
RM_NORM_KERNEL backward_with_sums(int64_t rows, int64_t c, const float *x, const float *gain, const float *dy,
                                  const float *rstd, float *dx, float *partial) {
    rm_norm_sums<W, 1> sums = {};
    const auto add = [&](int h, int k, float d, float xhat) { sums.add(0, h, k, d * xhat); };
    RM_EACH_NORM_ROW(r, rows) { backward_row<W, rm_norm_rows<W>::HELD>(r, c, x, gain, dy, rstd[r], dx, add); }
    rm_store_norm_sums(sums, c, partial);
}

/* dgain += sum of dy xhat */
struct gain_gradient {
    typedef rm_sums<1> sum;
    const float *x, *dy, *rstd;
    float *dgain;
    __device__ void take(sum *s, int64_t, const rm_place &p) const {
        const rm_four v = rm_load_place(x, p), d = rm_load_place(dy, p);
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < p.count) s->v[0] +=
            d.v[k] * (v.v[k] * rstd[p.outer + k * p.outer_step]);
    }
    __device__ sum end(const sum &s) const { return s; }
    __device__ void conclude(int64_t c, const sum &s) const { dgain[c] += (float)s.v[0]; }
};

void rm_rms_norm_forward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->x[X].desc;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    RM_LAUNCH_ROWS(forward, rows, c, call->queue, rows, c, ((const rm_rms_norm_attr *)call->attr)->epsilon,
                   (const float *)call->x[X].data, (const float *)call->x[GAIN].data, (float *)call->y.data,
                   (float *)call->aux);
}

void rm_rms_norm_backward_cuda(const remat_call *call) {
    const remat_desc *shape = &call->dy.desc;
    const float *x = (const float *)call->x[X].data, *dy = (const float *)call->dy.data;
    const float *rstd = (const float *)call->aux;
    float *dx = (float *)call->dx[X].data, *dgain = (float *)call->dx[GAIN].data;
    int64_t rows = rm_desc_rows(shape), c = rm_desc_last(shape);
    const float *gain = (const float *)call->x[GAIN].data;
    if (dgain && c <= RM_NORM_COLUMNS) {
        float *partial = (float *)call->scratch;
        RM_LAUNCH_NORM_ROWS(backward_with_sums, rows, c, call->queue, rows, c, x, gain, dy, rstd, dx, partial);
        rm_join_norm_sums(call->queue, partial, rows, c, 1, 0, dgain);
        return;
    }
    if (dx) RM_LAUNCH_ROWS(backward_rows, rows, c, call->queue, rows, c, x, gain, dy, rstd, dx);
    if (dgain) rm_launch_channels(call->queue, gain_gradient{x, dy, rstd, dgain}, rows, c, 1, c);
}

/* norm.cuh: the CUDA kernels that layer_norm and group_norm share. x consists of rows of n numbers, and a warp or a block
 * handles a row (fours.cuh): y = xhat gain + bias, with xhat = (x - mean) rstd, whose mean and variance are the row's. The
 * ops differ in where a row's gains and biases are: `vectors` is a struct with
 *
 *   rm_four gain(int64_t row, int64_t i), bias(row, i)   of the elements i..i+3 of a row; 0 past its end
 *   int64_t row_of(int64_t outer, int64_t c)             the row that has the vector's element c, for channels.cuh's `outer`
 */
#ifndef RM_NORM_CUH
#define RM_NORM_CUH

#include "ops/layers/norm_sums.cuh"

/* Statistics of a row, in aux. */
typedef struct {
    float mean, rstd;
} rm_norm_facts;

template <int W, typename V>
RM_ROW_KERNEL rm_norm_forward(V vectors, int64_t rows, int64_t n, double epsilon, const float *all_x, float *y,
                              rm_norm_facts *facts) {
    enum { HELD = RM_ROW_FOURS };
    const int64_t r = rm_row<W>();
    if (r >= rows) return; /* whole warps */
    const float *x = all_x + r * n;
    const rm_held<HELD> held = rm_hold<W, HELD>(x, n);
    double mean = 0, variance = 0; /* two sums: the difference of two large ones would lose the variance */
    rm_each_of_row<W>(held, x, n, [&](int64_t, float v) { mean += v; });
    mean = rm_row_sum<W>(mean) / (double)n;
    rm_each_of_row<W>(held, x, n, [&](int64_t, float v) { variance += (v - mean) * (v - mean); });
    variance = rm_row_sum<W>(variance) / (double)n;
    const rm_norm_facts f = {(float)mean, (float)(1 / sqrt(variance + epsilon))};
    rm_each_four<W, HELD>(n, [&](int64_t i, int h) {
        rm_four v = rm_four_of(held, x, n, i, h);
        const rm_four g = vectors.gain(r, i), b = vectors.bias(r, i);
        RM_UNROLL for (int k = 0; k < 4; k++) v.v[k] = (v.v[k] - f.mean) * f.rstd * g.v[k] + b.v[k];
        rm_store_four(y + r * n + i, n - i, v);
    });
    if (facts && threadIdx.x % W == 0) facts[r] = f;
}

/* With g = dy gain, dx = rstd (g - mean(g) - xhat mean(g xhat)), for a row; dx may be NULL. also(h, k, dy, xhat) sees element
 * k of the four at h. */
template <int W, int HELD, typename V, typename F>
static __device__ inline void rm_norm_backward_row(const V &vectors, int64_t r, int64_t n, const float *all_x,
                                                   const float *all_dy, const rm_norm_facts &f, float *dx, F also) {
    const float *x = all_x + r * n, *dy = all_dy + r * n;
    const rm_held<HELD> held_x = rm_hold<W, HELD>(x, n), held_dy = rm_hold<W, HELD>(dy, n);
    double mean_g = 0, mean_gx = 0; /* past the row's end g is 0 */
    rm_each_four<W, HELD>(n, [&](int64_t i, int h) {
        const rm_four v = rm_four_of(held_x, x, n, i, h), d = rm_four_of(held_dy, dy, n, i, h);
        const rm_four of_gain = vectors.gain(r, i);
        RM_UNROLL for (int k = 0; k < 4; k++) {
            double g = d.v[k] * of_gain.v[k];
            mean_g += g;
            mean_gx += g * ((v.v[k] - f.mean) * f.rstd);
        }
    });
    mean_g = rm_row_sum<W>(mean_g) / (double)n;
    mean_gx = rm_row_sum<W>(mean_gx) / (double)n;
    rm_each_four<W, HELD>(n, [&](int64_t i, int h) {
        const rm_four v = rm_four_of(held_x, x, n, i, h), of_gain = vectors.gain(r, i);
        rm_four d = rm_four_of(held_dy, dy, n, i, h);
        RM_UNROLL for (int k = 0; k < 4; k++) {
            float xhat = (v.v[k] - f.mean) * f.rstd;
            also(h, k, d.v[k], xhat);
            d.v[k] = f.rstd * (d.v[k] * of_gain.v[k] - (float)mean_g - xhat * (float)mean_gx);
        }
        if (dx) rm_store_four(dx + r * n + i, n - i, d);
    });
}

template <int W, typename V>
RM_ROW_KERNEL rm_norm_backward(V vectors, int64_t rows, int64_t n, const float *x, const float *dy,
                               const rm_norm_facts *facts, float *dx) {
    enum { HELD = W == RM_ROW_MOST ? RM_ROW_FOURS / 2 : RM_ROW_FOURS }; /* two rows have to fit */
    const int64_t r = rm_row<W>();
    if (r >= rows) return;
    rm_norm_backward_row<W, HELD>(vectors, r, n, x, dy, facts[r], dx, [](int, int, float, float) {});
}

/* The same, and the sums of dy xhat and of dy over the block's rows, for gains and biases (norm.h). Without dx, too: they
 * have the same bits. */
template <int W, typename V>
RM_NORM_KERNEL rm_norm_backward_with_sums(V vectors, int64_t rows, int64_t n, const float *x, const float *dy,
                                          const rm_norm_facts *facts, float *dx, float *partial) {
    rm_norm_sums<W, 2> sums = {};
    const auto add = [&](int h, int k, float d, float xhat) { sums.add(0, h, k, d * xhat), sums.add(1, h, k, d); };
    RM_EACH_NORM_ROW(r, rows) {
        rm_norm_backward_row<W, rm_norm_rows<W>::HELD>(vectors, r, n, x, dy, facts[r], dx, add);
    }
    rm_store_norm_sums(sums, n, partial);
}

/* dgain += sum of dy xhat,  dbias += sum of dy. Either may be NULL. */
template <typename V> struct rm_norm_vector_gradients {
    typedef rm_sums<2> sum;
    V vectors;
    const float *x, *dy;
    const rm_norm_facts *facts;
    float *dgain, *dbias;
    __device__ void take(sum *to, int64_t c, const rm_place &p) const {
        const rm_four v = rm_load_place(x, p), d = rm_load_place(dy, p);
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < p.count) {
            const rm_norm_facts f = facts[vectors.row_of(p.outer + k * p.outer_step, c)];
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

#endif

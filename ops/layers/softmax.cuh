/* softmax.cuh: CUDA kernels shared by softmax.cu and log_softmax.cu, a warp or a block per row (fours.cuh). LOGARITHM
 * selects log-softmax. */
#include "ops/cuda/fours.cuh"

template <int W> RM_ROW_KERNEL make_rows(int64_t rows, int64_t c, const float *all_x, float *y) {
    enum { HELD = RM_ROW_FOURS };
    const int64_t r = rm_row<W>();
    if (r >= rows) return; /* whole warps */
    const float *x = all_x + r * c;
    const rm_held<HELD> held = rm_hold<W, HELD>(x, c);
    float largest = x[0];
    double sum = 0;
    rm_each_of_row<W>(held, x, c, [&](int64_t, float v) { largest = v > largest ? v : largest; });
    largest = rm_row_largest<W>(largest);
    rm_each_of_row<W>(held, x, c, [&](int64_t, float v) { sum += expf(v - largest); });
    sum = rm_row_sum<W>(sum);
    const float log_sum = LOGARITHM ? (float)log(sum) : 0;
    rm_map_row<W>(held, x, c, y + r * c, [&](int64_t, float v) {
        return LOGARITHM ? v - largest - log_sum : (float)(expf(v - largest) / sum);
    });
}

/* dx = y (dy - sum of dy y); log-softmax: dy - e^y sum of dy */
template <int W> RM_ROW_KERNEL slope_rows(int64_t rows, int64_t c, const float *all_y, const float *all_dy, float *dx) {
    enum { HELD = W == RM_ROW_MOST ? RM_ROW_FOURS / 2 : RM_ROW_FOURS }; /* two rows have to fit */
    const int64_t r = rm_row<W>();
    if (r >= rows) return;
    const float *y = all_y + r * c, *dy = all_dy + r * c;
    const rm_held<HELD> held_y = rm_hold<W, HELD>(y, c), held_dy = rm_hold<W, HELD>(dy, c);
    double sum = 0;
    rm_each_four<W, HELD>(c, [&](int64_t i, int h) { /* past the row's end dy is 0 */
                                                     const rm_four v = rm_four_of(held_y, y, c, i, h),
                                                                   d = rm_four_of(held_dy, dy, c, i, h);
                                                     RM_UNROLL for (int k = 0; k < 4; k++) sum +=
                                                         LOGARITHM ? d.v[k] : (double)d.v[k] * (double)v.v[k];
    });
    const float s = (float)rm_row_sum<W>(sum);
    rm_each_four<W, HELD>(c, [&](int64_t i, int h) {
        const rm_four v = rm_four_of(held_y, y, c, i, h);
        rm_four d = rm_four_of(held_dy, dy, c, i, h);
        RM_UNROLL for (int k = 0; k < 4; k++) d.v[k] = LOGARITHM ? d.v[k] - expf(v.v[k]) * s : v.v[k] * (d.v[k] - s);
        rm_store_four(dx + r * c + i, c - i, d);
    });
}

static void launch_forward(const remat_call *call) {
    const int64_t rows = rm_desc_rows(&call->y.desc), c = rm_desc_last(&call->y.desc);
    RM_LAUNCH_ROWS(make_rows, rows, c, call->queue, rows, c, (const float *)call->x[0].data, (float *)call->y.data);
}

static void launch_backward(const remat_call *call) {
    const int64_t rows = rm_desc_rows(&call->dy.desc), c = rm_desc_last(&call->dy.desc);
    if (!call->dx[0].data) return;
    RM_LAUNCH_ROWS(slope_rows, rows, c, call->queue, rows, c, (const float *)call->y.data, (const float *)call->dy.data,
                   (float *)call->dx[0].data);
}

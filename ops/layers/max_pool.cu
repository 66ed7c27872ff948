/* max_pool.cu: the CUDA kernels of the op `max_pool` (max_pool.c). Windows of 2 x 2 side by side: a thread for two windows, which
 * reads x once, and in backward writes dx where they are. Others: a thread per window, and in backward a thread per element of dx,
 * which visits all windows that cover it. */
#include "ops/cuda/fours.cuh"

extern "C" {
#include "ops/layers/pool.h"
}

/* The index of a window's maximum, the first if there are several; NaN counts as larger than any number. */
static __device__ int64_t largest(const rm_pool_shape *s, const float *plane, int64_t r, int64_t q) {
    rm_pool_window w = rm_pool_window_at(s, r, q);
    int64_t best = w.y[0] * s->in[1] + w.x[0];
    for (int64_t y = w.y[0]; y < w.y[1]; y++)
        for (int64_t x = w.x[0]; x < w.x[1]; x++) {
            float value = plane[y * s->in[1] + x];
            if (value > plane[best] || value != value) best = y * s->in[1] + x;
        }
    return best;
}

static __global__ void take_largest(rm_pool_shape s, int64_t count, const float *x, float *y) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.out[1]), q = e - row * s.out[1], plane = rm_row_of(row, s.out[0]);
        const float *from = x + plane * s.in[0] * s.in[1];
        y[e] = from[largest(&s, from, row - plane * s.out[0], q)];
    }
}

static __global__ void give_to_largest(rm_pool_shape s, int64_t count, const float *x, const float *dy, float *dx) {
    RM_EACH(e, count) {
        int64_t row = rm_row_of(e, s.in[1]), across = e - row * s.in[1], plane = rm_row_of(row, s.in[0]);
        int64_t down = row - plane * s.in[0], place = down * s.in[1] + across;
        const float *from = x + plane * s.in[0] * s.in[1], *above = dy + plane * s.out[0] * s.out[1];
        float sum = 0;
        for (int64_t r = rm_pool_first_over(&s, 0, down); r < s.out[0] && r * s.stride[0] <= down + s.padding[0]; r++)
            for (int64_t q = rm_pool_first_over(&s, 1, across);
                 q < s.out[1] && q * s.stride[1] <= across + s.padding[1]; q++)
                if (largest(&s, from, r, q) == place) sum += above[r * s.out[1] + q];
        dx[e] = sum;
    }
}

/* ---- Windows of 2 x 2 side by side --------------------------------------------------------------------------------- */

static inline bool is_halves(const rm_pool_shape &s) {
    bool is = true;
    for (int d = 0; d < 2; d++) is = is && s.window[d] == 2 && s.stride[d] == 2 && !s.padding[d];
    return is;
}

/* Two windows: four pixels of two rows, from column `left` on. A row or column at the plane's end may be in no window. */
typedef struct {
    rm_four row[2];
    int64_t plane, r, left;
} pair;

static inline int64_t pairs_of(const rm_pool_shape &s) { return s.planes * ((s.in[0] + 1) / 2) * ((s.in[1] + 3) / 4); }

static __device__ inline int64_t pixel_of(const rm_pool_shape &s, const pair &p, int row) {
    return (p.plane * s.in[0] + 2 * p.r + row) * s.in[1] + p.left;
}
static __device__ inline bool has_row(const rm_pool_shape &s, const pair &p, int row) { return 2 * p.r + row < s.in[0]; }

static __device__ inline pair pair_of(const rm_pool_shape &s, int64_t e, const float *x) {
    const int64_t across = (s.in[1] + 3) / 4, down = (s.in[0] + 1) / 2, row = rm_row_of(e, across);
    pair p;
    p.left = 4 * (e - row * across), p.plane = rm_row_of(row, down), p.r = row - p.plane * down;
    RM_UNROLL for (int i = 0; i < 2; i++) p.row[i] =
        has_row(s, p, i) ? rm_load_four(x + pixel_of(s, p, i), s.in[1] - p.left) : rm_four{};
    return p;
}

/* The place of a window's maximum, 0 .. 3, as in `largest`. */
static __device__ inline int largest_of(const pair &p, int window, float *most) {
    int best = 0;
    *most = p.row[0].v[2 * window];
    RM_UNROLL for (int k = 0; k < 4; k++) {
        const float value = p.row[k / 2].v[2 * window + k % 2];
        if (value > *most || value != value) best = k, *most = value;
    }
    return best;
}

/* The element of y for a window; -1: there is none. */
static __device__ inline int64_t window_of(const rm_pool_shape &s, const pair &p, int window) {
    const int64_t q = p.left / 2 + window;
    return p.r < s.out[0] && q < s.out[1] ? (p.plane * s.out[0] + p.r) * s.out[1] + q : -1;
}

static __global__ void halve(rm_pool_shape s, int64_t pairs, const float *x, float *y) {
    RM_EACH(e, pairs) {
        const pair p = pair_of(s, e, x);
        RM_UNROLL for (int window = 0; window < 2; window++) {
            const int64_t at = window_of(s, p, window);
            float most;
            largest_of(p, window, &most);
            if (at >= 0) y[at] = most;
        }
    }
}

static __global__ void halve_back(rm_pool_shape s, int64_t pairs, const float *x, const float *dy, float *dx) {
    RM_EACH(e, pairs) {
        const pair p = pair_of(s, e, x);
        rm_four row[2] = {};
        RM_UNROLL for (int window = 0; window < 2; window++) {
            const int64_t at = window_of(s, p, window);
            float most;
            const int best = largest_of(p, window, &most);
            const float d = at < 0 ? 0 : dy[at];
            RM_UNROLL for (int k = 0; k < 4; k++) row[k / 2].v[2 * window + k % 2] = k == best ? 0 + d : 0;
        }
        RM_UNROLL for (int i = 0; i < 2; i++) if (has_row(s, p, i))
            rm_store_four(dx + pixel_of(s, p, i), s.in[1] - p.left, row[i]);
    }
}

/* ---- Launchers ------------------------------------------------------------------------------------------------------ */

void rm_max_pool_forward_cuda(const remat_call *call) {
    rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->y.desc);
    const float *x = (const float *)call->x[0].data;
    if (is_halves(s))
        RM_LAUNCH_EACH(halve, pairs_of(s), call->queue, s, pairs_of(s), x, (float *)call->y.data);
    else
        RM_LAUNCH_EACH(take_largest, count, call->queue, s, count, x, (float *)call->y.data);
}

void rm_max_pool_backward_cuda(const remat_call *call) {
    rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    int64_t count = rm_desc_count(&call->x[0].desc);
    const float *x = (const float *)call->x[0].data, *dy = (const float *)call->dy.data;
    float *dx = (float *)call->dx[0].data;
    if (!dx) return;
    if (is_halves(s))
        RM_LAUNCH_EACH(halve_back, pairs_of(s), call->queue, s, pairs_of(s), x, dy, dx);
    else
        RM_LAUNCH_EACH(give_to_largest, count, call->queue, s, count, x, dy, dx);
}

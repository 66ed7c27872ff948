/* max_pool.cu: the CUDA kernels of the op `max_pool` (max_pool.c). Windows of 2 x 2 side by side: a thread for two windows
 * (pool.cuh). Windows of 3 x 3, two apart: a thread for four windows, and in backward for eight elements of dx. Others: a
 * thread per window, and in backward a thread per element of dx, which visits all windows that cover it. */
#include "ops/layers/pool.cuh"

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

/* The place of a window's maximum, 0 .. 3, as in `largest`. */
static __device__ inline int largest_of(const rm_pool_pixels &pixels, int window, float *most) {
    int best = 0;
    *most = rm_pool_pixel(pixels, window, 0);
    RM_UNROLL for (int k = 0; k < 4; k++) {
        const float value = rm_pool_pixel(pixels, window, k);
        if (value > *most || value != value) best = k, *most = value;
    }
    return best;
}

static __global__ void halve(rm_pool_shape s, int64_t pairs, const float *x, float *y) {
    RM_EACH(e, pairs) {
        const rm_pool_pair p = rm_pool_pair_at(s, e);
        const rm_pool_pixels pixels = rm_pool_load(s, p, x);
        RM_UNROLL for (int window = 0; window < 2; window++) {
            const int64_t at = rm_pool_window_of(s, p, window);
            float most;
            largest_of(pixels, window, &most);
            if (at >= 0) y[at] = most;
        }
    }
}

static __global__ void halve_back(rm_pool_shape s, int64_t pairs, const float *x, const float *dy, float *dx) {
    RM_EACH(e, pairs) {
        const rm_pool_pair p = rm_pool_pair_at(s, e);
        const rm_pool_pixels pixels = rm_pool_load(s, p, x);
        rm_pool_pixels gradient;
        RM_UNROLL for (int window = 0; window < 2; window++) {
            const int64_t at = rm_pool_window_of(s, p, window);
            float most;
            const int best = largest_of(pixels, window, &most);
            const float d = at < 0 ? 0 : dy[at];
            RM_UNROLL for (int k = 0; k < 4; k++) rm_pool_pixel(gradient, window, k) = k == best ? 0 + d : 0;
        }
        rm_pool_store(s, p, dx, gradient);
    }
}

/* ---- Windows of 3 x 3, two apart: each shares a row or column with the next ------------------------------------------ */

/* The padding, 0 or 1; -1: these are other windows. */
static inline int padding_of_threes(const rm_pool_shape &s) {
    bool is = s.padding[0] == s.padding[1];
    for (int d = 0; d < 2; d++) is = is && s.window[d] == 3 && s.stride[d] == 2;
    return is ? (int)s.padding[0] : -1;
}

/* R x C windows. best: the place of a maximum, row * (2 C + 1) + column in the part of the plane that they cover; -1:
 * the window has no pixel. */
template <int R, int C> struct threes {
    float most[R * C];
    int best[R * C];
};

/* The maxima, as in `largest`, of the windows from (r,q) on, which may be outside the plane. Column FOUR of their part of
 * the plane is in the plane, and a multiple of 4. */
template <int R, int C, int FOUR>
static __device__ inline threes<R, C> threes_at(const rm_pool_shape &s, const float *plane, int64_t r, int64_t q) {
    enum { WIDTH = 2 * C + 1 };
    const int64_t top = 2 * r - s.padding[0], left = 2 * q - s.padding[1];
    threes<R, C> t = {};
    RM_UNROLL for (int w = 0; w < R * C; w++) t.best[w] = -1;
    RM_UNROLL for (int i = 0; i < 2 * R + 1; i++) {
        if (top + i < 0 || top + i >= s.in[0]) continue;
        const float *row = plane + (top + i) * s.in[1];
        const rm_four four = rm_load_four(row + left + FOUR, s.in[1] - left - FOUR);
        RM_UNROLL for (int j = 0; j < WIDTH; j++) {
            if (left + j < 0 || left + j >= s.in[1]) continue;
            const float value = j < FOUR || j >= FOUR + 4 ? row[left + j] : four.v[(j - FOUR) & 3];
            RM_UNROLL for (int w = 0; w < R * C; w++) {
                const int down = i - w / C * 2, across = j - w % C * 2;
                if (down < 0 || down > 2 || across < 0 || across > 2) continue;
                if (t.best[w] < 0 || value > t.most[w] || value != value) t.best[w] = i * WIDTH + j, t.most[w] = value;
            }
        }
    }
    return t;
}

/* The element of y for window (r,q); -1: there is none. */
static __device__ inline int64_t window_at(const rm_pool_shape &s, int64_t plane, int64_t r, int64_t q) {
    return 0 <= r && r < s.out[0] && 0 <= q && q < s.out[1] ? (plane * s.out[0] + r) * s.out[1] + q : -1;
}

/* The number of tiles of 2 rows and `columns` columns that cover all planes of this size. */
static inline int64_t tiles_of(int64_t planes, const int64_t *size, int64_t columns) {
    return planes * ((size[0] + 1) / 2) * ((size[1] + columns - 1) / columns);
}

/* Where tile e starts. */
typedef struct {
    int64_t plane, row, column;
} tile;
static __device__ inline tile tile_at(const int64_t *size, int64_t columns, int64_t e) {
    const int64_t across = (size[1] + columns - 1) / columns, down = (size[0] + 1) / 2, row = rm_row_of(e, across);
    const int64_t plane = rm_row_of(row, down);
    return {plane, 2 * (row - plane * down), columns * (e - row * across)};
}

/* A thread for 2 x 2 windows. */
template <int PADDING> static __global__ void take_threes(rm_pool_shape s, int64_t tiles, const float *x, float *y) {
    RM_EACH(e, tiles) {
        const tile a = tile_at(s.out, 2, e);
        const threes<2, 2> t = threes_at<2, 2, PADDING>(s, x + a.plane * s.in[0] * s.in[1], a.row, a.column);
        RM_UNROLL for (int w = 0; w < 4; w++) {
            const int64_t at = window_at(s, a.plane, a.row + w / 2, a.column + w % 2);
            if (at >= 0) y[at] = t.most[w];
        }
    }
}

/* A thread for 2 x 4 elements of dx, which 2 x 3 windows cover. Their part of the plane starts 2 - PADDING rows above and
 * columns before these elements. */
template <int PADDING>
static __global__ void give_to_threes(rm_pool_shape s, int64_t tiles, const float *x, const float *dy, float *dx) {
    enum { FROM = 2 - PADDING };
    RM_EACH(e, tiles) {
        const tile a = tile_at(s.in, 4, e);
        const int64_t start = a.plane * s.in[0] * s.in[1], r = a.row / 2 - 1 + PADDING, q = a.column / 2 - 1 + PADDING;
        const threes<2, 3> t = threes_at<2, 3, FROM>(s, x + start, r, q);
        float d[6];
        RM_UNROLL for (int w = 0; w < 6; w++) {
            const int64_t at = window_at(s, a.plane, r + w / 3, q + w % 3);
            d[w] = at < 0 ? 0 : dy[at];
        }
        RM_UNROLL for (int i = 0; i < 2; i++) {
            rm_four sum = {};
            RM_UNROLL for (int k = 0; k < 4 * 6; k++) {
                const int w = k % 6, place = (FROM + i) * 7 + FROM + k / 6;
                if (t.best[w] == place) sum.v[k / 6] += d[w];
            }
            if (a.row + i < s.in[0])
                rm_store_four(dx + start + (a.row + i) * s.in[1] + a.column, s.in[1] - a.column, sum);
        }
    }
}

/* ---- Launchers ------------------------------------------------------------------------------------------------------ */

void rm_max_pool_forward_cuda(const remat_call *call) {
    const rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    const int64_t count = rm_desc_count(&call->y.desc), pairs = rm_pool_pairs(s), tiles = tiles_of(s.planes, s.out, 2);
    const float *x = (const float *)call->x[0].data;
    float *y = (float *)call->y.data;
    if (rm_pool_halves(s))
        RM_LAUNCH_EACH(halve, pairs, call->queue, s, pairs, x, y);
    else if (padding_of_threes(s) == 0)
        RM_LAUNCH_EACH(take_threes<0>, tiles, call->queue, s, tiles, x, y);
    else if (padding_of_threes(s) == 1)
        RM_LAUNCH_EACH(take_threes<1>, tiles, call->queue, s, tiles, x, y);
    else
        RM_LAUNCH_EACH(take_largest, count, call->queue, s, count, x, y);
}

void rm_max_pool_backward_cuda(const remat_call *call) {
    const rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    const int64_t count = rm_desc_count(&call->x[0].desc), pairs = rm_pool_pairs(s),
                  tiles = tiles_of(s.planes, s.in, 4);
    const float *x = (const float *)call->x[0].data, *dy = (const float *)call->dy.data;
    float *dx = (float *)call->dx[0].data;
    if (!dx) return;
    if (rm_pool_halves(s))
        RM_LAUNCH_EACH(halve_back, pairs, call->queue, s, pairs, x, dy, dx);
    else if (padding_of_threes(s) == 0)
        RM_LAUNCH_EACH(give_to_threes<0>, tiles, call->queue, s, tiles, x, dy, dx);
    else if (padding_of_threes(s) == 1)
        RM_LAUNCH_EACH(give_to_threes<1>, tiles, call->queue, s, tiles, x, dy, dx);
    else
        RM_LAUNCH_EACH(give_to_largest, count, call->queue, s, count, x, dy, dx);
}

/* max_pool.c: the maximum of every window of a plane, PyTorch's MaxPool2d. Backward searches for its position again. */
#include "ops/layers/pool.h"

#include <string.h>

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)state;
    TRY(rm_pool_infer("max_pool", x, attr, y));
    REQUIRE(x->dim[x->rank - 2] <= INT32_MAX / x->dim[x->rank - 1], INVALID,
            "max_pool: a plane of %lld x %lld has more than 2^31 pixels", (long long)x->dim[x->rank - 2],
            (long long)x->dim[x->rank - 1]);
    return REMAT_OK;
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    const rm_pool_attr *a = attr;
    double bytes = (double)(rm_desc_count(x) + rm_desc_count(y)) * sizeof(real);
    *out = (remat_cost){.flops = (double)(rm_desc_count(y) * a->window[0] * a->window[1]), .moved_bytes = bytes};
    if (pass == REMAT_BACKWARD) out->moved_bytes += bytes;
}

/* ---- A row of windows at a time: the loops run along the row, so that compilers vectorise them ------------------- */

enum { BLOCK = 256 }; /* windows */

typedef struct {
    real best[BLOCK];
    int32_t where[BLOCK]; /* in the plane */
} largest;

/* Compares one element of each window, at `at` + q stride in the plane for window q. If several elements are the
 * maximum, the first is used; NaN counts as larger than any number. */
static inline void compare(largest *l, int64_t first, int64_t count, const real *plane, int64_t at, int64_t stride) {
    real *best = l->best + first;
    int32_t *where = l->where + first;
    for (int64_t q = 0; q < count; q++) {
        real value = plane[at + q * stride];
        bool more = (value > best[q]) | (value != value);
        best[q] = more ? value : best[q];
        where[q] = more ? (int32_t)(at + q * stride) : where[q];
    }
}

/* The maxima of windows from .. to-1 of row r. */
static void find_largest(const rm_pool_shape *s, const real *plane, int64_t r, int64_t from, int64_t to, largest *l) {
    const int64_t width = s->in[1], stride = s->stride[1];
    const rm_pool_window rows = rm_pool_window_at(s, r, from);
    for (int64_t q = from; q < to; q++) {
        l->best[q - from] = -INFINITY;
        l->where[q - from] = (int32_t)(rows.y[0] * width + rm_pool_window_at(s, r, q).x[0]);
    }
    for (int64_t y = rows.y[0]; y < rows.y[1]; y++)
        for (int64_t j = 0; j < s->window[1]; j++) {
            int64_t ahead = j - s->padding[1]; /* of q stride */
            int64_t first = ahead < 0 ? (stride - 1 - ahead) / stride : 0,
                    end = ahead < width ? (width - 1 - ahead) / stride + 1 : 0;
            if (first < from) first = from;
            if (end > to) end = to;
            int64_t at = y * width + first * stride + ahead;
            if (stride == 1)
                compare(l, first - from, end - first, plane, at, 1);
            else if (stride == 2)
                compare(l, first - from, end - first, plane, at, 2);
            else
                compare(l, first - from, end - first, plane, at, stride);
        }
}

static void forward(const remat_call *call) {
    const rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    const real *x = call->x[0].data;
    real *y = call->y.data;
    int64_t pixels = s.in[0] * s.in[1], rows = s.planes * s.out[0];
    RM_PARALLEL_FOR(
        call->threads, s.planes * pixels > RM_PARALLEL_MIN, for (int64_t row = 0; row < rows; row++) {
            for (int64_t from = 0; from < s.out[1]; from += BLOCK) {
                largest l;
                int64_t to = from + BLOCK < s.out[1] ? from + BLOCK : s.out[1];
                find_largest(&s, x + row / s.out[0] * pixels, row % s.out[0], from, to, &l);
                memcpy(y + row * s.out[1] + from, l.best, (size_t)(to - from) * sizeof *y);
            }
        });
}

static void backward(const remat_call *call) {
    const rm_pool_shape s = rm_pool_shape_of(&call->x[0].desc, call->attr);
    const real *x = call->x[0].data, *dy = call->dy.data;
    real *dx = call->dx[0].data;
    int64_t pixels = s.in[0] * s.in[1], positions = s.out[0] * s.out[1];
    if (!dx) return;
    RM_PARALLEL_FOR(
        call->threads, s.planes * pixels > RM_PARALLEL_MIN, for (int64_t plane = 0; plane < s.planes; plane++) {
            const real *above = dy + plane * positions;
            real *to = dx + plane * pixels;
            for (int64_t i = 0; i < pixels; i++) to[i] = 0;
            for (int64_t r = 0; r < s.out[0]; r++)
                for (int64_t from = 0; from < s.out[1]; from += BLOCK) {
                    largest l;
                    int64_t count = s.out[1] - from < BLOCK ? s.out[1] - from : BLOCK;
                    find_largest(&s, x + plane * pixels, r, from, from + count, &l);
                    for (int64_t q = 0; q < count; q++) to[l.where[q]] += *above++;
                }
        });
}

static const rm_pool_attr halves = {{2, 2}, {2, 2}, {0, 0}}, overlapping = {{3, 2}, {2, 1}, {1, 1}};
static const remat_sample samples[] = {
    {.name = "halves", .attr = &halves, .x = {RM_SHAPE4(RM_REAL, 2, 3, 4, 7)}},
    {.name = "windows that overlap", .attr = &overlapping, .x = {RM_SHAPE3(RM_REAL, 2, 5, 6)}},
    {.name = "sequence", .sequence = true, .attr = &overlapping, .x = {RM_SHAPE4(RM_REAL, 4, 2, 3, 4)}},
    {.name = "large enough for threads", .attr = &overlapping, .x = {RM_SHAPE4(RM_REAL, 2, 5, 83, 81)}},
};

const remat_op RM_OP(max_pool) = {
    .struct_bytes = sizeof(remat_op),
    .name = "max_pool",
    .doc = "y (..,H',W') = the maximum of each window of x (..,H,W)",
    .n_in = 1,
    .attr_bytes = sizeof(rm_pool_attr),
    .time = REMAT_TIME_POINTWISE,
    .saves = {.in = 1},
    .infer = infer,
    .cost = cost,
    .define_forward = forward,
    .define_backward = backward,
    .on = {{.forward = forward, .backward = backward}, RM_CUDA_KERNELS(max_pool)},
    .cheap = true,
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

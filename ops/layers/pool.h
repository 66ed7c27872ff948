/* pool.h: windows over planes, shared by max_pool and avg_pool on the CPU and on CUDA. */
#ifndef RM_POOL_H
#define RM_POOL_H

#include "ops/real.h"

#include "engine/host_device.h"
#include "ops/op.h"

typedef struct {
    int64_t planes, in[2], out[2], window[2], stride[2], padding[2]; /* height, width */
} rm_pool_shape;

/* The last two axes of x are a plane. */
static inline rm_pool_shape rm_pool_shape_of(const remat_desc *x, const void *attr) {
    const rm_pool_attr *a = (const rm_pool_attr *)attr;
    rm_pool_shape s = {1, {1, 1}, {0, 0}, {1, 1}, {1, 1}, {0, 0}};
    for (int d = 0; d < x->rank - 2; d++) s.planes *= x->dim[d];
    for (int d = 0; d < 2; d++) {
        s.in[d] = x->dim[x->rank - 2 + d];
        s.window[d] = a->window[d], s.stride[d] = a->stride[d], s.padding[d] = a->padding[d];
        int64_t room = s.in[d] + 2 * s.padding[d] - s.window[d];
        s.out[d] = room < 0 ? 0 : room / s.stride[d] + 1;
    }
    return s;
}

typedef struct {
    int64_t y[2], x[2]; /* from, to */
} rm_pool_window;

/* The part of the plane under window (r,q). */
RM_HD rm_pool_window rm_pool_window_at(const rm_pool_shape *s, int64_t r, int64_t q) {
    int64_t y = r * s->stride[0] - s->padding[0], x = q * s->stride[1] - s->padding[1];
    int64_t bottom = y + s->window[0], right = x + s->window[1];
    rm_pool_window w = {{y > 0 ? y : 0, bottom < s->in[0] ? bottom : s->in[0]},
                        {x > 0 ? x : 0, right < s->in[1] ? right : s->in[1]}};
    return w;
}

/* The first window that covers position y of an axis; the last one is (y + padding) / stride. */
RM_HD int64_t rm_pool_first_over(const rm_pool_shape *s, int axis, int64_t y) {
    int64_t start = y + s->padding[axis] - s->window[axis] + 1;
    return start > 0 ? (start + s->stride[axis] - 1) / s->stride[axis] : 0;
}

#ifndef __cplusplus
#include "ops/shape.h"

/* Both ops' infer. */
static inline remat_status rm_pool_infer(const char *op, const remat_desc *x, const void *attr, remat_desc *y) {
    static const char *const axis[] = {"height", "width"};
    const rm_pool_attr *a = attr;
    TRY(rm_want_real(op, "x", x));
    TRY(rm_want_rank(op, "x", x, 3, REMAT_MAX_RANK));
    for (int d = 0; d < 2; d++)
        REQUIRE(a && a->window[d] > 0 && a->stride[d] > 0 && a->padding[d] >= 0 && a->window[d] <= INT32_MAX &&
                    a->stride[d] <= INT32_MAX && 2 * a->padding[d] <= a->window[d],
                INVALID,
                "%s: along the %s, the window is %lld, the stride %lld and the padding %lld; window and stride must be "
                "from 1 to 2^31 - 1, and the padding at most half the window",
                op, axis[d], a ? (long long)a->window[d] : 0, a ? (long long)a->stride[d] : 0,
                a ? (long long)a->padding[d] : 0);
    rm_pool_shape s = rm_pool_shape_of(x, attr);
    for (int d = 0; d < 2; d++)
        REQUIRE(s.out[d] > 0, INVALID,
                "%s: along the %s, a window of %lld does not fit into %lld with a padding of %lld at both ends", op,
                axis[d], (long long)s.window[d], (long long)s.in[d], (long long)s.padding[d]);
    *y = *x;
    for (int d = 0; d < 2; d++) y->dim[x->rank - 2 + d] = s.out[d];
    return REMAT_OK;
}

#endif

#endif

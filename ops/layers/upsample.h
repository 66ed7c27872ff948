/* upsample.h: the source pixels of an upsampled pixel, for the CPU and CUDA. */
#ifndef RM_UPSAMPLE_H
#define RM_UPSAMPLE_H

#include "ops/real.h"

#include "engine/host_device.h"
#include "ops/op.h"

typedef struct {
    int64_t planes, in[2], out[2], scale[2], mode; /* height, width */
    double ratio[2];                               /* distance in x per pixel of y */
} rm_upsample_shape;

/* The last two axes of x are a plane. */
static inline rm_upsample_shape rm_upsample_shape_of(const remat_desc *x, const void *attr) {
    const rm_upsample_attr *a = (const rm_upsample_attr *)attr;
    rm_upsample_shape s = {1, {1, 1}, {1, 1}, {1, 1}, a->mode, {0, 0}};
    for (int d = 0; d < x->rank - 2; d++) s.planes *= x->dim[d];
    for (int d = 0; d < 2; d++) {
        s.in[d] = x->dim[x->rank - 2 + d], s.scale[d] = a->scale[d], s.out[d] = s.in[d] * s.scale[d];
        s.ratio[d] = 1 / (double)s.scale[d];
        if (s.mode == REMAT_BILINEAR_CORNERS)
            s.ratio[d] = s.out[d] > 1 ? (double)(s.in[d] - 1) / (double)(s.out[d] - 1) : 0;
    }
    return s;
}

/* (1 - part) x[low] + part x[high] */
typedef struct {
    int64_t low, high;
    real part;
} rm_upsample_source;

/* The source of pixel r along an axis of y. */
RM_HD rm_upsample_source rm_upsample_source_of(const rm_upsample_shape *s, int axis, int64_t r) {
    if (s->mode == REMAT_NEAREST) {
        rm_upsample_source same = {r / s->scale[axis], r / s->scale[axis], 0};
        return same;
    }
    double at =
        s->mode == REMAT_BILINEAR_CORNERS ? (double)r * s->ratio[axis] : ((double)r + 0.5) * s->ratio[axis] - 0.5;
    if (at < 0) at = 0;
    int64_t last = s->in[axis] - 1, low = (int64_t)at < last ? (int64_t)at : last;
    rm_upsample_source between = {low, low < last ? low + 1 : low, (real)(at - (double)low)};
    return between;
}

/* The weight of pixel i of x in pixel r of y, along an axis. */
RM_HD real rm_upsample_share(const rm_upsample_shape *s, int axis, int64_t r, int64_t i) {
    rm_upsample_source from = rm_upsample_source_of(s, axis, r);
    return (from.low == i ? 1 - from.part : 0) + (from.high == i ? from.part : 0);
}

/* Pixels of y outside [first, end) do not depend on pixel i of x. */
RM_HD int64_t rm_upsample_first(const rm_upsample_shape *s, int axis, int64_t i) {
    int64_t first = (i - 1) * s->scale[axis];
    return first > 0 ? first : 0;
}
RM_HD int64_t rm_upsample_end(const rm_upsample_shape *s, int axis, int64_t i) {
    int64_t end = (i + 2) * s->scale[axis] + 1;
    return end < s->out[axis] ? end : s->out[axis];
}

#endif

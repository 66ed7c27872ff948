/* pad.h: the shape of padded planes, for the CPU and CUDA. */
#ifndef RM_PAD_H
#define RM_PAD_H

#include "ops/real.h"

#include "ops/op.h"

typedef struct {
    int64_t planes, in[2], out[2], before[2]; /* height, width */
} rm_pad_shape;

static inline rm_pad_shape rm_pad_shape_of(const remat_desc *x, const void *attr) {
    const rm_pad_attr *a = (const rm_pad_attr *)attr;
    rm_pad_shape s = {1, {0, 0}, {0, 0}, {a->before[0], a->before[1]}};
    for (int d = 0; d < x->rank - 2; d++) s.planes *= x->dim[d];
    for (int d = 0; d < 2; d++) {
        s.in[d] = x->dim[x->rank - 2 + d];
        s.out[d] = s.in[d] + a->before[d] + a->after[d];
    }
    return s;
}

#endif

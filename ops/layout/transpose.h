/* transpose.h: the shape of a transpose, for the CPU and CUDA. */
#ifndef RM_TRANSPOSE_H
#define RM_TRANSPOSE_H

#include "ops/real.h"

#include "ops/op.h"

/* (outer,one,middle,other,inner): `one` and `other` are swapped. */
typedef struct {
    int64_t outer, one, middle, other, inner;
} rm_transpose_shape;

static inline rm_transpose_shape rm_transpose_shape_of(const remat_desc *x, const void *attr) {
    const rm_transpose_attr *a = (const rm_transpose_attr *)attr;
    rm_transpose_shape s = {1, x->dim[a->one], 1, x->dim[a->other], 1};
    for (int d = 0; d < x->rank; d++) {
        if (d < a->one) s.outer *= x->dim[d];
        if (d > a->one && d < a->other) s.middle *= x->dim[d];
        if (d > a->other) s.inner *= x->dim[d];
    }
    return s;
}

#endif

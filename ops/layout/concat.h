/* concat.h: the axis of the op `concat`, for the CPU and CUDA. */
#ifndef RM_CONCAT_H
#define RM_CONCAT_H

#include "engine/tensor.h"
#include "ops/op.h"

enum { RM_CONCAT_MOST = 4 }; /* inputs */

static inline int rm_concat_axis(const remat_desc *x, const void *attr) {
    return attr ? (int)((const rm_concat_attr *)attr)->axis : x->rank - 1;
}

/* The product of the axes before it. */
static inline int64_t rm_concat_rows(const remat_desc *x, const void *attr) {
    int64_t rows = 1;
    for (int d = 0; d < rm_concat_axis(x, attr); d++) rows *= x->dim[d];
    return rows;
}

#endif

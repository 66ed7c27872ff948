/* finite.h: whether numbers are finite: inputs of a loss that is not, parameters and states that are saved or read. */
#ifndef RM_FINITE_H
#define RM_FINITE_H

#include <math.h>
#include <stdint.h>

/* The first of n numbers that is infinite or NaN; -1: all are finite. */
static inline int64_t rm_find_nonfinite(const float *x, int64_t n) {
    int64_t i = 0;
    while (i < n && isfinite(x[i])) i++;
    return i < n ? i : -1;
}

#endif

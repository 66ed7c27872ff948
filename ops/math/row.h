/* row.h: the maximum of a row, in lanes that compilers vectorise. */
#ifndef RM_ROW_H
#define RM_ROW_H

#include <stdint.h>

#include "ops/real.h"

enum { RM_ROW_LANES = 16 };

static inline real rm_row_largest(const real *x, int64_t n) {
    real lane[RM_ROW_LANES], largest = x[0];
    int64_t whole = n / RM_ROW_LANES * RM_ROW_LANES;
    for (int i = 0; i < RM_ROW_LANES; i++) lane[i] = x[0];
    for (int64_t from = 0; from < whole; from += RM_ROW_LANES)
        for (int i = 0; i < RM_ROW_LANES; i++) lane[i] = x[from + i] > lane[i] ? x[from + i] : lane[i];
    for (int i = 0; i < RM_ROW_LANES; i++) largest = lane[i] > largest ? lane[i] : largest;
    for (int64_t i = whole; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

#endif

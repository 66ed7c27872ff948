/* attention_row.h: one row of attention's scores on the CPU, for attention.c and local_attention.c. */
#ifndef RM_ATTENTION_ROW_H
#define RM_ATTENTION_ROW_H

#include "ops/real.h"

#include <string.h>

#include "ops/math/exp.h"
#include "ops/math/row.h"

/* In place, over the first n of `keys` numbers; the others become 0. */
static inline void rm_attention_softmax(real *x, int64_t n, int64_t keys) {
    real largest = rm_row_largest(x, n), lane[RM_ROW_LANES] = {0};
    double sum = 0;
    int64_t whole = n / RM_ROW_LANES * RM_ROW_LANES;
    for (int64_t from = 0; from < whole; from += RM_ROW_LANES)
        for (int i = 0; i < RM_ROW_LANES; i++) lane[i] += x[from + i] = rm_exp_nonpositive(x[from + i] - largest);
    for (int64_t i = whole; i < n; i++) sum += x[i] = rm_exp_nonpositive(x[i] - largest);
    for (int i = 0; i < RM_ROW_LANES; i++) sum += lane[i];
    real inverse = (real)(1 / sum);
    for (int64_t i = 0; i < n; i++) x[i] *= inverse;
    memset(x + n, 0, (size_t)(keys - n) * sizeof *x);
}

/* Turns the gradients d of a row of probabilities p into those of the products q.k: p (d - sum of p d) scale. */
static inline void rm_attention_score_gradients(const real *p, real *d, int64_t keys, real scale) {
    real lane[RM_ROW_LANES] = {0};
    double sum = 0;
    int64_t whole = keys / RM_ROW_LANES * RM_ROW_LANES;
    for (int64_t from = 0; from < whole; from += RM_ROW_LANES)
        for (int i = 0; i < RM_ROW_LANES; i++) lane[i] += p[from + i] * d[from + i];
    for (int64_t i = whole; i < keys; i++) sum += p[i] * d[i];
    for (int i = 0; i < RM_ROW_LANES; i++) sum += lane[i];
    for (int64_t i = 0; i < keys; i++) d[i] = p[i] * (d[i] - (real)sum) * scale;
}

#endif

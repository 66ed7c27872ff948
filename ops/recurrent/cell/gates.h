/* cell/gates.h: from sums to gates: what forward and rebuild must do alike, to the last bit. Sums are those of one row
 * and one block of units, x w_ih^T + h w_hh^T + biases. */
#ifndef RM_CELL_GATES_H
#define RM_CELL_GATES_H

#include "ops/recurrent/cell/view.h"

/* A folded input: one gate's part (H) of the table's row that is the projection of row (t,b). */
RM_INLINE const float *table_row(const view *v, int64_t row, int column) {
    return v->job->table + (v->job->token[row] * v->l->gates + v->l->x_gate[column]) * v->hidden;
}

/* One block of it, with its bias. */
RM_INLINE rm_vec table_entry(const view *v, int64_t row, int column, int64_t block, int n) {
    return rm_load_n(table_row(v, row, column) + block * LANES, n) +
           rm_load(v->job->packed + v->at.x_bias + column * v->units + block * LANES);
}

typedef struct {
    rm_vec i, f, g, o;
} lstm_gates;

RM_INLINE lstm_gates lstm_activate(float (*sum)[LANES]) {
    return (lstm_gates){rm_vec_sigmoid(rm_load(sum[0])), rm_vec_sigmoid(rm_load(sum[1])), rm_vec_tanh(rm_load(sum[2])),
                        rm_vec_sigmoid(rm_load(sum[3]))};
}

/* c = f c + i g */
RM_INLINE rm_vec lstm_next_c(const lstm_gates *a, rm_vec c) { return rm_fma(a->f, c, a->i * a->g); }

typedef struct {
    rm_vec n, r, z, q;
} gru_gates;

/* sum: r z q;  n = tanh(x_n + r q) */
RM_INLINE gru_gates gru_activate(float (*sum)[LANES], rm_vec x_n) {
    gru_gates a = {.r = rm_vec_sigmoid(rm_load(sum[0])), .z = rm_vec_sigmoid(rm_load(sum[1])), .q = rm_load(sum[2])};
    a.n = rm_vec_tanh(rm_fma(a.r, a.q, x_n));
    return a;
}

/* Stores the four vectors of a row of `gates`. `untouched`: nothing has touched those lines yet and nothing will until
 * backward; then past the caches, which saves reading the lines first (a tenth of the forward pass). */
RM_INLINE void keep_gates(const view *v, bool untouched, int64_t row, int64_t block, const rm_vec *gate, int n) {
    float *to = v->job->gates + row * v->row + block * LANES;
    for (int g = 0; g < 4; g++)
        if (untouched && v->hidden % LANES == 0)
            rm_stream(to + g * v->hidden, gate[g]);
        else
            rm_store_n(to + g * v->hidden, gate[g], n);
}
RM_INLINE void keep_lstm(const view *v, bool untouched, int64_t row, int64_t block, const lstm_gates *a, int n) {
    keep_gates(v, untouched, row, block, (rm_vec[]){a->i, a->f, a->g, a->o}, n);
}
RM_INLINE void keep_gru(const view *v, bool untouched, int64_t row, int64_t block, const gru_gates *a, int n) {
    keep_gates(v, untouched, row, block, (rm_vec[]){a->n, a->r, a->z, a->q}, n);
}

#endif

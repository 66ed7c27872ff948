/* cpu/cell.h: code shared by the cells (lstm.c, gru.c, plain_rnn.h): the initial values of a row's sums, and the storing
 * of its gates. Sums are those of one row and one block of units, x w_ih^T + h w_hh^T + biases. */
#ifndef RM_CPU_CELL_H
#define RM_CPU_CELL_H

#include "ops/cpu/view.h"

/* For a folded input: one gate's part (H) of the row of the table that is the projection of row (t,b). */
RM_INLINE const float *table_row(const view *v, int64_t row, int column) {
    return v->job->table + (v->job->token[row] * v->l->gates + v->l->x_gate[column]) * v->hidden;
}

/* One block of it, with its bias. */
RM_INLINE rm_vec table_entry(const view *v, int64_t row, int column, int64_t block, int n) {
    return rm_load_n(table_row(v, row, column) + block * LANES, n) +
           rm_load(v->job->packed + v->at.x_bias + column * v->units + block * LANES);
}

/* The input projection of one row, with its bias: from the table if folded, else from the output of project(). */
RM_INLINE rm_vec input_of(const view *v, int64_t row, int column, int64_t block, int n) {
    if (v->job->token) return table_entry(v, row, column, block, n);
    return rm_load_n(v->job->gates + (row - v->window) * v->row + column * v->hidden + block * LANES, n);
}

/* sums += h[t-1] w_hh^T, for rows from.. of timestep t. */
static inline void add_hidden(const view *v, chunk *c, group g, int64_t t, int64_t from, int64_t rows) {
    const float *h = h_before(v, t);
    if (!h) return; /* zeros */
    rm_product p = {h + from * v->hidden, v->hidden,         1,     g.w,     g.w_step,
                    c->sum[0][0],         WIDTH_MAX * LANES, LANES, v->ahead};
    multiply_states(v, p, t * v->batch + from, rows, g.width, v->hidden);
}

/* Calls `forward` for this thread's units of timestep t: all rows of a block, or of a group of `together` blocks,
 * before the next, so that weights are read once. g: the panels of w_hh. */
typedef void forward_rows(const view *v, group g, int64_t t, int64_t from, int64_t rows);
RM_INLINE void each_block(const view *v, int64_t together, int64_t t, forward_rows *forward) {
    const view here = *v; /* a local copy, so that its values stay in registers in the loops */
    for (int64_t i = 0, block; (block = turn(&here, together, t, i)) >= 0; i++) {
        group g = gates_at(&here, here.job->packed + here.at.hh, here.hidden, block);
        for (int64_t from = 0; from < here.batch; from += ROWS_CHUNK)
            forward(&here, g, t, from, min64(ROWS_CHUNK, here.batch - from));
    }
}

/* Stores the four vectors of a row of `gates`. `untouched`: these lines have not been accessed yet and will not be
 * until backward; then the stores bypass the caches, which saves reading the lines first (a tenth of the forward
 * pass). */
RM_INLINE void keep_gates(const view *v, bool untouched, int64_t row, int64_t block, const rm_vec *gate, int n) {
    float *to = v->job->gates + row * v->row + block * LANES;
    for (int g = 0; g < 4; g++)
        if (untouched && v->hidden % LANES == 0)
            rm_stream(to + g * v->hidden, gate[g]);
        else
            rm_store_n(to + g * v->hidden, gate[g], n);
}

/* Calls `unit` for each vector of dh of a group's blocks; b: the row of the batch. */
typedef void unit_backward(const view *v, rm_vec dh, int64_t row, int64_t b, int64_t unit, int n);
RM_INLINE void each_unit(const view *v, const chunk *dh, group g, int64_t t, int64_t from, int64_t rows,
                         unit_backward *unit) {
    for (int i = 0; i < g.width; i++)
        for (int64_t r = 0; r < rows; r++)
            unit(v, rm_load(dh->sum[r][i]), t * v->batch + from + r, from + r, (g.first + i) * LANES,
                 lanes_of(g.first + i, v->hidden));
}

#endif

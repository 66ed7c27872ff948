/* cpu/rnn_tanh.c: the arithmetic of a plain RNN in vectors; ops/recurrent/rnn_tanh.c has the definition. It has one
 * gate, so the vectors of a product are successive blocks of units, and it saves no gates, so there is nothing to
 * rebuild. Compiled once per instruction set. */
#include "ops/cpu/cell.h"

/* h = tanh(sum), for the blocks of a group. */
RM_INLINE void forward_group(const view *v, group g, int64_t t, int64_t from, int64_t rows) {
    int64_t row = t * v->batch + from;
    chunk c;
    for (int i = 0; i < g.width; i++)
        for (int64_t r = 0; r < rows; r++)
            rm_store(c.sum[r][i], input_of(v, row + r, 0, g.first + i, lanes_of(g.first + i, v->hidden)));
    add_hidden(v, &c, g, t, from, rows);
    for (int i = 0; i < g.width; i++)
        for (int64_t r = 0; r < rows; r++)
            rm_store_n(v->job->y + (row + r) * v->hidden + (g.first + i) * LANES, rm_vec_tanh(rm_load(c.sum[r][i])),
                       lanes_of(g.first + i, v->hidden));
}

static void forward(const view *v, int64_t t) { each_block(v, WIDTH_MAX, t, forward_group); }

RM_INLINE void unit_back(const view *v, rm_vec dh, int64_t row, int64_t b, int64_t unit, int n) {
    (void)b;
    rm_vec h = rm_load_n(v->job->y + row * v->hidden + unit, n);
    rm_store_n(v->job->gates + row * v->row + unit, dh * rm_fma(-h, h, rm_splat(1)), n); /* h = tanh(..) */
}

static void backward(const view *v, const chunk *dh, group g, int64_t t, int64_t from, int64_t rows) {
    each_unit(v, dh, g, t, from, rows, unit_back);
}

const cell_row CELL_ROW(rnn_tanh) = {forward, NULL, backward};

/* cpu/plain_rnn.h: the arithmetic of rnn_tanh and rnn_relu in vectors; ops/recurrent/plain_rnn.h has the definition. They have
 * one gate, so the vectors of a product are successive blocks of units, and they save no gates, so there is nothing to
 * rebuild. */
#ifndef RM_CPU_PLAIN_RNN_H
#define RM_CPU_PLAIN_RNN_H

#include "ops/cpu/cell.h"

/* h = f(sum), for the blocks of a group. */
RM_INLINE void plain_forward(const view *v, group g, int64_t t, int64_t from, int64_t rows, rm_vec (*f)(rm_vec)) {
    int64_t row = t * v->batch + from;
    chunk c;
    for (int i = 0; i < g.width; i++)
        for (int64_t r = 0; r < rows; r++)
            rm_store(c.sum[r][i], input_of(v, row + r, 0, g.first + i, lanes_of(g.first + i, v->hidden)));
    add_hidden(v, &c, g, t, from, rows);
    for (int i = 0; i < g.width; i++)
        for (int64_t r = 0; r < rows; r++)
            rm_store_n(v->job->y + (row + r) * v->hidden + (g.first + i) * LANES, f(rm_load(c.sum[r][i])),
                       lanes_of(g.first + i, v->hidden));
}

/* f_backward(dh, h): the gradient of the sum. */
RM_INLINE void plain_backward(const view *v, rm_vec dh, int64_t row, int64_t unit, int n,
                              rm_vec (*f_backward)(rm_vec, rm_vec)) {
    rm_vec h = rm_load_n(v->job->y + row * v->hidden + unit, n);
    rm_store_n(v->job->gates + row * v->row + unit, f_backward(dh, h), n);
}

/* Defines the row of the cell `op`. */
#define PLAIN_RNN(op, f, f_backward)                                                                                   \
    RM_INLINE void forward_group(const view *v, group g, int64_t t, int64_t from, int64_t rows) {                      \
        plain_forward(v, g, t, from, rows, f);                                                                         \
    }                                                                                                                  \
    static void forward(const view *v, int64_t t) { each_block(v, WIDTH_MAX, t, forward_group); }                      \
    RM_INLINE void unit_back(const view *v, rm_vec dh, int64_t row, int64_t b, int64_t unit, int n) {                  \
        (void)b;                                                                                                       \
        plain_backward(v, dh, row, unit, n, f_backward);                                                               \
    }                                                                                                                  \
    static void backward(const view *v, const chunk *dh, group g, int64_t t, int64_t from, int64_t rows) {             \
        each_unit(v, dh, g, t, from, rows, unit_back);                                                                 \
    }                                                                                                                  \
    const cell_row CELL_ROW(op) = {forward, NULL, backward};

#endif

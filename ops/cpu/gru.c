/* cpu/gru.c: the arithmetic of a GRU in vectors; ops/recurrent/gru.c has the definition. Columns: n r z q; x
 * contributes to n r z, h to r z q. Forward and rebuild use the same activation function, so their bits are the same.
 * Compiled once per instruction set. */
#include "ops/cpu/cell.h"

typedef struct {
    rm_vec n, r, z, q;
} gates;

/* sum: r z q;  n = tanh(x_n + r q) */
RM_INLINE gates activate(float (*sum)[LANES], rm_vec x_n) {
    gates a = {.r = rm_vec_sigmoid(rm_load(sum[0])), .z = rm_vec_sigmoid(rm_load(sum[1])), .q = rm_load(sum[2])};
    a.n = rm_vec_tanh(rm_fma(a.r, a.q, x_n));
    return a;
}

RM_INLINE void keep(const view *v, bool untouched, int64_t row, int64_t block, const gates *a, int n) {
    keep_gates(v, untouched, row, block, (rm_vec[]){a->n, a->r, a->z, a->q}, n);
}

/* h = n + z (h - n) */
RM_INLINE void forward_row(const view *v, float (*sum)[LANES], int64_t row, int64_t block, int n) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    gates a = activate(sum, input_of(v, row, 0, block, n));
    rm_vec h = before(v, job->y, job->h_in, row, unit, n);
    rm_store_n(job->y + row * v->hidden + unit, rm_fma(a.z, h - a.n, a.n), n);
    if (job->keep) keep(v, job->token, row, block, &a, n);
}

RM_INLINE void forward_group(const view *v, group g, int64_t t, int64_t from, int64_t rows) {
    int n = lanes_of(g.first, v->hidden);
    int64_t row = t * v->batch + from;
    rm_vec q = rm_load(v->job->packed + v->at.q_bias + g.first * LANES);
    chunk c;
    for (int64_t r = 0; r < rows; r++) {
        rm_store(c.sum[r][0], input_of(v, row + r, 1, g.first, n));
        rm_store(c.sum[r][1], input_of(v, row + r, 2, g.first, n));
        rm_store(c.sum[r][2], q);
    }
    add_hidden(v, &c, g, t, from, rows);
    for (int64_t r = 0; r < rows; r++) forward_row(v, c.sum[r], row + r, g.first, n);
}

static void forward(const view *v, int64_t t) { each_block(v, 1, t, forward_group); }

static void rebuild(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) {
        gates a = activate(c->sum[r] + 1, rm_load(c->sum[r][0]));
        keep(v, false, row + r, block, &a, lanes_of(block, v->hidden));
    }
}

/* The carry is the gradient that reaches the previous h directly. */
RM_INLINE void unit_back(const view *v, rm_vec dh, int64_t row, int64_t b, int64_t unit, int lanes) {
    const rm_cell_job *job = v->job;
    const rm_vec one = rm_splat(1);
    float *at = job->gates + row * v->row + unit, *carry = job->carry + b * v->hidden + unit;
    rm_vec n = rm_load_n(at, lanes), r = rm_load_n(at + v->hidden, lanes);
    rm_vec z = rm_load_n(at + 2 * v->hidden, lanes), q = rm_load_n(at + 3 * v->hidden, lanes);
    dh += rm_load_n(carry, lanes);
    rm_vec dn = dh * (one - z) * rm_fma(-n, n, one); /* h = n + z (h - n);  n = tanh(x_n + r q) */
    rm_vec h = before(v, job->y, job->h_in, row, unit, lanes);
    rm_store_n(at, dn, lanes);
    rm_store_n(at + v->hidden, dn * q * r * (one - r), lanes);
    rm_store_n(at + 2 * v->hidden, dh * (h - n) * z * (one - z), lanes);
    rm_store_n(at + 3 * v->hidden, dn * r, lanes);
    rm_store_n(carry, begins(v, row) ? rm_splat(0) : dh * z, lanes);
}

static void backward(const view *v, const chunk *dh, group g, int64_t t, int64_t from, int64_t rows) {
    each_unit(v, dh, g, t, from, rows, unit_back);
}

const cell_row CELL_ROW(gru) = {forward, rebuild, backward};

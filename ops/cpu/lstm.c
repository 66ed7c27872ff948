/* cpu/lstm.c: the arithmetic of an LSTM in vectors; ops/recurrent/lstm.c has the definition. Columns: i f g o. Forward
 * and rebuild use the same activation function, so their bits are the same. Compiled once per instruction set. */
#include "ops/cpu/cell.h"

enum { GATES = 4 };

typedef struct {
    rm_vec i, f, g, o;
} gates;

RM_INLINE gates activate(float (*sum)[LANES]) {
    return (gates){rm_vec_sigmoid(rm_load(sum[0])), rm_vec_sigmoid(rm_load(sum[1])), rm_vec_tanh(rm_load(sum[2])),
                   rm_vec_sigmoid(rm_load(sum[3]))};
}

/* c = f c + i g */
RM_INLINE rm_vec next_c(const gates *a, rm_vec c) { return rm_fma(a->f, c, a->i * a->g); }

RM_INLINE void keep(const view *v, bool untouched, int64_t row, int64_t block, const gates *a, int n) {
    keep_gates(v, untouched, row, block, (rm_vec[]){a->i, a->f, a->g, a->o}, n);
}

/* h = o tanh(c) */
RM_INLINE void forward_row(const view *v, float (*sum)[LANES], int64_t row, int64_t b, int64_t block, int n) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    gates a = activate(sum);
    bool in_place = !job->c && row >= v->batch && !begins(v, row); /* forward-only: c is kept in the outgoing state */
    rm_vec c = in_place ? rm_load_n(job->c_out + b * v->hidden + unit, n) : before(v, job->c, job->c_in, row, unit, n);
    c = next_c(&a, c);
    rm_store_n(job->c ? job->c + row * v->hidden + unit : job->c_out + b * v->hidden + unit, c, n);
    rm_store_n(job->y + row * v->hidden + unit, a.o * rm_vec_tanh(c), n);
    if (job->keep) keep(v, job->token, row, block, &a, n);
}

RM_INLINE void forward_group(const view *v, group g, int64_t t, int64_t from, int64_t rows) {
    int n = lanes_of(g.first, v->hidden);
    int64_t row = t * v->batch + from;
    chunk c;
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < GATES; i++) rm_store(c.sum[r][i], input_of(v, row + r, i, g.first, n));
    add_hidden(v, &c, g, t, from, rows);
    for (int64_t r = 0; r < rows; r++) forward_row(v, c.sum[r], row + r, from + r, g.first, n);
}

static void forward(const view *v, int64_t t) { each_block(v, 1, t, forward_group); }

static void rebuild(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    int n = lanes_of(block, v->hidden);
    for (int64_t r = 0; r < rows; r++) {
        gates a = activate(c->sum[r]);
        rm_vec next = next_c(&a, before(v, job->c, job->c_in, row + r, unit, n));
        rm_store_n(job->c + (row + r) * v->hidden + unit, next, n);
        keep(v, false, row + r, block, &a, n);
    }
}

/* The carry is dc of the previous timestep. Comments quote the forward lines. */
RM_INLINE void unit_back(const view *v, rm_vec dh, int64_t row, int64_t b, int64_t unit, int n) {
    const rm_cell_job *job = v->job;
    const rm_vec one = rm_splat(1);
    float *at = job->gates + row * v->row + unit, *carry = job->carry + b * v->hidden + unit;
    rm_vec i = rm_load_n(at, n), f = rm_load_n(at + v->hidden, n);
    rm_vec g = rm_load_n(at + 2 * v->hidden, n), o = rm_load_n(at + 3 * v->hidden, n);
    rm_vec tanh_c = rm_vec_tanh(rm_load_n(job->c + row * v->hidden + unit, n));
    rm_vec dc = rm_fma(dh * o, rm_fma(-tanh_c, tanh_c, one), rm_load_n(carry, n)); /* h = o tanh(c) */
    rm_store_n(at + 3 * v->hidden, dh * tanh_c * o * (one - o), n);
    rm_store_n(at, dc * g * i * (one - i), n); /* c = f c + i g */
    rm_store_n(at + v->hidden, dc * before(v, job->c, job->c_in, row, unit, n) * f * (one - f), n);
    rm_store_n(at + 2 * v->hidden, dc * i * rm_fma(-g, g, one), n);
    rm_store_n(carry, begins(v, row) ? rm_splat(0) : dc * f, n);
}

static void backward(const view *v, const chunk *dh, group g, int64_t t, int64_t from, int64_t rows) {
    each_unit(v, dh, g, t, from, rows, unit_back);
}

const cell_row CELL_ROW(lstm) = {forward, rebuild, backward};

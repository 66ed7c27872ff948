/* cell/backward.c: a tile backward, timestep by timestep: gates become the gradients of their pre-activations. What
 * follows from those without any order in time, the gradients of weights and x, is in gradients.c. Compiled once per
 * instruction set. */
#include "ops/recurrent/cell/view.h"

/* dh of rows from.. of timestep t: dy[t] + dgates[t+1] w_hh, and what came in from the next tile. */
static void gather_dh(const view *v, chunk *c, group g, int64_t t, int64_t from, int64_t rows) {
    const rm_cell_job *job = v->job;
    bool last = t == job->tau - 1;
    for (int i = 0; i < g.width; i++) {
        int64_t unit = (g.first + i) * LANES;
        int n = lanes_of(g.first + i, v->hidden);
        for (int64_t r = from; r < from + rows; r++) {
            rm_vec dh = t >= 0 ? rm_load_n(job->dy + (t * v->batch + r) * v->hidden + unit, n) : rm_splat(0);
            if (last && job->dh_out) dh += rm_load_n(job->dh_out + r * v->hidden + unit, n);
            rm_store(c->sum[r - from][i], dh);
        }
    }
    if (last) return;
    const float *dgates = job->gates + ((t + 1) * v->batch + from) * v->row + v->l->first_h * v->hidden;
    rm_product p = {dgates, v->row, 1, g.w, g.w_step, c->sum[0][0], WIDTH_MAX * LANES, LANES, v->ahead};
    multiply_states(v, p, (t + 1) * v->batch + from, rows, g.width, v->l->gates * v->hidden);
}

/* gates become their gradients; the carry, dc of the timestep before. Quoted: the forward lines. */
RM_INLINE void lstm_back(const view *v, rm_vec dh, int64_t row, int64_t b, int64_t unit, int n) {
    const rm_cell_job *job = v->job;
    const rm_vec one = rm_splat(1);
    float *gates = job->gates + row * v->row + unit, *carry = job->carry + b * v->hidden + unit;
    rm_vec i = rm_load_n(gates, n), f = rm_load_n(gates + v->hidden, n);
    rm_vec g = rm_load_n(gates + 2 * v->hidden, n), o = rm_load_n(gates + 3 * v->hidden, n);
    rm_vec tanh_c = rm_vec_tanh(rm_load_n(job->c + row * v->hidden + unit, n));
    rm_vec dc = rm_fma(dh * o, rm_fma(-tanh_c, tanh_c, one), rm_load_n(carry, n)); /* h = o tanh(c) */
    rm_store_n(gates + 3 * v->hidden, dh * tanh_c * o * (one - o), n);
    rm_store_n(gates, dc * g * i * (one - i), n); /* c = f c + i g */
    rm_store_n(gates + v->hidden, dc * before(v, job->c, job->c_in, row, unit, n) * f * (one - f), n);
    rm_store_n(gates + 2 * v->hidden, dc * i * rm_fma(-g, g, one), n);
    rm_store_n(carry, begins(v, row) ? rm_splat(0) : dc * f, n);
}

/* The carry is what reaches the h before directly. */
RM_INLINE void gru_back(const view *v, rm_vec dh, int64_t row, int64_t b, int64_t unit, int lanes) {
    const rm_cell_job *job = v->job;
    const rm_vec one = rm_splat(1);
    float *gates = job->gates + row * v->row + unit, *carry = job->carry + b * v->hidden + unit;
    rm_vec n = rm_load_n(gates, lanes), r = rm_load_n(gates + v->hidden, lanes);
    rm_vec z = rm_load_n(gates + 2 * v->hidden, lanes), q = rm_load_n(gates + 3 * v->hidden, lanes);
    dh += rm_load_n(carry, lanes);
    rm_vec dn = dh * (one - z) * rm_fma(-n, n, one); /* h = n + z (h - n);  n = tanh(x_n + r q) */
    rm_vec h = before(v, job->y, job->h_in, row, unit, lanes);
    rm_store_n(gates, dn, lanes);
    rm_store_n(gates + v->hidden, dn * q * r * (one - r), lanes);
    rm_store_n(gates + 2 * v->hidden, dh * (h - n) * z * (one - z), lanes);
    rm_store_n(gates + 3 * v->hidden, dn * r, lanes);
    rm_store_n(carry, begins(v, row) ? rm_splat(0) : dh * z, lanes);
}

RM_INLINE void rnn_back(const view *v, rm_vec dh, int64_t row, int64_t unit, int n) {
    rm_vec h = rm_load_n(v->job->y + row * v->hidden + unit, n);
    rm_store_n(v->job->gates + row * v->row + unit, dh * rm_fma(-h, h, rm_splat(1)), n); /* h = tanh(..) */
}

RM_INLINE void backward_group(rm_cell cell, const view *v, int64_t t, group g, int64_t from, int64_t rows) {
    chunk c;
    gather_dh(v, &c, g, t, from, rows);
    for (int i = 0; i < g.width; i++) {
        int64_t unit = (g.first + i) * LANES, row = t * v->batch + from;
        int n = lanes_of(g.first + i, v->hidden);
        for (int64_t r = 0; r < rows; r++) {
            rm_vec dh = rm_load(c.sum[r][i]);
            if (cell == RM_CELL_LSTM)
                lstm_back(v, dh, row + r, from + r, unit, n);
            else if (cell == RM_CELL_GRU)
                gru_back(v, dh, row + r, from + r, unit, n);
            else
                rnn_back(v, dh, row + r, unit, n);
        }
    }
}

/* dh_in = dgates[0] w_hh, and a GRU's direct share. */
static void finish_dh(const view *v, group g, int64_t from, int64_t rows) {
    chunk c;
    gather_dh(v, &c, g, -1, from, rows);
    for (int i = 0; i < g.width; i++) {
        int64_t unit = (g.first + i) * LANES;
        int n = lanes_of(g.first + i, v->hidden);
        for (int64_t r = 0; r < rows; r++) {
            rm_vec dh = rm_load(c.sum[r][i]);
            int64_t at = (from + r) * v->hidden + unit;
            if (v->cell == RM_CELL_GRU) dh += rm_load_n(v->job->carry + at, n);
            rm_store_n(v->job->dh_in + at, dh, n);
        }
    }
}

RM_INLINE void backward_step(rm_cell cell, const view *v, int64_t t) {
    const float *panels = v->job->packed + v->at.hh_back;
    for (int64_t i = 0, block; (block = turn(v, WIDTH_MAX, t, i)) >= 0; i++) {
        group g = group_at(panels, v->l->gates * v->hidden, block, v->end, v->blocks);
        for (int64_t from = 0; from < v->batch; from += ROWS_CHUNK) {
            int64_t rows = min64(ROWS_CHUNK, v->batch - from);
            if (t >= 0)
                backward_group(cell, v, t, g, from, rows);
            else
                finish_dh(v, g, from, rows);
        }
    }
}

RM_INLINE void backward(rm_cell cell, const rm_cell_job *job, int thread, int threads) {
    view v = view_of(cell, job, thread, threads);
    copy_units(&v, job->carry, job->dc_out);
    for (int64_t t = job->tau - 1; t >= 0; t--) {
        backward_step(cell, &v, t);
        if (!meet(&v, job->tau - t)) return;
    }
    if (job->dh_in) backward_step(cell, &v, -1);
    copy_units(&v, job->dc_in, job->carry);
    rm_cell_gradients(&v);
}

void rm_cell_backward_lstm(const rm_cell_job *job, int i, int n) { backward(RM_CELL_LSTM, job, i, n); }
void rm_cell_backward_gru(const rm_cell_job *job, int i, int n) { backward(RM_CELL_GRU, job, i, n); }
void rm_cell_backward_rnn_tanh(const rm_cell_job *job, int i, int n) { backward(RM_CELL_RNN_TANH, job, i, n); }

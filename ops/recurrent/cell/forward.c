/* cell/forward.c: a tile forward, timestep by timestep. Compiled once per instruction set. rebuild.c makes the same gates
 * when h is already known. */
#include "ops/recurrent/cell/gates.h"
#include "ops/recurrent/cell/view.h"

/* gates[from.., columns of this block] = bias + x w_ih^T */
static void project_rows(const view *v, group g, int64_t bias_vector, int64_t from, int64_t rows) {
    const rm_cell_job *job = v->job;
    const float *bias = job->packed + v->at.x_bias + g.first * LANES;
    chunk c;
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < g.width; i++) rm_store(c.sum[r][i], rm_load(bias + i * bias_vector));
    rm_multiply(
        (rm_product){job->x + from * job->in, job->in, 1, g.w, g.w_step, c.sum[0][0], WIDTH_MAX * LANES, LANES, 0},
        rows, g.width, job->in);
    for (int i = 0; i < g.width; i++) {
        int64_t column = column_of(v, g.first, i);
        int n = lanes_of(column % v->hidden / LANES, v->hidden);
        for (int64_t r = 0; r < rows; r++)
            rm_store_n(job->gates + (from - v->window + r) * v->row + column, rm_load(c.sum[r][i]), n);
    }
}

/* Timesteps [t, t+steps). */
static void project(const view *v, int64_t t, int64_t steps) {
    const float *panels = v->job->packed + v->at.ih;
    bool plain = v->l->gates == 1;
    int64_t in = v->job->in, first = t * v->batch, end = first + steps * v->batch;
    if (v->job->token) return;
    for (int64_t block = v->first; block < v->end;) {
        group g = plain ? group_at(panels, in, block, v->end, v->blocks) : gates_at(v, panels, in, block);
        for (int64_t from = first; from < end; from += ROWS_CHUNK)
            project_rows(v, g, plain ? LANES : v->units, from, min64(ROWS_CHUNK, end - from));
        block += plain ? g.width : 1;
    }
}

/* sums += h[t-1] w_hh^T, for rows from.. of timestep t. */
static void add_hidden(const view *v, chunk *c, group g, int64_t t, int64_t from, int64_t rows) {
    const float *h = h_before(v, t);
    if (!h) return; /* zeros */
    rm_product p = {h + from * v->hidden, v->hidden,         1,     g.w,     g.w_step,
                    c->sum[0][0],         WIDTH_MAX * LANES, LANES, v->ahead};
    multiply_states(v, p, t * v->batch + from, rows, g.width, v->hidden);
}

/* The input projection of one row, with its bias: from the table when folded, else from where project() left it. */
RM_INLINE rm_vec input_of(const view *v, int64_t row, int column, int64_t block, int n) {
    if (v->job->token) return table_entry(v, row, column, block, n);
    return rm_load_n(v->job->gates + (row - v->window) * v->row + column * v->hidden + block * LANES, n);
}

/* h = o tanh(c) */
RM_INLINE void lstm_row(const view *v, float (*sum)[LANES], int64_t row, int64_t b, int64_t block, int n) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    lstm_gates a = lstm_activate(sum);
    bool in_place = !job->c && row >= v->batch && !begins(v, row); /* forward-only: c lives in the outgoing state */
    rm_vec c = in_place ? rm_load_n(job->c_out + b * v->hidden + unit, n) : before(v, job->c, job->c_in, row, unit, n);
    c = lstm_next_c(&a, c);
    rm_store_n(job->c ? job->c + row * v->hidden + unit : job->c_out + b * v->hidden + unit, c, n);
    rm_store_n(job->y + row * v->hidden + unit, a.o * rm_vec_tanh(c), n);
    if (job->keep) keep_lstm(v, job->token, row, block, &a, n);
}

/* h = n + z (h - n) */
RM_INLINE void gru_row(const view *v, float (*sum)[LANES], int64_t row, int64_t block, int n) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    gru_gates a = gru_activate(sum, input_of(v, row, 0, block, n));
    rm_vec h = before(v, job->y, job->h_in, row, unit, n);
    rm_store_n(job->y + row * v->hidden + unit, rm_fma(a.z, h - a.n, a.n), n);
    if (job->keep) keep_gru(v, job->token, row, block, &a, n);
}

static void lstm_step(const view *v, int64_t t, int64_t block, int64_t from, int64_t rows) {
    int n = lanes_of(block, v->hidden);
    int64_t row = t * v->batch + from;
    chunk c;
    for (int64_t r = 0; r < rows; r++)
        for (int g = 0; g < 4; g++) rm_store(c.sum[r][g], input_of(v, row + r, g, block, n));
    add_hidden(v, &c, gates_at(v, v->job->packed + v->at.hh, v->hidden, block), t, from, rows);
    for (int64_t r = 0; r < rows; r++) lstm_row(v, c.sum[r], row + r, from + r, block, n);
}

static void gru_step(const view *v, int64_t t, int64_t block, int64_t from, int64_t rows) {
    int n = lanes_of(block, v->hidden);
    int64_t row = t * v->batch + from;
    rm_vec q = rm_load(v->job->packed + v->at.q_bias + block * LANES);
    chunk c;
    for (int64_t r = 0; r < rows; r++) {
        rm_store(c.sum[r][0], input_of(v, row + r, 1, block, n));
        rm_store(c.sum[r][1], input_of(v, row + r, 2, block, n));
        rm_store(c.sum[r][2], q);
    }
    add_hidden(v, &c, gates_at(v, v->job->packed + v->at.hh, v->hidden, block), t, from, rows);
    for (int64_t r = 0; r < rows; r++) gru_row(v, c.sum[r], row + r, block, n);
}

/* h = tanh(sum), for the blocks of a group. */
static void rnn_step(const view *v, int64_t t, group g, int64_t from, int64_t rows) {
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

/* This thread's units of timestep t: all rows of a block, and then the next, whose weights are read once so. */
RM_INLINE void forward_step(rm_cell cell, const view *v, int64_t t) {
    bool plain = cell == RM_CELL_RNN_TANH;
    for (int64_t i = 0, block; (block = turn(v, plain ? WIDTH_MAX : 1, t, i)) >= 0; i++) {
        group g = {0};
        if (plain) g = group_at(v->job->packed + v->at.hh, v->hidden, block, v->end, v->blocks);
        for (int64_t from = 0; from < v->batch; from += ROWS_CHUNK) {
            int64_t rows = min64(ROWS_CHUNK, v->batch - from);
            if (cell == RM_CELL_LSTM)
                lstm_step(v, t, block, from, rows);
            else if (cell == RM_CELL_GRU)
                gru_step(v, t, block, from, rows);
            else
                rnn_step(v, t, g, from, rows);
        }
    }
}

RM_INLINE void forward(rm_cell cell, const rm_cell_job *job, int thread, int threads) {
    view v = view_of(cell, job, thread, threads);
    int64_t ahead = rm_cell_steps_ahead(job->batch);
    for (int64_t t = 0; t < job->tau; t++) {
        if (t % ahead == 0) {
            v.window = job->keep || cell == RM_CELL_RNN_TANH ? 0 : t * v.batch;
            project(&v, t, min64(ahead, job->tau - t));
        }
        forward_step(cell, &v, t);
        if (t + 1 < job->tau && !meet(&v, t + 1)) {
            rm_stream_end();
            return;
        }
    }
    rm_stream_end();
    int64_t last = (job->tau - 1) * v.batch * v.hidden;
    copy_units(&v, job->h_out, job->y + last);
    if (job->c) copy_units(&v, job->c_out, job->c + last);
}

void rm_cell_forward_lstm(const rm_cell_job *job, int i, int n) { forward(RM_CELL_LSTM, job, i, n); }
void rm_cell_forward_gru(const rm_cell_job *job, int i, int n) { forward(RM_CELL_GRU, job, i, n); }
void rm_cell_forward_rnn_tanh(const rm_cell_job *job, int i, int n) { forward(RM_CELL_RNN_TANH, job, i, n); }

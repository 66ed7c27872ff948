/* cell/rebuild.c: what forward keeps for backward, made again from h: the gates, and an LSTM's c. h is known for the whole
 * tile, so nothing is sequential but the scan of c: rows are (t,b), and each thread makes its own units without meeting
 * the others. Every sum is the chain of multiply-adds that forward.c makes, k over x and then over h, so the bits are the
 * same; what is faster is that a weight is used for many rows at once. Compiled once per instruction set. */
#include "ops/recurrent/cell/gates.h"
#include "ops/recurrent/cell/view.h"

/* Sums of a folded input begin with its table's rows, in the order of the columns of `gates`. Rows come in no order that
 * the processor could guess, so the next block's part of each is asked for while this block computes. */
RM_INLINE void start_from_table(const view *v, chunk *c, int gates, int64_t block, int64_t row, int64_t rows) {
    int n = lanes_of(block, v->hidden);
    bool more = block + 1 < v->end;
    for (int64_t r = 0; r < rows; r++)
        for (int g = 0; g < gates; g++) {
            rm_store(c->sum[r][g], table_entry(v, row + r, g, block, n));
            if (more) __builtin_prefetch(table_row(v, row + r, g) + (block + 1) * LANES);
        }
}

/* The product with x, on the sums' vectors 0.. in the same order. */
RM_INLINE void start_from_x(const view *v, chunk *c, int gates, int64_t block, int64_t row, int64_t rows) {
    const rm_cell_job *job = v->job;
    const float *bias = job->packed + v->at.x_bias + block * LANES;
    for (int64_t r = 0; r < rows; r++)
        for (int g = 0; g < gates; g++) rm_store(c->sum[r][g], rm_load(bias + g * v->units));
    group w = gates_at(v, job->packed + v->at.ih, job->in, block);
    rm_multiply(
        (rm_product){job->x + row * job->in, job->in, 1, w.w, w.w_step, c->sum[0][0], WIDTH_MAX * LANES, LANES, 0},
        rows, w.width, job->in);
}

RM_INLINE void start_sums(const view *v, chunk *c, int gates, int64_t block, int64_t row, int64_t rows) {
    if (v->job->token)
        start_from_table(v, c, gates, block, row, rows);
    else
        start_from_x(v, c, gates, block, row, rows);
}

/* h of the timestep before each of some rows, none of which passes `batch`: they lie together. NULL: zeros. */
static const float *h_before_rows(const view *v, int64_t row) {
    if (row >= v->batch) return v->job->y + (row - v->batch) * v->hidden;
    return v->job->h_in ? v->job->h_in + row * v->hidden : NULL;
}

/* += h w_hh^T */
static void add_hidden(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    const float *h = h_before_rows(v, row);
    if (!h) return;
    group w = gates_at(v, v->job->packed + v->at.hh, v->hidden, block);
    rm_product p = {h, v->hidden, 1, w.w, w.w_step, c->sum[0][v->l->first_h], WIDTH_MAX * LANES, LANES, 0};
    multiply_states(v, p, row, rows, w.width, v->hidden);
}

static void lstm_rows(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    int n = lanes_of(block, v->hidden);
    start_sums(v, c, 4, block, row, rows);
    add_hidden(v, c, block, row, rows);
    for (int64_t r = 0; r < rows; r++) {
        lstm_gates a = lstm_activate(c->sum[r]);
        rm_vec next = lstm_next_c(&a, before(v, job->c, job->c_in, row + r, unit, n));
        rm_store_n(job->c + (row + r) * v->hidden + unit, next, n);
        keep_lstm(v, false, row + r, block, &a, n);
    }
}

/* Sums: n r z of x, then r z q of h. */
static void gru_rows(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    int n = lanes_of(block, v->hidden);
    rm_vec q = rm_load(v->job->packed + v->at.q_bias + block * LANES);
    for (int64_t r = 0; r < rows; r++) rm_store(c->sum[r][3], q);
    start_sums(v, c, 3, block, row, rows);
    add_hidden(v, c, block, row, rows);
    for (int64_t r = 0; r < rows; r++) {
        gru_gates a = gru_activate(c->sum[r] + 1, rm_load(c->sum[r][0]));
        keep_gru(v, false, row + r, block, &a, n);
    }
}

/* Blocks that take turns at the same rows: those rows of h are then near, and the blocks' weights stay in the
 * second-level cache while the tile goes by. */
enum { BLOCKS_TOGETHER = 4 };

RM_INLINE void rebuild(rm_cell cell, const rm_cell_job *job, int thread, int threads) {
    view v = view_of(cell, job, thread, threads);
    chunk c;
    for (int64_t first = v.first; first < v.end; first += BLOCKS_TOGETHER)
        for (int64_t row = 0, rows; row < v.rows; row += rows) {
            rows = min64(ROWS_CHUNK, (row < v.batch ? v.batch : v.rows) - row);
            for (int64_t block = first; block < min64(first + BLOCKS_TOGETHER, v.end); block++)
                if (cell == RM_CELL_LSTM)
                    lstm_rows(&v, &c, block, row, rows);
                else
                    gru_rows(&v, &c, block, row, rows);
        }
}

void rm_cell_rebuild_lstm(const rm_cell_job *job, int i, int n) { rebuild(RM_CELL_LSTM, job, i, n); }
void rm_cell_rebuild_gru(const rm_cell_job *job, int i, int n) { rebuild(RM_CELL_GRU, job, i, n); }

/* cpu/rebuild.c: rebuilds from h what forward saves for backward: the gates, and an LSTM's c. h is known for the whole
 * tile, so only the scan of c is sequential: rows are (t,b), and each thread computes its own units without
 * synchronising with the others. Every sum is the same chain of multiply-adds as in forward.c, k over x and then over
 * h, so the bits are the same; it is faster because each weight is used for many rows at once. Compiled once per
 * instruction set. */
#include "ops/cpu/cell.h"
#include "ops/cpu/view.h"

/* Sums of a folded input start with rows of its table, in the order of the columns of `gates`. The processor cannot
 * predict the order of rows, so the next block's part of each is prefetched while this block is computed. */
RM_INLINE void start_from_table(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    int n = lanes_of(block, v->hidden);
    bool more = block + 1 < v->end;
    for (int64_t r = 0; r < rows; r++)
        for (int g = 0; g < v->l->gates; g++) {
            rm_store(c->sum[r][g], table_entry(v, row + r, g, block, n));
            if (more) __builtin_prefetch(table_row(v, row + r, g) + (block + 1) * LANES);
        }
}

/* The product with x, on the sums' vectors 0.. in the same order. */
RM_INLINE void start_from_x(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    const rm_cell_job *job = v->job;
    const float *bias = job->packed + v->at.x_bias + block * LANES;
    for (int64_t r = 0; r < rows; r++)
        for (int g = 0; g < v->l->gates; g++) rm_store(c->sum[r][g], rm_load(bias + g * v->units));
    group w = gates_at(v, job->packed + v->at.ih, job->in, block);
    rm_multiply(
        (rm_product){job->x + row * job->in, job->in, 1, w.w, w.w_step, c->sum[0][0], WIDTH_MAX * LANES, LANES, 0},
        rows, w.width, job->in);
}

/* h of the previous timestep for some rows that do not cross row `batch`, so they are contiguous. NULL: zeros. */
static const float *h_before_rows(const view *v, int64_t row) {
    if (row >= v->batch) return v->job->y + (row - v->batch) * v->hidden;
    return v->job->h_in ? v->job->h_in + row * v->hidden : NULL;
}

/* += h w_hh^T */
static void add_hidden_rows(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    const float *h = h_before_rows(v, row);
    if (!h) return;
    group w = gates_at(v, v->job->packed + v->at.hh, v->hidden, block);
    rm_product p = {h, v->hidden, 1, w.w, w.w_step, c->sum[0][v->l->first_h], WIDTH_MAX * LANES, LANES, 0};
    multiply_states(v, p, row, rows, w.width, v->hidden);
}

/* Sums per column: x contributes to the first columns, h to the last. */
static void sum_rows(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows) {
    rm_vec q = rm_load(v->job->packed + v->at.q_bias + block * LANES);
    for (int64_t r = 0; r < rows; r++)
        for (int g = v->l->gates; g < v->l->columns; g++) rm_store(c->sum[r][g], q);
    if (v->job->token)
        start_from_table(v, c, block, row, rows);
    else
        start_from_x(v, c, block, row, rows);
    add_hidden_rows(v, c, block, row, rows);
}

/* Blocks that alternate on the same rows: these rows of h are then in a near cache, and the blocks' weights stay in the
 * second-level cache for the whole tile. */
enum { BLOCKS_TOGETHER = 4 };

void rm_cell_rebuild(const rm_cell_job *job, int thread, int threads) {
    view v = view_of(job, thread, threads);
    chunk c;
    for (int64_t first = v.first; first < v.end; first += BLOCKS_TOGETHER)
        for (int64_t row = 0, rows; row < v.rows; row += rows) {
            rows = min64(ROWS_CHUNK, (row < v.batch ? v.batch : v.rows) - row);
            for (int64_t block = first; block < min64(first + BLOCKS_TOGETHER, v.end); block++) {
                sum_rows(&v, &c, block, row, rows);
                v.cell->rebuild(&v, &c, block, row, rows);
            }
        }
}

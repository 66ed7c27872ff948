/* cpu/gradients.c: gradients of the weights, of the biases or the folded table, and of x, once all dgates of a tile are
 * complete (backward.c). Compiled once per instruction set. */
#include "ops/cpu/view.h"

/* The other operand of a weight gradient: row (t,b) of x, or of h one timestep earlier. */
typedef struct {
    const float *first;  /* rows [0,batch): the incoming state; NULL: zeros */
    const float *others; /* the rows from `batch` on, minus `batch`         */
    const float *zero;   /* per row: above 0 if the row counts as zeros; NULL: none */
    int64_t batch, columns;
} operand;

static const float *operand_row(const operand *o, int64_t row) {
    if (o->zero && o->zero[row] > 0) return NULL;
    if (row >= o->batch) return o->others + (row - o->batch) * o->columns;
    return o->first ? o->first + row * o->columns : NULL;
}

RM_INLINE rm_vec vector_of(const operand *o, const float *row, int64_t block) {
    return row ? rm_load_n(row + block * LANES, lanes_of(block, o->columns)) : rm_splat(0);
}

static void pack_operand(const operand *o, int64_t row, int64_t depth, int64_t block, int width, float *w) {
    for (int64_t k = 0; k < depth; k += STEP, w += width * LANES) {
        const float *first = operand_row(o, row + k), *second = k + 1 < depth ? operand_row(o, row + k + 1) : NULL;
        for (int i = 0; i < width; i++)
            rm_store(w + i * LANES, step_of(vector_of(o, first, block + i), vector_of(o, second, block + i)));
    }
}

/* Rows [u, u+rows) of dgates^T for a part of the tile, packed as [rows/ROWS_MAX][step][LEFT_STEP]. In place they are
 * columns, whose strides of 4H floats would put every row into the same few sets of the cache; packed, each is read
 * once. */
enum { LEFT_ROWS = 4 * ROWS_MAX, LEFT_STEP = LANES / 2, LEFT_FLOATS = DEPTH_STEPS * LEFT_STEP + LANES };
_Static_assert((int)ROWS_MAX <= (int)LEFT_STEP, "a tile's rows fit their step");

static void pack_left(const float *dgates, int64_t row, int64_t rows, int64_t depth, float (*left)[LEFT_FLOATS]) {
    for (int64_t k = 0; k < depth; k += STEP)
        for (int64_t u = 0; u < rows; u += ROWS_MAX) {
            const float *first = dgates + k * row + u;
            int n = (int)min64(ROWS_MAX, rows - u);
            rm_vec second = STEP > 1 && k + 1 < depth ? rm_load_n(first + row, n) : rm_splat(0);
            rm_store(left[u / ROWS_MAX] + k / STEP * LEFT_STEP, step_of(rm_load_n(first, n), second));
        }
}

/* dw[u.., block..] += left w: in place, or through a chunk if dw's last vector extends past its row. */
static void multiply_left(const float *left, const float *w, int width, int64_t depth, float *dw, int64_t columns,
                          int rows, int last_lanes) {
    rm_product p = {left, 1, LEFT_STEP, w, width * LANES, dw, columns, LANES, 0};
    if (last_lanes == LANES) {
        rm_multiply(p, rows, width, depth);
        return;
    }
    chunk c;
    p.c = c.sum[0][0], p.c_row = WIDTH_MAX * LANES;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++)
            rm_store(c.sum[r][i], rm_load_n(dw + r * columns + i * LANES, i == width - 1 ? last_lanes : LANES));
    rm_multiply(p, rows, width, depth);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++)
            rm_store_n(dw + r * columns + i * LANES, rm_load(c.sum[r][i]), i == width - 1 ? last_lanes : LANES);
}

/* The columns of the operand that are packed at once, for DEPTH_STEPS steps: with 16 lanes up to 256 KiB, in this thread's
 * share of the scratch. If many threads share it they pack fewer columns at once; then the rows of dw of each thread are
 * few, too, and stay in its caches. Steps count from the tile's first row, so the bits do not depend on the number of threads. */
enum { RIGHT_BLOCKS = 32 };
typedef struct {
    int64_t first, blocks; /* blocks [first, first+blocks) of its columns */
    int64_t steps, most;   /* most steps, and blocks, that are packed at once */
    float *w;
} right;
_Static_assert((int)RM_CELL_RIGHT_COLUMNS >= RIGHT_BLOCKS * (int)LANES && RM_CELL_WIDEST % (int)LANES == 0 &&
                   (int)RM_CELL_RIGHT_DEPTH == (int)DEPTH_STEPS,
               "the packed operand fits the scratch");

/* A thread's share has at least LANES columns of all steps: each thread has a block of units (call.c). */
static right right_of(const view *v) {
    int64_t all = rm_cell_right_steps(v->rows), columns = rm_cell_right_columns(v->job->in, v->hidden);
    int64_t share = all * columns / v->threads / LANES * LANES, steps = min64(DEPTH_STEPS, steps_of(v->rows));
    return (right){
        .steps = steps, .most = min64(RIGHT_BLOCKS, share / (steps * LANES)), .w = v->job->right + v->thread * share};
}

static void pack_right(const operand *o, int64_t row, int64_t depth, right *to) {
    for (int64_t i = 0; i < to->blocks; i += WIDTH_MAX)
        pack_operand(o, row, depth, to->first + i, (int)min64(WIDTH_MAX, to->blocks - i),
                     to->w + i * to->steps * LANES);
}

/* The destination of one product: `rows` by `width` vectors from `first` on. */
typedef struct {
    float *first;
    int64_t r, i; /* its position: rows r.. of the left operand, blocks i.. of the right operand */
    int rows, width;
} tile;

/* Tile n of dw (rows, w's columns), column of tiles by column; rows of dw are `columns` apart. */
static tile tile_at(float *dw, int64_t columns, int64_t rows, const right *w, int64_t n) {
    int64_t tall = ceil_div(rows, ROWS_MAX), r = n % tall * ROWS_MAX, i = n / tall * WIDTH_MAX;
    return (tile){dw + r * columns + (w->first + i) * LANES, r, i, (int)min64(ROWS_MAX, rows - r),
                  (int)min64(WIDTH_MAX, w->blocks - i)};
}

/* dw does not fit in the first-level cache, so a tile is prefetched while the previous one is summed. */
static void prefetch(const tile *t, int64_t columns) {
    for (int r = 0; r < t->rows; r++)
        for (int i = 0; i < t->width; i++) __builtin_prefetch(t->first + r * columns + i * LANES, 1);
}

/* Prefetches the rows of dgates that pack_left needs next: a share of them with each of the previous tiles, to spread
 * the loads. */
static void prefetch_left(const float *next, int64_t row, int64_t depth, int64_t n, int64_t tiles) {
    for (int64_t k = depth * n / tiles; k < depth * (n + 1) / tiles; k++) {
        __builtin_prefetch(next + k * row);
        __builtin_prefetch(next + k * row + LEFT_ROWS - 1);
    }
}

/* Rows [u, u_end) of dw, all in one gate, += dgates[row.., column..]^T times the packed operand. */
static void weight_gradient_rows(const view *v, float *dw, int64_t columns, int64_t u, int64_t u_end, int64_t column,
                                 int64_t row, int64_t depth, const right *w) {
    float left[LEFT_ROWS / ROWS_MAX][LEFT_FLOATS] __attribute__((aligned(64)));
    const float *dgates = v->job->gates + row * v->row + column;
    for (int64_t from = u; from < u_end; from += LEFT_ROWS) {
        int64_t rows = min64(LEFT_ROWS, u_end - from);
        int64_t tiles = ceil_div(rows, ROWS_MAX) * ceil_div(w->blocks, WIDTH_MAX);
        tile next = tile_at(dw + from * columns, columns, rows, w, 0);
        pack_left(dgates + (from - u), v->row, rows, depth, left);
        for (int64_t n = 0; n < tiles; n++) {
            tile t = next;
            if (n + 1 < tiles) next = tile_at(dw + from * columns, columns, rows, w, n + 1), prefetch(&next, columns);
            prefetch_left(dgates + (from - u) + LEFT_ROWS, v->row, depth, n, tiles);
            multiply_left(left[t.r / ROWS_MAX], w->w + t.i * w->steps * LANES, t.width, depth, t.first, columns, t.rows,
                          lanes_of(w->first + t.i + t.width - 1, columns));
        }
    }
}

/* dw (gates*H, columns) += dgates^T operand, for this thread's rows. column_of_gate[g]: the first column of gate g's
 * dgates. */
static void weight_gradient(const view *v, float *dw, operand o, const int64_t *column_of_gate) {
    int64_t wide = v->l->gates * v->hidden, first = wide * v->thread / v->threads;
    int64_t end = wide * (v->thread + 1) / v->threads, blocks = ceil_div(o.columns, LANES);
    right w = right_of(v);
    for (int64_t row = 0; row < v->rows; row += w.steps * STEP)
        for (w.first = 0; w.first < blocks; w.first += w.most) {
            int64_t depth = min64(w.steps * STEP, v->rows - row);
            w.blocks = min64(w.most, blocks - w.first);
            pack_right(&o, row, depth, &w);
            for (int64_t u = first; u < end;) {
                int64_t gate = u / v->hidden, u_end = min64(end, (gate + 1) * v->hidden);
                weight_gradient_rows(v, dw, o.columns, u, u_end, column_of_gate[gate] + u % v->hidden, row, depth, &w);
                u = u_end;
            }
        }
}

/* dx = dgates w_ih, this thread's rows. */
static void input_gradient(const view *v) {
    const rm_cell_job *job = v->job;
    int64_t depth = v->l->gates * v->hidden, blocks = ceil_div(job->in, LANES);
    int64_t first = v->rows * v->thread / v->threads, end = v->rows * (v->thread + 1) / v->threads;
    for (int64_t block = 0; block < blocks; block += WIDTH_MAX) {
        group g = group_at(job->packed + v->at.ih_back, depth, block, blocks, blocks);
        for (int64_t row = first; row < end; row += ROWS_CHUNK) {
            int64_t rows = min64(ROWS_CHUNK, end - row);
            chunk c;
            memset(&c, 0, sizeof c);
            rm_multiply((rm_product){job->gates + row * v->row, v->row, 1, g.w, g.w_step, c.sum[0][0],
                                     WIDTH_MAX * LANES, LANES, 0},
                        rows, g.width, depth);
            for (int i = 0; i < g.width; i++)
                for (int64_t r = 0; r < rows; r++)
                    rm_store_n(job->dx + (row + r) * job->in + (block + i) * LANES, rm_load(c.sum[r][i]),
                               lanes_of(block + i, job->in));
        }
    }
}

/* One pass over the rows of dgates, in order, for gradients that need no product:
 *   dtable[token[row]] += dgates[row]        db += the tile's sum of dgates over rows, in parts of SWEEP_PART rows
 * for blocks [first, end) of every column. */
enum { SWEEP_BLOCKS = 16, SWEEP_PART = 16 };
static void sweep(const view *v, int64_t first, int64_t end) {
    const rm_cell_job *job = v->job;
    int columns = v->l->columns, gates = v->l->gates, first_h = v->l->first_h;
    float *dtable = job->token ? job->dw_ih : NULL;
    rm_vec sum[4][SWEEP_BLOCKS] = {0}, part[4][SWEEP_BLOCKS];
    for (int64_t row = 0; row < v->rows; row++) {
        if (row % SWEEP_PART == 0) memset(part, 0, sizeof part);
        for (int column = 0; column < columns; column++) {
            const float *from = job->gates + row * v->row + column * v->hidden;
            float *entry =
                dtable && column < gates ? dtable + (job->token[row] * gates + v->l->x_gate[column]) * v->hidden : NULL;
            for (int64_t block = first; block < end; block++) {
                int64_t unit = block * LANES;
                int n = lanes_of(block, v->hidden);
                rm_vec dgate = rm_load_n(from + unit, n);
                part[column][block - first] += dgate;
                if (entry) rm_store_n(entry + unit, rm_load_n(entry + unit, n) + dgate, n);
            }
        }
        if (row % SWEEP_PART == SWEEP_PART - 1 || row == v->rows - 1)
            for (int column = 0; column < columns; column++)
                for (int64_t i = 0; i < end - first; i++) sum[column][i] += part[column][i];
    }
    for (int column = 0; column < columns; column++)
        for (int64_t block = first; block < end; block++) {
            int64_t unit = block * LANES;
            int n = lanes_of(block, v->hidden);
            float *db_ih = job->db_ih && column < gates ? job->db_ih + v->l->x_gate[column] * v->hidden + unit : NULL;
            float *db_hh = job->db_hh && column >= first_h ? job->db_hh + (column - first_h) * v->hidden + unit : NULL;
            if (db_ih) rm_store_n(db_ih, rm_load_n(db_ih, n) + sum[column][block - first], n);
            if (db_hh) rm_store_n(db_hh, rm_load_n(db_hh, n) + sum[column][block - first], n);
        }
}

void rm_cell_gradients(const view *v) {
    const rm_cell_job *job = v->job;
    int64_t of_h[4], of_x[4];
    for (int i = 0; i < v->l->gates; i++) {
        of_h[i] = (v->l->first_h + i) * v->hidden;
        of_x[v->l->x_gate[i]] = i * v->hidden;
    }
    if (job->db_ih || job->db_hh || (job->token && job->dw_ih))
        for (int64_t block = v->first; block < v->end; block += SWEEP_BLOCKS)
            sweep(v, block, min64(block + SWEEP_BLOCKS, v->end));
    if (job->dw_hh) weight_gradient(v, job->dw_hh, (operand){job->h_in, job->y, job->reset, v->batch, v->hidden}, of_h);
    if (job->dw_ih && !job->token) weight_gradient(v, job->dw_ih, (operand){NULL, job->x, NULL, 0, job->in}, of_x);
    if (job->dx) input_gradient(v);
}

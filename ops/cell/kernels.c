/* cell/kernels.c: the recurrent cells in float, fast. Compiled once per instruction set (RM_ISA names it); its entry is
 * the table at the bottom. What the cells compute is defined in ops/lstm.c, gru.c and rnn_tanh.c; this file differs from
 * them in speed and in rounding only. Layouts and measurements: docs/notes/cells.md.
 *
 * Threads share out the hidden units in BLOCKS of one vector. A thread owns its units through the whole tile: it projects
 * the inputs of its gates without waiting for anyone, and then meets the others once per timestep, when all of h (or of
 * dgates, going back) is there.
 */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ops/cell/kernels.h"
#include "ops/cell/product.h"

enum { LANES = RM_LANES, ROWS_CHUNK = 8 * ROWS_MAX }; /* rows whose sums are in hand at once */

typedef struct {
    float sum[ROWS_CHUNK][WIDTH_MAX][LANES];
} __attribute__((aligned(64))) chunk;

/* ---- Layouts --------------------------------------------------------------------------------------- */

/* Where a cell's gates lie. `x_gate[v]`: the weights' row block (PyTorch's order) of column v of `gates`, in the product
 * with x; the product with h has columns first_h.. in the weights' own order. */
typedef struct {
    int gates, columns, x_gate[4], first_h;
} layout;
static const layout layouts[RM_CELLS] = {
    [RM_CELL_LSTM] = {4, 4, {0, 1, 2, 3}, 0}, /* i f g o                          */
    [RM_CELL_GRU] = {3, 4, {2, 0, 1}, 1},     /* n r z q: x makes n r z, h r z q  */
    [RM_CELL_RNN_TANH] = {1, 1, {0}, 0},
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int lanes_of(int64_t block, int64_t size) { return (int)min64(LANES, size - block * LANES); }

/* Packed weights, in floats from the start. Panels hold vectors in the order the products read them:
 *   hh, ih     [block of units][k][gate][lane]           forward:  k over h, x
 *   back       [four blocks][k][block of the four][lane] backward: k over the gates' columns; blocks of h, of x
 * (the last four may be fewer). Units past H are zero. A plain RNN's forward panels are laid out like `back`. */
typedef struct {
    int64_t x_bias, q_bias, hh, hh_back, ih, ih_back, floats;
} packing;

static packing packing_of(rm_cell cell, bool folded, int64_t in, int64_t hidden) {
    const layout *l = &layouts[cell];
    int64_t units = ceil_div(hidden, LANES) * LANES, features = ceil_div(in, LANES) * LANES;
    packing p = {0};
    p.q_bias = p.x_bias + 4 * units;
    p.hh = p.q_bias + units;
    p.hh_back = p.hh + units * hidden * l->gates;
    p.ih = p.hh_back + units * hidden * l->gates;
    p.ih_back = p.ih + (folded ? 0 : units * in * l->gates);
    p.floats = p.ih_back + (folded ? 0 : features * hidden * l->gates);
    return p;
}

static uint64_t packed_bytes(rm_cell cell, bool folded, int64_t in, int64_t hidden) {
    /* in whole cache lines whatever the width, so that every instruction set fits */
    return ((uint64_t)packing_of(cell, folded, in, hidden).floats * sizeof(float) + 63) / 64 * 64;
}

/* A panel that several blocks share: blocks first.. of at most four. */
typedef struct {
    int64_t first;
    int width;
    const float *w;
    int64_t w_step;
} group;

/* The largest group from `block` on that does not pass `end` or a multiple of four. */
static group group_at(const float *panels, int64_t depth, int64_t block, int64_t end, int64_t blocks) {
    int64_t base = block / 4 * 4, together = min64(4, blocks - base);
    return (group){block, (int)(min64(end, base + together) - block),
                   panels + base * depth * LANES + (block - base) * LANES, together * LANES};
}

/* ---- Packing --------------------------------------------------------------------------------------- */

/* [block][k][gate][lane] from w (gates*hidden, depth), taking its row blocks in the order gate[]. */
static void pack_gates(const float *w, int gates, const int *gate, int64_t depth, int64_t hidden, int64_t block,
                       float *panels) {
    float *panel = panels + block * depth * gates * LANES;
    int n = lanes_of(block, hidden);
    for (int g = 0; g < gates; g++)
        for (int lane = 0; lane < LANES; lane++) {
            const float *row = w + (gate[g] * hidden + block * LANES + lane) * depth;
            for (int64_t k = 0; k < depth; k++) panel[(k * gates + g) * LANES + lane] = lane < n ? row[k] : 0;
        }
}

/* [four blocks][k][block][lane] from w (gates*hidden, columns): k runs over its rows, row blocks in the order gate[]. */
static void pack_back(const float *w, int gates, const int *gate, int64_t hidden, int64_t columns, int64_t block,
                      float *panels) {
    int64_t depth = gates * hidden;
    group into = group_at(panels, depth, block, block + 1, ceil_div(columns, LANES));
    int n = lanes_of(block, columns);
    for (int g = 0; g < gates; g++)
        for (int64_t j = 0; j < hidden; j++)
            rm_store((float *)into.w + (g * hidden + j) * into.w_step,
                     rm_load_n(w + (gate[g] * hidden + j) * columns + block * LANES, n));
}

/* [four blocks][k][block][lane] from w (hidden, depth): the plain RNN's forward panels. */
static void pack_units(const float *w, int64_t depth, int64_t hidden, int64_t block, float *panels) {
    group into = group_at(panels, depth, block, block + 1, ceil_div(hidden, LANES));
    int n = lanes_of(block, hidden);
    for (int lane = 0; lane < LANES; lane++)
        for (int64_t k = 0; k < depth; k++)
            ((float *)into.w)[k * into.w_step + lane] = lane < n ? w[(block * LANES + lane) * depth + k] : 0;
}

/* What the sums start from: b_ih + b_hh, except a GRU's n and q, which take one each. */
static void pack_biases(rm_cell cell, int64_t hidden, const float *b_ih, const float *b_hh, const packing *at,
                        float *packed) {
    const layout *l = &layouts[cell];
    int64_t units = ceil_div(hidden, LANES) * LANES;
    memset(packed + at->x_bias, 0, (size_t)(5 * units) * sizeof *packed);
    for (int v = 0; v < l->gates; v++)
        for (int64_t j = 0; j < hidden; j++) {
            int64_t u = l->x_gate[v] * hidden + j;
            bool only_x = cell == RM_CELL_GRU && l->x_gate[v] == 2;
            float of_x = b_ih ? b_ih[u] : 0, of_h = b_hh ? b_hh[u] : 0;
            packed[at->x_bias + v * units + j] = only_x ? of_x : of_x + of_h;
            if (only_x) packed[at->q_bias + j] = of_h;
        }
}

static void pack(rm_cell cell, bool folded, int64_t in, int64_t hidden, const float *w_ih, const float *w_hh,
                 const float *b_ih, const float *b_hh, float *packed, int thread, int threads) {
    static const int in_order[4] = {0, 1, 2, 3};
    const layout *l = &layouts[cell];
    packing at = packing_of(cell, folded, in, hidden);
    int64_t blocks = ceil_div(hidden, LANES), in_blocks = folded ? 0 : ceil_div(in, LANES);
    bool plain = l->gates == 1;
    if (thread == 0) pack_biases(cell, hidden, b_ih, b_hh, &at, packed);
    for (int64_t block = thread; block < blocks; block += threads) {
        if (plain)
            pack_units(w_hh, hidden, hidden, block, packed + at.hh);
        else
            pack_gates(w_hh, l->gates, in_order, hidden, hidden, block, packed + at.hh);
        pack_back(w_hh, l->gates, in_order, hidden, hidden, block, packed + at.hh_back);
        if (folded) continue;
        if (plain)
            pack_units(w_ih, in, hidden, block, packed + at.ih);
        else
            pack_gates(w_ih, l->gates, l->x_gate, in, hidden, block, packed + at.ih);
    }
    for (int64_t block = thread; block < in_blocks; block += threads)
        pack_back(w_ih, l->gates, l->x_gate, hidden, in, block, packed + at.ih_back);
}

/* ---- One thread's view of a tile -------------------------------------------------------------------- */

typedef struct {
    const rm_cell_job *job;
    rm_cell cell;
    const layout *l;
    packing at;
    int thread, threads;
    int64_t hidden, batch, rows, blocks, units; /* units: H rounded up to whole blocks */
    int64_t first, end;                         /* this thread's blocks of units */
    int64_t row;                                /* floats in a row of `gates` */
    int64_t window;                             /* forward: the (t,b) that row 0 of `gates` stands for */
} view;

static view view_of(rm_cell cell, const rm_cell_job *job, int thread, int threads) {
    const layout *l = &layouts[cell];
    int64_t blocks = ceil_div(job->hidden, LANES);
    return (view){
        .job = job,
        .cell = cell,
        .l = l,
        .at = packing_of(cell, job->token != NULL, job->in, job->hidden),
        .thread = thread,
        .threads = threads,
        .hidden = job->hidden,
        .batch = job->batch,
        .rows = job->tau * job->batch,
        .blocks = blocks,
        .units = blocks * LANES,
        .first = blocks * thread / threads,
        .end = blocks * (thread + 1) / threads,
        .row = l->columns * job->hidden,
    };
}

/* The n-th time in this call, from 1. */
static void meet(const view *v, int64_t n) {
    if (v->threads > 1) rm_barrier_wait(v->job->barrier, v->thread, v->threads, (unsigned)n);
}

static const float *h_before(const view *v, int64_t t) {
    return t > 0 ? v->job->y + (t - 1) * v->batch * v->hidden : v->job->h_in;
}

/* Column of `gates` (and of dgates) where vector g of a product with x begins, and how many of its lanes are units. A
 * gated cell's vectors are the gates of one block; a plain RNN's are successive blocks. */
static int64_t column_of(const view *v, int64_t block, int g) {
    return v->l->gates > 1 ? g * v->hidden + block * LANES : (block + g) * LANES;
}

/* ---- Forward ---------------------------------------------------------------------------------------- */

/* gates[from.., columns of this block] = bias + x w_ih^T */
static void project_rows(const view *v, group g, int64_t bias_vector, int64_t from, int64_t rows) {
    const rm_cell_job *job = v->job;
    const float *bias = job->packed + v->at.x_bias + g.first * LANES;
    chunk c;
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < g.width; i++) rm_store(c.sum[r][i], rm_load(bias + i * bias_vector));
    rm_multiply((rm_product){job->x + from * job->in, job->in, 1, g.w, g.w_step, c.sum[0][0], WIDTH_MAX * LANES, LANES},
                rows, g.width, job->in);
    for (int i = 0; i < g.width; i++) {
        int64_t column = column_of(v, g.first, i);
        int n = lanes_of(column % v->hidden / LANES, v->hidden);
        for (int64_t r = 0; r < rows; r++)
            rm_store_n(job->gates + (from - v->window + r) * v->row + column, rm_load(c.sum[r][i]), n);
    }
}

/* The forward panel of a gated cell's block: its vectors are the gates. */
static group gates_at(const view *v, const float *panels, int64_t depth, int64_t block) {
    int64_t step = v->l->gates * LANES;
    return (group){block, v->l->gates, panels + block * depth * step, step};
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

/* The input projection of one row, with its bias: from the table when folded, else from where project() left it. */
RM_INLINE rm_vec input_of(const view *v, int64_t row, int column, int64_t block, int n) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    if (!job->token) return rm_load_n(job->gates + (row - v->window) * v->row + column * v->hidden + unit, n);
    const float *entry = job->table + job->token[row] * v->l->gates * v->hidden;
    return rm_load_n(entry + v->l->x_gate[column] * v->hidden + unit, n) +
           rm_load(job->packed + v->at.x_bias + column * v->units + unit);
}

/* sums += h[t-1] w_hh^T, for rows from.. of timestep t. */
static void add_hidden(const view *v, chunk *c, group g, int64_t t, int64_t from, int64_t rows) {
    const float *h = h_before(v, t);
    if (!h) return; /* zeros */
    rm_multiply((rm_product){h + from * v->hidden, v->hidden, 1, g.w, g.w_step, c->sum[0][0], WIDTH_MAX * LANES, LANES},
                rows, g.width, v->hidden);
}

/* Row (t,b) of a sequence's predecessor: the row before, or the state the tile began with; NULL: zeros. */
RM_INLINE rm_vec before(const view *v, const float *sequence, const float *initial, int64_t row, int64_t unit, int n) {
    if (row >= v->batch) return rm_load_n(sequence + (row - v->batch) * v->hidden + unit, n);
    return initial ? rm_load_n(initial + row * v->hidden + unit, n) : rm_splat(0);
}

/* Stores an activated gate for backward. When folded nothing has touched that line yet, and nothing will until backward:
 * then past the caches, which saves reading the line first (a tenth of the forward pass). */
RM_INLINE void keep_n(const view *v, float *to, rm_vec gate, int n) {
    if (v->job->token && v->hidden % LANES == 0)
        rm_stream(to, gate);
    else
        rm_store_n(to, gate, n);
}

/* i, f, g, o = activated sums;  c = f c + i g;  h = o tanh(c) */
RM_INLINE void lstm_row(const view *v, float (*sum)[LANES], int64_t row, int64_t b, int64_t block, int n) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    rm_vec i = rm_vec_sigmoid(rm_load(sum[0])), f = rm_vec_sigmoid(rm_load(sum[1]));
    rm_vec g = rm_vec_tanh(rm_load(sum[2])), o = rm_vec_sigmoid(rm_load(sum[3]));
    bool in_place = !job->c && row >= v->batch; /* forward-only: c lives in the outgoing state */
    rm_vec c = in_place ? rm_load_n(job->c_out + b * v->hidden + unit, n) : before(v, job->c, job->c_in, row, unit, n);
    c = rm_fma(f, c, i * g);
    rm_store_n(job->c ? job->c + row * v->hidden + unit : job->c_out + b * v->hidden + unit, c, n);
    rm_store_n(job->y + row * v->hidden + unit, o * rm_vec_tanh(c), n);
    if (!job->keep) return;
    float *gates = job->gates + row * v->row + unit;
    keep_n(v, gates, i, n);
    keep_n(v, gates + v->hidden, f, n);
    keep_n(v, gates + 2 * v->hidden, g, n);
    keep_n(v, gates + 3 * v->hidden, o, n);
}

/* n = tanh(x_n + r q);  h = n + z (h - n) */
RM_INLINE void gru_row(const view *v, float (*sum)[LANES], int64_t row, int64_t block, int n_lanes) {
    const rm_cell_job *job = v->job;
    int64_t unit = block * LANES;
    rm_vec r = rm_vec_sigmoid(rm_load(sum[0])), z = rm_vec_sigmoid(rm_load(sum[1])), q = rm_load(sum[2]);
    rm_vec n = rm_vec_tanh(rm_fma(r, q, input_of(v, row, 0, block, n_lanes)));
    rm_vec h = before(v, job->y, job->h_in, row, unit, n_lanes);
    rm_store_n(job->y + row * v->hidden + unit, rm_fma(z, h - n, n), n_lanes);
    if (!job->keep) return;
    float *gates = job->gates + row * v->row + unit;
    keep_n(v, gates, n, n_lanes);
    keep_n(v, gates + v->hidden, r, n_lanes);
    keep_n(v, gates + 2 * v->hidden, z, n_lanes);
    keep_n(v, gates + 3 * v->hidden, q, n_lanes);
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

/* This thread's units of timestep t. */
RM_INLINE void forward_step(rm_cell cell, const view *v, int64_t t) {
    for (int64_t from = 0; from < v->batch; from += ROWS_CHUNK) {
        int64_t rows = min64(ROWS_CHUNK, v->batch - from);
        for (int64_t block = v->first; block < v->end; block++)
            if (cell == RM_CELL_LSTM) {
                lstm_step(v, t, block, from, rows);
            } else if (cell == RM_CELL_GRU) {
                gru_step(v, t, block, from, rows);
            } else {
                group g = group_at(v->job->packed + v->at.hh, v->hidden, block, v->end, v->blocks);
                rnn_step(v, t, g, from, rows);
                block += g.width - 1;
            }
    }
}

/* to[b, this thread's units] = from[b, ..], or zeros. */
static void copy_units(const view *v, float *to, const float *from) {
    int64_t unit = v->first * LANES, n = min64(v->end * LANES, v->hidden) - unit;
    for (int64_t b = 0; to && b < v->batch; b++)
        if (n <= 0)
            return;
        else if (from)
            memcpy(to + b * v->hidden + unit, from + b * v->hidden + unit, (size_t)n * sizeof *to);
        else
            memset(to + b * v->hidden + unit, 0, (size_t)n * sizeof *to);
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
        if (t + 1 < job->tau) meet(&v, t + 1);
    }
    rm_stream_end();
    int64_t last = (job->tau - 1) * v.batch * v.hidden;
    copy_units(&v, job->h_out, job->y + last);
    if (job->c) copy_units(&v, job->c_out, job->c + last);
}

/* ---- Backward: through time ------------------------------------------------------------------------- */

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
    rm_multiply((rm_product){dgates, v->row, 1, g.w, g.w_step, c->sum[0][0], WIDTH_MAX * LANES, LANES}, rows, g.width,
                v->l->gates * v->hidden);
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
    rm_store_n(carry, dc * f, n);
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
    rm_store_n(carry, dh * z, lanes);
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
    for (int64_t from = 0; from < v->batch; from += ROWS_CHUNK) {
        int64_t rows = min64(ROWS_CHUNK, v->batch - from);
        for (int64_t block = v->first; block < v->end;) {
            group g = group_at(panels, v->l->gates * v->hidden, block, v->end, v->blocks);
            if (t >= 0)
                backward_group(cell, v, t, g, from, rows);
            else
                finish_dh(v, g, from, rows);
            block += g.width;
        }
    }
}

/* ---- Backward: gradients of the weights and of x ----------------------------------------------------- */

/* The other operand of a weight gradient: row (t,b) of x, or of h one timestep before. */
typedef struct {
    const float *first;  /* rows [0,batch): the incoming state; NULL: zeros */
    const float *others; /* the rows from `batch` on, less `batch`          */
    int64_t batch, columns;
} operand;

static const float *operand_row(const operand *o, int64_t row) {
    if (row >= o->batch) return o->others + (row - o->batch) * o->columns;
    return o->first ? o->first + row * o->columns : NULL;
}

static void pack_operand(const operand *o, int64_t row, int64_t depth, int64_t block, int width, float *w) {
    for (int64_t k = 0; k < depth; k++) {
        const float *source = operand_row(o, row + k);
        for (int i = 0; i < width; i++)
            rm_store(w + (k * width + i) * LANES,
                     source ? rm_load_n(source + (block + i) * LANES, lanes_of(block + i, o->columns)) : rm_splat(0));
    }
}

/* Rows [u, u+rows) of dgates^T for a stretch of the tile, as [rows/ROWS_MAX][k][LEFT_STEP]: in place they are columns,
 * whose strides of 4H floats would put every row into the same few sets of the cache. */
enum { LEFT_ROWS = 4 * ROWS_MAX, LEFT_STEP = LANES / 2, LEFT_FLOATS = DEPTH_BLOCK * LEFT_STEP + LANES };
_Static_assert((int)ROWS_MAX <= (int)LEFT_STEP, "a tile's rows fit their step");

static void pack_left(const float *dgates, int64_t row, int64_t rows, int64_t depth, float (*left)[LEFT_FLOATS]) {
    for (int64_t u = 0; u < rows; u += ROWS_MAX) {
        int n = (int)min64(ROWS_MAX, rows - u);
        float *to = left[u / ROWS_MAX];
        for (int64_t k = 0; k < depth; k++) rm_store(to + k * LEFT_STEP, rm_load_n(dgates + k * row + u, n));
    }
}

/* dw[u.., block..] += left w: in place, or through a chunk where dw's last vector runs past its row. */
static void multiply_left(const float *left, const float *w, int width, int64_t depth, float *dw, int64_t columns,
                          int rows, int last_lanes) {
    rm_product p = {left, 1, LEFT_STEP, w, width * LANES, dw, columns, LANES};
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

/* The operand's columns that are packed at once: DEPTH_BLOCK rows of them lie on the stack, 256 KiB at 16 lanes. */
enum { RIGHT_BLOCKS = 32 };
typedef struct {
    int64_t first, blocks; /* blocks [first, first+blocks) of its columns */
    float w[DEPTH_BLOCK * RIGHT_BLOCKS * LANES];
} __attribute__((aligned(64))) right;

static void pack_right(const operand *o, int64_t row, int64_t depth, right *to) {
    for (int64_t i = 0; i < to->blocks; i += WIDTH_MAX)
        pack_operand(o, row, depth, to->first + i, (int)min64(WIDTH_MAX, to->blocks - i),
                     to->w + i * DEPTH_BLOCK * LANES);
}

/* Rows [u, u_end) of dw, which lie in one gate, += dgates[row.., column..]^T times what is packed. */
static void weight_gradient_rows(const view *v, float *dw, int64_t columns, int64_t u, int64_t u_end, int64_t column,
                                 int64_t row, int64_t depth, const right *w) {
    float left[LEFT_ROWS / ROWS_MAX][LEFT_FLOATS] __attribute__((aligned(64)));
    const float *dgates = v->job->gates + row * v->row + column;
    for (int64_t from = u; from < u_end; from += LEFT_ROWS) {
        int64_t rows = min64(LEFT_ROWS, u_end - from);
        pack_left(dgates + (from - u), v->row, rows, depth, left);
        for (int64_t i = 0; i < w->blocks; i += WIDTH_MAX) {
            int width = (int)min64(WIDTH_MAX, w->blocks - i);
            for (int64_t r = 0; r < rows; r += ROWS_MAX)
                multiply_left(left[r / ROWS_MAX], w->w + i * DEPTH_BLOCK * LANES, width, depth,
                              dw + (from + r) * columns + (w->first + i) * LANES, columns,
                              (int)min64(ROWS_MAX, rows - r), lanes_of(w->first + i + width - 1, columns));
        }
    }
}

/* dw (gates*H, columns) += dgates^T operand, this thread's rows of it. column_of_gate[g]: where gate g's dgates begin. */
static void weight_gradient(const view *v, float *dw, operand o, const int64_t *column_of_gate) {
    int64_t wide = v->l->gates * v->hidden, first = wide * v->thread / v->threads;
    int64_t end = wide * (v->thread + 1) / v->threads, blocks = ceil_div(o.columns, LANES);
    right w;
    for (int64_t row = 0; row < v->rows; row += DEPTH_BLOCK)
        for (w.first = 0; w.first < blocks; w.first += RIGHT_BLOCKS) {
            int64_t depth = min64(DEPTH_BLOCK, v->rows - row);
            w.blocks = min64(RIGHT_BLOCKS, blocks - w.first);
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
                                     WIDTH_MAX * LANES, LANES},
                        rows, g.width, depth);
            for (int i = 0; i < g.width; i++)
                for (int64_t r = 0; r < rows; r++)
                    rm_store_n(job->dx + (row + r) * job->in + (block + i) * LANES, rm_load(c.sum[r][i]),
                               lanes_of(block + i, job->in));
        }
    }
}

/* Rows of dgates go by once, in order, for what needs no product:
 *   dtable[token[row]] += dgates[row]        db += the tile's sum of dgates over rows, added up from zero
 * for blocks [first, end) of every column. */
enum { SWEEP_BLOCKS = 16 };
static void sweep(const view *v, int64_t first, int64_t end) {
    const rm_cell_job *job = v->job;
    int columns = v->l->columns, gates = v->l->gates, first_h = v->l->first_h;
    float *dtable = job->token ? job->dw_ih : NULL;
    rm_vec sum[4][SWEEP_BLOCKS] = {0};
    for (int64_t row = 0; row < v->rows; row++)
        for (int column = 0; column < columns; column++) {
            const float *from = job->gates + row * v->row + column * v->hidden;
            float *entry =
                dtable && column < gates ? dtable + (job->token[row] * gates + v->l->x_gate[column]) * v->hidden : NULL;
            for (int64_t block = first; block < end; block++) {
                int64_t unit = block * LANES;
                int n = lanes_of(block, v->hidden);
                rm_vec dgate = rm_load_n(from + unit, n);
                sum[column][block - first] += dgate;
                if (entry) rm_store_n(entry + unit, rm_load_n(entry + unit, n) + dgate, n);
            }
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

static void gradients(const view *v) {
    const rm_cell_job *job = v->job;
    int64_t of_h[4], of_x[4];
    for (int i = 0; i < v->l->gates; i++) {
        of_h[i] = (v->l->first_h + i) * v->hidden;
        of_x[v->l->x_gate[i]] = i * v->hidden;
    }
    if (job->db_ih || job->db_hh || (job->token && job->dw_ih))
        for (int64_t block = v->first; block < v->end; block += SWEEP_BLOCKS)
            sweep(v, block, min64(block + SWEEP_BLOCKS, v->end));
    if (job->dw_hh) weight_gradient(v, job->dw_hh, (operand){job->h_in, job->y, v->batch, v->hidden}, of_h);
    if (job->dw_ih && !job->token) weight_gradient(v, job->dw_ih, (operand){NULL, job->x, 0, job->in}, of_x);
    if (job->dx) input_gradient(v);
}

RM_INLINE void backward(rm_cell cell, const rm_cell_job *job, int thread, int threads) {
    view v = view_of(cell, job, thread, threads);
    copy_units(&v, job->carry, job->dc_out);
    for (int64_t t = job->tau - 1; t >= 0; t--) {
        backward_step(cell, &v, t);
        meet(&v, job->tau - t);
    }
    if (job->dh_in) backward_step(cell, &v, -1);
    copy_units(&v, job->dc_in, job->carry);
    gradients(&v);
}

/* ---- The table --------------------------------------------------------------------------------------- */

static void forward_lstm(const rm_cell_job *job, int i, int n) { forward(RM_CELL_LSTM, job, i, n); }
static void forward_gru(const rm_cell_job *job, int i, int n) { forward(RM_CELL_GRU, job, i, n); }
static void forward_rnn_tanh(const rm_cell_job *job, int i, int n) { forward(RM_CELL_RNN_TANH, job, i, n); }
static void backward_lstm(const rm_cell_job *job, int i, int n) { backward(RM_CELL_LSTM, job, i, n); }
static void backward_gru(const rm_cell_job *job, int i, int n) { backward(RM_CELL_GRU, job, i, n); }
static void backward_rnn_tanh(const rm_cell_job *job, int i, int n) { backward(RM_CELL_RNN_TANH, job, i, n); }

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define QUOTE2(x) #x
#define QUOTE(x) QUOTE2(x)

extern const rm_cell_kernels JOIN(rm_cell_kernels_, RM_ISA);
const rm_cell_kernels JOIN(rm_cell_kernels_, RM_ISA) = {
    .isa = QUOTE(RM_ISA),
    .lanes = LANES,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .forward = {forward_lstm, forward_gru, forward_rnn_tanh},
    .backward = {backward_lstm, backward_gru, backward_rnn_tanh},
};

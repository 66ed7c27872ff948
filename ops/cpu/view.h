/* cpu/view.h: definitions shared by the kernels of one instruction set: the layout of gates and packed weights, and one
 * thread's view of a tile. Private to the files that are compiled once per set; other code uses kernels.h.
 * docs/notes/cells.md has a drawing of the layouts.
 *
 * The hidden units are divided among threads in BLOCKS of one vector. A thread owns its units through the whole tile:
 * it projects the inputs of its gates without waiting, and then synchronises with the others once per timestep, when
 * all of h (in backward: of dgates) is complete. If waiting costs more than the threads gain, thread 0 takes over all
 * units (barrier.h).
 */
#ifndef RM_CELL_VIEW_H
#define RM_CELL_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ops/cpu/isa.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/product.h"

enum { LANES = RM_LANES, ROWS_CHUNK = 8 * ROWS_MAX }; /* rows whose sums are computed at once */

typedef struct {
    float sum[ROWS_CHUNK][WIDTH_MAX][LANES];
} __attribute__((aligned(64))) chunk;

/* ---- Layouts --------------------------------------------------------------------------------------- */

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int lanes_of(int64_t block, int64_t size) { return (int)min64(LANES, size - block * LANES); }

/* Offsets of packed weights, in floats. Panels hold vectors in the order in which the products read them, by steps
 * (product.h):
 *   hh, ih     [block of units][step][gate][lane]           forward:  k over h, x
 *   back       [four blocks][step][block of the four][lane] backward: k over the gates' columns; blocks of h, of x
 * (the last four may be fewer). Units past H are zero. A plain RNN's forward panels are laid out like `back`. */
typedef struct {
    int64_t x_bias, q_bias, hh, hh_back, ih, ih_back, floats;
} packing;

static inline packing packing_of(rm_cell cell, bool folded, int64_t in, int64_t hidden) {
    const rm_cell_layout *l = &rm_cell_layouts[cell];
    int64_t units = ceil_div(hidden, LANES) * LANES, features = ceil_div(in, LANES) * LANES;
    packing p = {0};
    p.q_bias = p.x_bias + 4 * units;
    p.hh = p.q_bias + units;
    p.hh_back = p.hh + units * steps_of(hidden) * l->gates;
    p.ih = p.hh_back + units * steps_of(hidden * l->gates);
    p.ih_back = p.ih + (folded ? 0 : units * steps_of(in) * l->gates);
    p.floats = p.ih_back + (folded ? 0 : features * steps_of(hidden * l->gates));
    return p;
}

/* A panel shared by several blocks: blocks first.., at most four. */
typedef struct {
    int64_t first;
    int width;
    const float *w;
    int64_t w_step;
} group;

/* The largest group from `block` on that does not extend past `end` or a multiple of four. */
static inline group group_at(const float *panels, int64_t depth, int64_t block, int64_t end, int64_t blocks) {
    int64_t base = block / 4 * 4, together = min64(4, blocks - base);
    return (group){block, (int)(min64(end, base + together) - block),
                   panels + base * steps_of(depth) * LANES + (block - base) * LANES, together * LANES};
}

/* ---- One thread's view of a tile -------------------------------------------------------------------- */

/* A cell's arithmetic (below). */
typedef struct cell_row cell_row;
#define rm_cell_rows RM_JOIN(rm_cell_rows_, RM_ISA)
extern const cell_row *const rm_cell_rows[RM_CELLS];

typedef struct {
    const rm_cell_job *job;
    const cell_row *cell;
    const rm_cell_layout *l;
    packing at;
    int thread, threads;
    int64_t hidden, batch, rows, blocks, units; /* units: H rounded up to whole blocks */
    int64_t first, end;                         /* this thread's blocks of units */
    int64_t row;                                /* floats in a row of `gates` */
    int64_t window;                             /* forward: the row (t,b) that row 0 of `gates` holds */
    int64_t ahead;                              /* prefetch distance of the products of each timestep (rm_product) */
} view;

/* If a thread's weights of the recurrence do not fit in its second-level cache, they are loaded from further away at
 * every timestep, so they are prefetched. A distance of 4 KiB was as good as 8, and better than 2, in two of three
 * shapes. */
enum { AHEAD = 1024 };
static inline int64_t ahead_of(const rm_cell_job *job, const rm_cell_layout *l, int64_t blocks) {
    return blocks * LANES * steps_of(job->hidden) * l->gates * (int64_t)sizeof(float) > job->cache_bytes ? AHEAD : 0;
}

static inline view view_of(const rm_cell_job *job, int thread, int threads) {
    const rm_cell_layout *l = &rm_cell_layouts[job->cell];
    int64_t blocks = ceil_div(job->hidden, LANES);
    return (view){
        .job = job,
        .cell = rm_cell_rows[job->cell],
        .l = l,
        .at = packing_of(job->cell, job->token != NULL, job->in, job->hidden),
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
        .ahead = ahead_of(job, l, ceil_div(blocks, threads)),
    };
}

/* The n-th barrier of this call, counted from 1. Returns false if this thread leaves. Thread 0 may own all units from
 * here on. */
static inline bool meet(view *v, int64_t n) {
    if (v->threads == 1 || rm_barrier_wait(v->job->barrier, v->thread, v->threads, (unsigned)n)) return true;
    if (v->thread) return false;
    int64_t window = v->window;
    *v = view_of(v->job, 0, 1);
    v->window = window;
    v->job->barrier->region->alone_ns = rm_now_ns();
    return true;
}

/* A thread processes its blocks in groups of `together`, upwards in one timestep and downwards in the next, so that it
 * first reads the weights of the recurrence that the second-level cache still holds. Returns the first block of the
 * i-th group of timestep t; -1 if there is none. */
static inline int64_t turn(const view *v, int64_t together, int64_t t, int64_t i) {
    int64_t low = v->first / together, n = v->first < v->end ? (v->end - 1) / together - low + 1 : 0;
    int64_t block = (t & 1 ? low + n - 1 - i : low + i) * together;
    return i == n ? -1 : block < v->first ? v->first : block;
}

static inline const float *h_before(const view *v, int64_t t) {
    return t > 0 ? v->job->y + (t - 1) * v->batch * v->hidden : v->job->h_in;
}

/* The first column in `gates` (and dgates) of vector g of a product with x, and the number of its lanes that are units.
 * The vectors of a gated cell are the gates of one block; those of a plain RNN are successive blocks. */
static inline int64_t column_of(const view *v, int64_t block, int g) {
    return v->l->gates > 1 ? g * v->hidden + block * LANES : (block + g) * LANES;
}

/* The forward panel of a block of a gated cell: its vectors are the gates. Those of a plain RNN are successive
 * blocks. */
static inline group gates_at(const view *v, const float *panels, int64_t depth, int64_t block) {
    int64_t step = v->l->gates * LANES;
    if (v->l->gates == 1) return group_at(panels, depth, block, v->end, v->blocks);
    return (group){block, v->l->gates, panels + block * steps_of(depth) * step, step};
}

/* Whether row (t,b) is reset: it does not depend on the previous timestep. */
RM_INLINE bool begins(const view *v, int64_t row) { return v->job->reset && v->job->reset[row] > 0; }

/* The predecessor of row (t,b) of a sequence: the row of the previous timestep, or the tile's incoming state (NULL:
 * zeros). */
RM_INLINE rm_vec before(const view *v, const float *sequence, const float *initial, int64_t row, int64_t unit, int n) {
    if (begins(v, row)) return rm_splat(0);
    if (row >= v->batch) return rm_load_n(sequence + (row - v->batch) * v->hidden + unit, n);
    return initial ? rm_load_n(initial + row * v->hidden + unit, n) : rm_splat(0);
}

/* The products between a timestep and the next one, in either direction: p without rows that are reset. `row`: (t,b)
 * of the first row, in the later timestep. */
static inline void multiply_states(const view *v, rm_product p, int64_t row, int64_t rows, int width, int64_t depth) {
    for (int64_t r = 0, end; r < rows; r = end + 1) {
        for (end = r; end < rows && !begins(v, row + end);) end++;
        rm_product run = p;
        run.a += r * p.a_row, run.c += r * p.c_row;
        if (end > r) rm_multiply(run, end - r, width, depth);
    }
}

/* to[b, this thread's units] = from[b, ..], or zeros. */
static inline void copy_units(const view *v, float *to, const float *from) {
    int64_t unit = v->first * LANES, n = min64(v->end * LANES, v->hidden) - unit;
    for (int64_t b = 0; to && b < v->batch; b++)
        if (n <= 0)
            return;
        else if (from)
            memcpy(to + b * v->hidden + unit, from + b * v->hidden + unit, (size_t)n * sizeof *to);
        else
            memset(to + b * v->hidden + unit, 0, (size_t)n * sizeof *to);
}

/* ---- Cells ------------------------------------------------------------------------------------------- */

/* A cell's arithmetic, for a timestep or some of its rows at a time. lstm.c, gru.c and rnn_*.c define one each; the
 * passes are independent of the cell. */
struct cell_row {
    /* This thread's units of timestep t: h, and the values that the cell saves. */
    void (*forward)(const view *v, int64_t t);
    /* Turns the sums, by columns, of rows (t,b) from `row` on into gates, as saved by forward. NULL: the cell saves
     * none. */
    void (*rebuild)(const view *v, chunk *c, int64_t block, int64_t row, int64_t rows);
    /* Replaces the gates of rows from.. of timestep t by their gradients, and the carry by that of the previous
     * timestep. */
    void (*backward)(const view *v, const chunk *dh, group g, int64_t t, int64_t from, int64_t rows);
};
#define CELL_ROW(op) RM_JOIN(rm_cell_row_##op##_, RM_ISA)
#define CELL(op, ...) extern const cell_row CELL_ROW(op);
#include "ops/recurrent/cells.def"
#undef CELL

/* gradients.c: this thread's share, once all dgates of the tile are complete. */
void rm_cell_gradients(const view *v);

#endif

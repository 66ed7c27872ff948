/* recurrent.cuh: what the CUDA kernels of lstm, gru and rnn_tanh share (NAME.cu has what differs: the kernels of a unit).
 *
 *   forward    gates = x w_ih^T, all rows of the tile by one product (or rows of the table)
 *              for each timestep: gates[t] += h w_hh^T by one product; one kernel makes gates and h of the sums
 *   rebuild    as forward, but the second product is one for all timesteps, too: h is known
 *   backward   for each timestep, from the last: one kernel turns gates into their gradients; dh = dgates[t] w_hh
 *              dw_hh, dw_ih, dx by one product each (two where columns lie apart), biases and the table by sums in order
 *
 * Columns of `gates`, in units of H. x's part of gate g lies in column (g + shift) mod G, h's part in g + shift:
 *
 *                  lstm            gru             rnn_tanh
 *     columns     i  f  g  o      n  r  z  q       h
 *     x w_ih^T    0  1  2  3      2  0  1          0       rows of w_ih, in units of H
 *     h w_hh^T    0  1  2  3         0  1  2       0       rows of w_hh
 *     shift           0                1           0
 *
 * docs/notes/cuda_cells.md says what launches cost, and why the bits repeat. */
#ifndef RM_RECURRENT_CUH
#define RM_RECURRENT_CUH

#include <string.h>

#include "ops/cell_math.h"
#include "ops/columns.cuh"

enum { RM_X, RM_W_IH, RM_W_HH, RM_B_IH, RM_B_HH };

/* ---- A call ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const rm_call *call;
    const rm_cuda_queue *queue;
    int gates, columns, shift;                          /* see above; rows of the weights are gates * hidden */
    int64_t tau, batch, in, hidden;                     /* of this tile; in is 0 when folded */
    int64_t rows, state, width;                         /* tau * batch; batch * hidden; columns * hidden */
    const int32_t *token;                               /* (rows) or NULL */
    const float *x, *w_ih, *table, *w_hh, *b_ih, *b_hh; /* x and w_ih, or the table (V,G*H); biases may be NULL */
    float *y;                                           /* (rows,H) */
    const float *h_in;                                  /* (B,H) or NULL: zeros */
} rm_cell_tile;

static inline rm_cell_tile rm_cell_tile_of(const rm_call *call, int columns, int shift) {
    rm_cell_tile r;
    const rm_desc *x = &call->x[RM_X].desc, *w_hh = &call->x[RM_W_HH].desc;
    const float *w_ih = (const float *)call->x[RM_W_IH].data;
    bool folded = x->dtype == REMAT_I32;
    r.call = call, r.queue = (const rm_cuda_queue *)call->queue;
    r.hidden = w_hh->dim[1], r.gates = (int)(w_hh->dim[0] / r.hidden), r.columns = columns, r.shift = shift;
    r.tau = x->dim[0], r.batch = x->dim[1], r.in = folded ? 0 : x->dim[2];
    r.rows = r.tau * r.batch, r.state = r.batch * r.hidden, r.width = columns * r.hidden;
    r.token = folded ? (const int32_t *)call->x[RM_X].data : NULL;
    r.x = folded ? NULL : (const float *)call->x[RM_X].data;
    r.w_ih = folded ? NULL : w_ih, r.table = folded ? w_ih : NULL;
    r.w_hh = (const float *)call->x[RM_W_HH].data;
    r.b_ih = call->x[RM_B_IH].desc.rank < 0 ? NULL : (const float *)call->x[RM_B_IH].data;
    r.b_hh = call->x[RM_B_HH].desc.rank < 0 ? NULL : (const float *)call->x[RM_B_HH].data;
    r.y = (float *)call->y.data, r.h_in = (const float *)call->state_in[0].data;
    return r;
}

/* h before timestep t, (B,H); NULL: zeros. */
static inline const float *rm_cell_h_before(const rm_cell_tile *r, int64_t t) {
    return t > 0 ? r->y + (t - 1) * r->state : r->h_in;
}

/* Where gates of timestep t lie; of one that keeps none and reads a table, every timestep's in the same place. */
static inline float *rm_cell_gates_at(const rm_cell_tile *r, float *gates, int64_t t) {
    return gates + (r->table && !r->call->aux ? 0 : t * r->batch * r->width);
}

/* ---- Forward's scratch (rm_recurrent_cuda_scratch_bytes) --------------------------------------------------------- */

static __global__ void rm_cell_copy_tokens(int64_t n, const int32_t *from, int32_t *to) {
    RM_EACH(i, n) to[i] = from[i];
}

/* Tokens are copied to scratch, whose address is the same for many tiles where theirs is another for each: what is
 * recorded of one tile's timesteps can then be used again for others (cuda_queue.h, begin). */
static inline void rm_cell_take_tokens(rm_cell_tile *r) {
    if (!r->token) return;
    RM_LAUNCH_EACH(rm_cell_copy_tokens, r->rows, r->queue, r->rows, r->token, (int32_t *)r->call->scratch);
    r->token = (const int32_t *)r->call->scratch;
}

/* The array for gates: aux, or behind the tokens. */
static inline float *rm_cell_gates_of(const rm_cell_tile *r) {
    uint64_t tokens = r->table ? rm_align_up((uint64_t)r->rows * sizeof(int32_t)) : 0;
    return r->call->aux ? (float *)r->call->aux : (float *)((char *)r->call->scratch + tokens);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

static inline rm_cuda_product rm_cell_product(const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                                              int64_t ldc) {
    rm_cuda_product p;
    memset(&p, 0, sizeof p);
    p.a = a, p.b = b, p.c = c, p.lda = lda, p.ldb = ldb, p.ldc = ldc;
    return p;
}

static inline void rm_cell_multiply(const rm_cell_tile *r, rm_cuda_product p, int64_t m, int64_t n, int64_t k) {
    p.m = m, p.n = n, p.k = k;
    r->queue->multiply(r->queue, &p);
}

/* Gates whose x parts lie side by side: rows from `gate` on of w_ih, `n` of them, in columns from `column` on. */
typedef struct {
    int gate, n, column;
} rm_gate_run;

/* The first or second run; n is 0 where there is no second. */
static inline rm_gate_run rm_cell_run(const rm_cell_tile *r, int which) {
    rm_gate_run run = {0, r->gates - r->shift, r->shift};
    if (which) run.gate = r->gates - r->shift, run.n = r->shift, run.column = 0;
    return run;
}

/* gates (rows,width), x's columns = x w_ih^T. */
static inline void rm_cell_project(const rm_cell_tile *r, float *gates) {
    for (int i = 0; i < 2; i++) {
        rm_gate_run run = rm_cell_run(r, i);
        if (!run.n || r->table) continue;
        rm_cuda_product p = rm_cell_product(r->x, r->in, r->w_ih + run.gate * r->hidden * r->in, r->in,
                                            gates + run.column * r->hidden, r->width);
        p.transpose_b = true;
        rm_cell_multiply(r, p, r->rows, run.n * r->hidden, r->in);
    }
}

/* h's columns of gates (rows,width) += h w_hh^T, or = where x's part is in the table; h (rows,H). A row's bits are those of
 * one timestep's product. */
static inline void rm_cell_recur(const rm_cell_tile *r, const float *h, float *gates, int64_t rows) {
    rm_cuda_product p = rm_cell_product(h, r->hidden, r->w_hh, r->hidden, gates + r->shift * r->hidden, r->width);
    p.transpose_b = true, p.add = !r->table, p.rows_like = r->batch;
    if (h) rm_cell_multiply(r, p, rows, r->gates * r->hidden, r->hidden);
}

/* The same of all timesteps, from y. Its rows are aligned as those of each timestep are: all of them begin at multiples of H
 * numbers. */
static inline void rm_cell_recur_all(const rm_cell_tile *r, float *gates) {
    rm_cell_recur(r, r->h_in, gates, r->batch);
    if (r->tau > 1) rm_cell_recur(r, r->y, gates + r->batch * r->width, r->rows - r->batch);
}

/* dh (B,H) = dgates[t] w_hh, or += ; dgates (B,width) */
static inline void rm_cell_back(const rm_cell_tile *r, const float *dgates, float *dh, bool add) {
    rm_cuda_product p = rm_cell_product(dgates + r->shift * r->hidden, r->width, r->w_hh, r->hidden, dh, r->hidden);
    p.add = add;
    if (dh) rm_cell_multiply(r, p, r->batch, r->hidden, r->gates * r->hidden);
}

/* ---- Sums of a unit ---------------------------------------------------------------------------------------------- */

/* Where a kernel finds what products, table and biases give for a unit. Rows are counted from the first that it is given. */
typedef struct {
    int64_t hidden, width, bare; /* products have left nothing in the first `bare` rows */
    int gates, shift;
    const float *products, *table, *b_ih, *b_hh;
    const int32_t *token;
} rm_cell_sums;

/* Of `gates`, whose first row is row `from` of the tile. Without a table x's product has filled them all; with one, h's
 * product has, but where h was zero. */
static inline rm_cell_sums rm_cell_sums_of(const rm_cell_tile *r, const float *gates, int64_t from) {
    rm_cell_sums s;
    s.hidden = r->hidden, s.width = r->width, s.gates = r->gates, s.shift = r->shift;
    s.bare = r->table && !r->h_in && from == 0 ? r->batch : 0;
    s.products = gates, s.table = r->table, s.b_ih = r->b_ih, s.b_hh = r->b_hh;
    s.token = r->token ? r->token + from : NULL;
    return s;
}

static __device__ inline float rm_cell_table(const rm_cell_sums *s, int64_t row, int64_t j, int gate) {
    return s->table[(s->token[row] * (int64_t)s->gates + gate) * s->hidden + j];
}

/* x w_ih^T + h w_hh^T + biases: unit j of gate `gate`, whose parts share a column. */
static __device__ inline float rm_cell_sum(const rm_cell_sums *s, int64_t row, int64_t j, int gate) {
    int64_t u = gate * s->hidden + j;
    float sum = row < s->bare ? 0 : s->products[row * s->width + s->shift * s->hidden + u];
    if (s->table) sum += rm_cell_table(s, row, j, gate);
    if (s->b_ih) sum += s->b_ih[u];
    if (s->b_hh) sum += s->b_hh[u];
    return sum;
}

/* i = row * hidden + j: a division of 64 bits takes tens of instructions, more than a cell does in all. */
static __device__ inline int64_t rm_cell_row(int64_t i, int64_t hidden) {
    return i >> 32 || hidden >> 32 ? i / hidden : (int64_t)((uint32_t)i / (uint32_t)hidden);
}

/* A timestep has few elements, and blocks that are small spread over more of the GPU. */
enum { RM_CELL_THREADS = 128 };
#define RM_LAUNCH_CELL(kernel, n, queue, ...)                                                                          \
    RM_LAUNCH(kernel, rm_blocks_within(n, RM_CELL_THREADS, RM_EACH_BLOCKS), RM_CELL_THREADS, queue, __VA_ARGS__)

/* ---- Recording the timesteps ------------------------------------------------------------------------------------- */

/* All that the launches of a tile's timesteps depend on. Every member has 8 bytes: there is no padding. */
typedef struct {
    int64_t name, tau, batch, hidden; /* name: of cell and pass */
    const void *of_tile[8], *of_state[RM_MAX_STATE][4];
} rm_cell_key;

/* Whether the timesteps are to be launched; then rm_cuda_end follows. Neither x nor the tokens are part of it, whose addresses
 * are other for each tile: what reads them is launched outside, and the copy of the tokens lies in scratch. */
static inline bool rm_cell_begin(const rm_cell_tile *r, const char *name) {
    const rm_call *c = r->call;
    rm_cell_key key;
    const void *of_tile[] = {r->table, r->w_hh, r->b_ih, r->b_hh, r->y, c->aux, c->scratch, c->dy.data};
    memset(&key, 0, sizeof key);
    memcpy(&key.name, name, strlen(name) < sizeof key.name ? strlen(name) : sizeof key.name);
    key.tau = r->tau, key.batch = r->batch, key.hidden = r->hidden;
    memcpy(key.of_tile, of_tile, sizeof of_tile);
    for (int k = 0; k < RM_MAX_STATE; k++) {
        key.of_state[k][0] = c->state_in[k].data, key.of_state[k][1] = c->state_out[k].data;
        key.of_state[k][2] = c->dstate_in[k].data, key.of_state[k][3] = c->dstate_out[k].data;
    }
    return rm_cuda_begin(r->queue, &key, sizeof key);
}

/* ---- Gradients of a whole tile ----------------------------------------------------------------------------------- */

/* dtable[token[row],:] += x's part of dgates[row], rows in order. A token may occur in many rows, so blocks share out the
 * vocabulary and columns, not rows (as embedding.cu does). */
static __global__ void rm_cell_scatter(int64_t rows, int64_t hidden, int gates, int columns, int shift, int64_t v,
                                       int64_t group, const int32_t *token, const float *dgates, float *dtable) {
    int64_t wide = gates * hidden, tiles = (wide + blockDim.x - 1) / blockDim.x;
    int64_t u = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    int64_t from = blockIdx.x / tiles * group, to = from + group < v ? from + group : v;
    if (u >= wide) return;
    int64_t at = (u / hidden + shift) % gates * hidden + u % hidden;
    for (int64_t row = 0; row < rows; row++)
        if (token[row] >= from && token[row] < to) dtable[token[row] * wide + u] += dgates[row * columns * hidden + at];
}

static inline void rm_cell_scatter_table(const rm_cell_tile *r, const float *dgates, float *dtable) {
    enum { THREADS = 128, GROUPS = 512 };
    int64_t v = r->call->x[RM_W_IH].desc.dim[0], group = rm_blocks_of(v, GROUPS), wide = r->gates * r->hidden;
    RM_LAUNCH(rm_cell_scatter, rm_blocks_of(v, group) * rm_blocks_of(wide, THREADS), THREADS, r->queue, r->rows,
              r->hidden, r->gates, r->columns, r->shift, v, group, r->token, dgates, dtable);
}

/* dw_hh += dgates^T h, h of the timestep before: the incoming state's rows, then y's. */
static inline void rm_cell_add_dw_hh(const rm_cell_tile *r, const float *dgates, float *dw_hh) {
    for (int i = 0; i < 2; i++) {
        int64_t rows = i ? r->rows - r->batch : r->batch;
        const float *h = i ? r->y : r->h_in, *d = dgates + (i ? r->batch * r->width : 0) + r->shift * r->hidden;
        rm_cuda_product p = rm_cell_product(d, r->width, h, r->hidden, dw_hh, r->hidden);
        p.transpose_a = p.add = true;
        if (h && rows) rm_cell_multiply(r, p, r->gates * r->hidden, r->hidden, rows);
    }
}

/* dw_ih += dgates^T x;  dx = dgates w_ih; either may be NULL. */
static inline void rm_cell_input_gradients(const rm_cell_tile *r, const float *dgates, float *dw_ih, float *dx) {
    for (int i = 0; i < 2; i++) {
        rm_gate_run run = rm_cell_run(r, i);
        const float *d = dgates + run.column * r->hidden;
        int64_t at = run.gate * r->hidden * r->in, n = run.n * r->hidden;
        if (!n) continue;
        rm_cuda_product dw = rm_cell_product(d, r->width, r->x, r->in, dw_ih ? dw_ih + at : NULL, r->in);
        dw.transpose_a = dw.add = true;
        if (dw_ih) rm_cell_multiply(r, dw, n, r->in, r->rows);
        rm_cuda_product back = rm_cell_product(d, r->width, r->w_ih + at, r->in, dx, r->in);
        back.add = i > 0;
        if (dx) rm_cell_multiply(r, back, r->rows, r->in, n);
    }
}

static inline void rm_cell_add_biases(const rm_cell_tile *r, const float *dgates, float *db_ih, float *db_hh) {
    for (int i = 0; i < 2; i++) {
        rm_gate_run run = rm_cell_run(r, i);
        if (run.n && db_ih)
            rm_launch_add_columns(r->queue, r->rows, run.n * r->hidden, r->width, dgates + run.column * r->hidden,
                                  db_ih + run.gate * r->hidden);
    }
    if (db_hh)
        rm_launch_add_columns(r->queue, r->rows, r->gates * r->hidden, r->width, dgates + r->shift * r->hidden, db_hh);
}

/* All that follows from dgates (rows,width) once the timesteps are done. Weights' gradients are added to. */
static inline void rm_cell_gradients(const rm_cell_tile *r, const float *dgates) {
    const rm_call *c = r->call;
    float *dw_ih = (float *)c->dx[RM_W_IH].data, *dw_hh = (float *)c->dx[RM_W_HH].data;
    float *db_ih = (float *)c->dx[RM_B_IH].data, *db_hh = (float *)c->dx[RM_B_HH].data;
    if (dw_hh) rm_cell_add_dw_hh(r, dgates, dw_hh);
    if (r->table && dw_ih) rm_cell_scatter_table(r, dgates, dw_ih);
    if (!r->table) rm_cell_input_gradients(r, dgates, dw_ih, (float *)c->dx[RM_X].data);
    rm_cell_add_biases(r, dgates, db_ih, db_hh);
}

#endif

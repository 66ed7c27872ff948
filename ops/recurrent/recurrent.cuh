/* recurrent.cuh: code shared by the CUDA kernels of lstm, gru and plain RNNs. NAME.cu has the kernels of a unit, which differ.
 *
 *   forward    gates = x w_ih^T, one product for all rows of the tile (or rows of the table);
 *              for each timestep: gates[t] += h w_hh^T, one product, and one kernel that computes gates and h from the sums.
 *              Both use the same memory for all timesteps and tiles, so that a recording of some serves all (rm_cell_now)
 *   rebuild    as forward, but since h is known, the second product is also one for all timesteps, if timesteps are aligned
 *              like that memory
 *   backward   for each timestep, from the last: one kernel replaces gates by their gradients; dh = dgates[t] w_hh;
 *              then dw_hh, dw_ih, dx by one product each (two if columns are apart), biases and the table by sums in order
 *
 * Columns of `gates`, in units of H. The part of x of gate g is in column (g + shift) mod G, that of h in g + shift:
 *
 *                  lstm            gru             plain RNNs
 *     columns     i  f  g  o      n  r  z  q       h
 *     x w_ih^T    0  1  2  3      2  0  1          0       rows of w_ih, in units of H
 *     h w_hh^T    0  1  2  3         0  1  2       0       rows of w_hh
 *     shift           0                1           0
 *
 * On Hopper, layers of 17 to 512 units use persistent kernels for the timesteps instead (persistent.cuh).
 *
 * docs/notes/cuda.md explains what launches cost, and why the bits repeat. */
#ifndef RM_RECURRENT_CUH
#define RM_RECURRENT_CUH

#include <string.h>

#include "ops/recurrent/cell_math.h"
#include "ops/cuda/channels.cuh"
#include "ops/cuda/scatter.cuh"

enum { RM_X, RM_W_IH, RM_W_HH, RM_B_IH, RM_B_HH, RM_RESET };

/* ---- A call ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const remat_call *call;
    const rm_cuda_queue *queue;
    int gates, columns, shift;                          /* see above; rows of the weights are gates * hidden */
    int64_t tau, batch, in, hidden;                     /* sizes of this tile; `in` is 0 if the embedding is folded in
                                                           */
    int64_t rows, state, width;                         /* tau * batch; batch * hidden; columns * hidden */
    const int32_t *token;                               /* (rows) or NULL */
    const float *reset;                                 /* (rows) or NULL; above 0 where states are reset */
    const float *x, *w_ih, *table, *w_hh, *b_ih, *b_hh; /* x and w_ih, or the table (V,G*H); biases may be NULL */
    float *y;                                           /* (rows,H) */
    const float *h_in;                                  /* (B,H) or NULL: zeros */
} rm_cell_tile;

static inline rm_cell_tile rm_cell_tile_of(const remat_call *call, int columns, int shift) {
    rm_cell_tile r;
    const remat_desc *x = &call->x[RM_X].desc, *w_hh = &call->x[RM_W_HH].desc;
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
    r.reset = call->x[RM_RESET].desc.rank < 0 ? NULL : (const float *)call->x[RM_RESET].data;
    r.y = (float *)call->y.data, r.h_in = (const float *)call->state_in[0].data;
    return r;
}

/* ---- One timestep's place (rm_recurrent_cuda_fixed_bytes) -------------------------------------------------------------- */

/* The addresses of a tile's arrays and the current timestep. Kernels read them from device memory, so recorded
 * launches contain none of these addresses and serve every tile. */
typedef struct {
    int64_t t, tau;        /* the first timestep of the next recorded launches, relative to the tile */
    const int32_t *token;  /* (rows), or NULL */
    const float *reset;    /* (rows), or NULL */
    const float *products; /* (rows,width): in forward without a table: x's parts of the gates; otherwise NULL */
    float *gates, *c;      /* (rows,width), (rows,H): values to keep or to differentiate; NULL: none */
    float *y;              /* (rows,H) */
    const float *dy;       /* (rows,H) */
    const float *h_in, *c_in; /* (B,H), or NULL: zeros */
    float *h_out, *c_out;     /* (B,H), or NULL */
} rm_cell_arrays;

/* Memory that is the same for every tile: the list above, and one timestep. In forward, h and c are the state
 * before the timestep, and then the state after it (zeros for rows that the next timestep resets). In backward,
 * they are the gradients of the state after it, and then of the state before it (for h regardless of resets, which
 * its readers check). */
typedef struct {
    rm_cell_arrays *arrays;
    float *gates; /* (B,width) */
    float *h, *c; /* (B,H); c: of lstm only, otherwise NULL */
} rm_cell_now;

enum { RM_CELL_ARRAYS_BYTES = 256 }; /* recurrent.c counts with it */

static inline rm_cell_now rm_cell_now_of(const rm_cell_tile *r, bool has_c) {
    static_assert(sizeof(rm_cell_arrays) <= RM_CELL_ARRAYS_BYTES, "recurrent.c sets too little aside");
    rm_cell_now now;
    char *at = (char *)r->call->fixed,
         *h = at + RM_CELL_ARRAYS_BYTES + rm_align_up((uint64_t)(r->batch * r->width) * sizeof(float));
    now.arrays = (rm_cell_arrays *)at;
    now.gates = (float *)(at + RM_CELL_ARRAYS_BYTES);
    now.h = (float *)h;
    now.c = has_c ? (float *)(h + rm_align_up((uint64_t)r->state * sizeof(float))) : NULL;
    return now;
}

/* Whether timestep t is in the tile and resets this row, one of n / hidden. */
static __device__ inline bool rm_cell_begins(const rm_cell_arrays *a, int64_t t, int64_t n, int64_t hidden, int64_t row) {
    return a->reset && t < a->tau && a->reset[t * (n / hidden) + row] > 0;
}

/* Copies x's parts of a unit's gates from a timestep's rows to the place where h's parts are added. Columns from
 * `filled` on have no part of x and start at zero. */
typedef struct {
    float column[4];
} rm_cell_parts;

static __device__ inline rm_cell_parts rm_cell_read(const rm_cell_arrays *a, int64_t t, int64_t n, int64_t hidden,
                                                    int columns, int filled, int64_t row, int64_t j) {
    rm_cell_parts parts = {{0, 0, 0, 0}};
    if (!a->products || t >= a->tau) return parts;
    const float *x = a->products + t * n * columns + row * columns * hidden + j;
    for (int k = 0; k < 4; k++)
        if (k < filled) parts.column[k] = x[k * hidden];
    return parts;
}

static __device__ inline void rm_cell_write(rm_cell_parts parts, float *gates, int64_t hidden, int columns, int64_t row,
                                            int64_t j) {
    for (int k = 0; k < 4; k++)
        if (k < columns) gates[row * columns * hidden + k * hidden + j] = parts.column[k];
}

/* Prepares a tile before its first timestep, n = B H: the list of addresses; the incoming state or its gradient
 * (`first`: the timestep whose resets count; in backward the one after the tile); x's parts. */
static __global__ void rm_cell_start(int64_t n, int64_t hidden, int columns, int filled, rm_cell_arrays a, int64_t first,
                                     const float *h, const float *c, rm_cell_now now) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *now.arrays = a;
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, hidden), j = i - row * hidden;
        bool begins = rm_cell_begins(&a, first, n, hidden, row);
        now.h[i] = h && !begins ? h[i] : 0;
        if (now.c) now.c[i] = c && !begins ? c[i] : 0;
        if (a.products)
            rm_cell_write(rm_cell_read(&a, 0, n, hidden, columns, filled, row, j), now.gates, hidden, columns, row, j);
    }
}

/* The last of the launches that are recorded together. */
static __global__ void rm_cell_advance(rm_cell_arrays *arrays, int64_t by) { RM_EACH(i, 1) arrays->t += by; }

/* Writes the gradients of the incoming states after a tile's last timestep in backward; NULL: not wanted. */
static __global__ void rm_cell_finish(int64_t n, int64_t hidden, rm_cell_now now, float *dh_in, float *dc_in) {
    rm_cell_arrays a = *now.arrays;
    RM_EACH(i, n) {
        if (dh_in) dh_in[i] = rm_cell_begins(&a, 0, n, hidden, rm_row_of(i, hidden)) ? 0 : now.h[i];
        if (dc_in) dc_in[i] = now.c[i];
    }
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

/* A run of gates whose x parts are adjacent: `n` gates, in w_ih from gate `gate` on, in the columns from `column` on.
 */
typedef struct {
    int gate, n, column;
} rm_gate_run;

/* The first or second run; n is 0 if there is no second. */
static inline rm_gate_run rm_cell_run(const rm_cell_tile *r, int which) {
    rm_gate_run run = {0, r->gates - r->shift, r->shift};
    if (which) run.gate = r->gates - r->shift, run.n = r->shift, run.column = 0;
    return run;
}

/* Sets x's columns of gates (rows,width) to x w_ih^T. */
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

/* h's columns of gates (rows,width) += h w_hh^T, or = if x's part is in the table; h (rows,H). A row has the same
 * bits as in a product of one timestep. */
static inline void rm_cell_recur(const rm_cell_tile *r, const float *h, float *gates, int64_t rows) {
    rm_cuda_product p = rm_cell_product(h, r->hidden, r->w_hh, r->hidden, gates + r->shift * r->hidden, r->width);
    p.transpose_b = true, p.add = !r->table, p.rows_like = r->batch;
    if (h) rm_cell_multiply(r, p, rows, r->gates * r->hidden, r->hidden);
}

/* Copies n numbers in rows of `across`, which are `width` apart in both places. */
static __global__ void rm_cell_carry(int64_t n, int64_t across, int64_t width, const float *from, float *to) {
    RM_EACH(i, n) {
        int64_t row = rm_row_of(i, across), at = row * width + i - row * across;
        to[at] = from[at];
    }
}

/* Writes the states (n / hidden, hidden) before timesteps, zeros for rows that are reset. The first `initial`
 * numbers are from h_in (NULL: zeros), the others from the start of y. */
static __global__ void rm_cell_states(int64_t n, int64_t hidden, int64_t initial, const float *h_in, const float *y,
                                      const float *reset, float *to) {
    RM_EACH(i, n) {
        bool zero = (reset && reset[rm_row_of(i, hidden)] > 0) || (i < initial && !h_in);
        to[i] = zero ? 0 : i < initial ? h_in[i] : y[i - initial];
    }
}

/* Computes h's columns of the gates of timestep t in the fixed place, by the same call as forward. h: the state before
 * the timestep. */
static inline void rm_cell_recur_there(const rm_cell_tile *r, int64_t t, const float *h, float *gates) {
    const int64_t across = r->gates * r->hidden, n = r->batch * across, column = r->shift * r->hidden;
    rm_cell_now now = rm_cell_now_of(r, false);
    RM_LAUNCH_EACH(rm_cell_states, r->state, r->queue, r->state, r->hidden, r->state, h, (const float *)NULL,
                   r->reset ? r->reset + t * r->batch : NULL, now.h);
    if (!r->table)
        RM_LAUNCH_EACH(rm_cell_carry, n, r->queue, n, across, r->width, (const float *)(gates + column),
                       now.gates + column);
    rm_cell_recur(r, now.h, now.gates, r->batch);
    RM_LAUNCH_EACH(rm_cell_carry, n, r->queue, n, across, r->width, (const float *)(now.gates + column),
                   gates + column);
}

/* Whether each timestep is aligned like the fixed place, to the 16 bytes that a kernel may read at once. */
static inline bool rm_cell_is_aligned(const rm_cell_tile *r, const float *gates) {
    return (((uintptr_t)r->h_in | (uintptr_t)r->y | (uintptr_t)gates | (uintptr_t)r->state * sizeof(float)) & 15) == 0;
}

/* The same for all timesteps, from y. If each timestep starts at a multiple of 16 bytes, one product computes all
 * of them, since its rows are aligned like those of forward. Otherwise (B H is not a multiple of 4) a kernel that
 * looks at addresses might add in another order than in forward: then each timestep is a product in the place that
 * forward used. The same is done if there are resets. */
static inline void rm_cell_recur_all(const rm_cell_tile *r, float *gates) {
    if (!r->reset && rm_cell_is_aligned(r, gates)) {
        rm_cell_recur(r, r->h_in, gates, r->batch);
        if (r->tau > 1) rm_cell_recur(r, r->y, gates + r->batch * r->width, r->rows - r->batch);
        return;
    }
    for (int64_t t = 0; t < r->tau; t++) {
        const float *h = t ? r->y + (t - 1) * r->state : r->h_in;
        if (h) rm_cell_recur_there(r, t, h, gates + t * r->batch * r->width);
    }
}

/* dh (B,H) = dgates w_hh, or += ; dgates (B,width) */
static inline void rm_cell_back(const rm_cell_tile *r, rm_cell_now now, bool add) {
    rm_cuda_product p =
        rm_cell_product(now.gates + r->shift * r->hidden, r->width, r->w_hh, r->hidden, now.h, r->hidden);
    p.add = add;
    rm_cell_multiply(r, p, r->batch, r->hidden, r->gates * r->hidden);
}

/* ---- Sums of a unit ---------------------------------------------------------------------------------------------- */

/* The places of a unit's terms: products, table and biases. Rows are counted from the first row that the kernel is
 * given. */
typedef struct {
    int64_t hidden, width, bare; /* products have written nothing to the first `bare` rows */
    int gates, shift;
    const float *products, *table, *b_ih, *b_hh;
    const int32_t *token;
} rm_cell_sums;

/* The terms of rows of `gates`. Without a table, the product with x has filled all rows. With a table, the product
 * with h has, except where h was zero: in the tile's first timestep, if there is no incoming state. */
static inline rm_cell_sums rm_cell_sums_of(const rm_cell_tile *r, const float *gates, bool has_first) {
    rm_cell_sums s;
    s.hidden = r->hidden, s.width = r->width, s.gates = r->gates, s.shift = r->shift;
    s.bare = r->table && !r->h_in && has_first ? r->batch : 0;
    s.products = gates, s.table = r->table, s.b_ih = r->b_ih, s.b_hh = r->b_hh;
    s.token = r->token;
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

/* A timestep has few elements; small blocks spread them over more of the GPU. */
enum { RM_CELL_THREADS = 128 };
#define RM_LAUNCH_CELL(kernel, n, queue, ...)                                                                          \
    RM_LAUNCH(kernel, rm_blocks_within(n, RM_CELL_THREADS, RM_EACH_BLOCKS), RM_CELL_THREADS, queue, __VA_ARGS__)

/* ---- The timesteps ----------------------------------------------------------------------------------------------- */

/* Number of timesteps that are recorded together; the recording is launched again until the tile is done. A longer
 * recording needs more memory; with a shorter one, the time between two recordings is spread over fewer timesteps. */
enum { RM_CELL_STEPS = 32 };
static inline int64_t rm_cell_steps(int64_t left) { return left < RM_CELL_STEPS ? left : (int64_t)RM_CELL_STEPS; }

/* Everything that the launches of some timesteps depend on, except the contents of the fixed place. Every member
 * has 8 bytes, so there is no padding. */
typedef struct {
    int64_t name, steps, batch, hidden, zeros; /* name: the cell and the pass */
    const void *address[5];
} rm_cell_key;

/* Returns true if the caller must launch `steps` timesteps and then call rm_cuda_end; false if a recording of them
 * has been launched. zeros: the first of them has no state before it, or its gradient is not wanted, so it has no
 * product. */
static inline bool rm_cell_begin(const rm_cell_tile *r, const char *name, int64_t steps, bool zeros) {
    rm_cell_key key;
    const void *address[] = {r->table, r->w_hh, r->b_ih, r->b_hh, r->call->fixed};
    memset(&key, 0, sizeof key);
    memcpy(&key.name, name, strlen(name) < sizeof key.name ? strlen(name) : sizeof key.name);
    key.steps = steps, key.batch = r->batch, key.hidden = r->hidden, key.zeros = zeros;
    memcpy(key.address, address, sizeof address);
    return rm_cuda_begin(r->queue, &key, sizeof key);
}

static inline void rm_cell_end(const rm_cell_tile *r, rm_cell_now now, int64_t by) {
    RM_LAUNCH(rm_cell_advance, 1, 1, r->queue, now.arrays, by);
    rm_cuda_end(r->queue);
}

/* The addresses of a tile that both passes set; the rest is NULL. */
static inline rm_cell_arrays rm_cell_arrays_of(const rm_cell_tile *r, int64_t t) {
    rm_cell_arrays a;
    memset(&a, 0, sizeof a);
    a.t = t, a.tau = r->tau, a.token = r->token, a.reset = r->reset, a.y = r->y, a.h_in = r->h_in;
    a.c_in = (const float *)r->call->state_in[1].data;
    return a;
}

/* Launches a cell's kernel, after or before the product, for timestep t + k (forward) or t - k; t is in the list. */
typedef void rm_cell_launcher(const rm_cell_tile *r, rm_cell_now now, int64_t k, bool zeros);

/* Forward of all timesteps of a tile. `products`: x's parts, unless there is a table; `gates`, `c`: to be kept, or
 * NULL. */
static inline void rm_cell_forward(const rm_cell_tile *r, const char *name, bool has_c, const float *products,
                                   float *gates, float *c, rm_cell_launcher *step) {
    const remat_call *call = r->call;
    rm_cell_now now = rm_cell_now_of(r, has_c);
    rm_cell_arrays a = rm_cell_arrays_of(r, 0);
    a.products = r->table ? NULL : products, a.gates = gates, a.c = c;
    a.h_out = (float *)call->state_out[0].data, a.c_out = has_c ? (float *)call->state_out[1].data : NULL;
    RM_LAUNCH_CELL(rm_cell_start, r->state, r->queue, r->state, r->hidden, r->columns, r->gates, a, 0, a.h_in, a.c_in,
                   now);
    for (int64_t t = 0, n; t < r->tau; t += n) {
        n = rm_cell_steps(r->tau - t);
        bool zeros = t == 0 && !r->h_in;
        if (!rm_cell_begin(r, name, n, zeros)) continue;
        for (int64_t k = 0; k < n; k++) {
            bool none = k == 0 && zeros;
            if (!none) rm_cell_recur(r, now.h, now.gates, r->batch);
            step(r, now, k, none);
        }
        rm_cell_end(r, now, n);
    }
}

/* Backward of all timesteps of a tile. `gates` are replaced by their gradients; `add`: the kernel of a timestep writes
 * a part of dh, to which the product is added. */
static inline void rm_cell_backward(const rm_cell_tile *r, const char *name, bool has_c, float *gates, float *c,
                                    bool add, rm_cell_launcher *step) {
    const remat_call *call = r->call;
    rm_cell_now now = rm_cell_now_of(r, has_c);
    rm_cell_arrays a = rm_cell_arrays_of(r, r->tau - 1);
    float *dh_in = (float *)call->dstate_in[0].data, *dc_in = has_c ? (float *)call->dstate_in[1].data : NULL;
    a.gates = gates, a.c = c, a.dy = (const float *)call->dy.data;
    RM_LAUNCH_CELL(rm_cell_start, r->state, r->queue, r->state, r->hidden, r->columns, r->gates, a, r->tau,
                   (const float *)call->dstate_out[0].data, (const float *)call->dstate_out[1].data, now);
    for (int64_t left = r->tau, n; left > 0; left -= n) {
        n = rm_cell_steps(left);
        bool zeros = n == left && !dh_in;
        if (!rm_cell_begin(r, name, n, zeros)) continue;
        for (int64_t k = 0; k < n; k++) {
            bool none = k == n - 1 && zeros;
            step(r, now, k, none);
            if (!none) rm_cell_back(r, now, add);
        }
        rm_cell_end(r, now, -n);
    }
    if (dh_in || dc_in) RM_LAUNCH_CELL(rm_cell_finish, r->state, r->queue, r->state, r->hidden, now, dh_in, dc_in);
}

/* ---- Gradients of a whole tile ----------------------------------------------------------------------------------- */

/* dtable[token[row],:] += x's part of dgates[row] */
static inline void rm_cell_scatter_table(const rm_cell_tile *r, const float *dgates, float *dtable) {
    rm_scatter s;
    s.rows = r->rows, s.columns = r->gates * r->hidden, s.ld = r->width, s.turn = r->shift * r->hidden;
    s.v = r->call->x[RM_W_IH].desc.dim[0];
    rm_launch_scatter(r->queue, s, r->token, dgates, dtable);
}

/* dw_hh += dgates^T h, with h of the previous timestep: first the rows of the incoming state, then those of y. */
static inline void rm_cell_add_dw_hh(const rm_cell_tile *r, const float *dgates, float *dw_hh) {
    if (r->reset) { /* with resets: all states are copied to scratch, after dgates if these are there, too */
        const int64_t n = r->rows * r->hidden;
        const bool after = dgates == (const float *)r->call->scratch;
        const uint64_t at = after ? rm_align_up((uint64_t)(r->rows * r->width) * sizeof(float)) : 0;
        float *states = (float *)((char *)r->call->scratch + at);
        RM_LAUNCH_EACH(rm_cell_states, n, r->queue, n, r->hidden, r->state, r->h_in, (const float *)r->y, r->reset, states);
        rm_cuda_product p = rm_cell_product(dgates + r->shift * r->hidden, r->width, states, r->hidden, dw_hh, r->hidden);
        p.transpose_a = p.add = true;
        return rm_cell_multiply(r, p, r->gates * r->hidden, r->hidden, r->rows);
    }
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

static __global__ void rm_cell_clear(int64_t n, float *to) {
    RM_EACH(i, n) to[i] = 0;
}

/* Computes all other gradients from dgates (rows,width) after the last timestep. Gradients of weights are accumulated.
 */
static inline void rm_cell_gradients(const rm_cell_tile *r, const float *dgates) {
    const remat_call *c = r->call;
    float *dw_ih = (float *)c->dx[RM_W_IH].data, *dw_hh = (float *)c->dx[RM_W_HH].data;
    float *db_ih = (float *)c->dx[RM_B_IH].data, *db_hh = (float *)c->dx[RM_B_HH].data;
    if (dw_hh) rm_cell_add_dw_hh(r, dgates, dw_hh);
    if (r->table && dw_ih) rm_cell_scatter_table(r, dgates, dw_ih);
    if (!r->table) rm_cell_input_gradients(r, dgates, dw_ih, (float *)c->dx[RM_X].data);
    rm_cell_add_biases(r, dgates, db_ih, db_hh);
    if (c->dx[RM_RESET].data) RM_LAUNCH_EACH(rm_cell_clear, r->rows, r->queue, r->rows, (float *)c->dx[RM_RESET].data);
}

#endif

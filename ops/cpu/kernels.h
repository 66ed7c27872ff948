/* cpu/kernels.h: fast float kernels of recurrent cells, activations, convolutions and small products, in one table of
 * functions. kernels.c is compiled once per instruction set; rm_cell_kernels_get (choose.c) selects the widest that
 * this processor supports. For a cell, ops/recurrent/call.c converts a call of its op to a job, opens the parallel
 * region and runs `forward` or `backward` on all threads. docs/notes/cells.md explains the layouts and why no result
 * depends on the number of threads.
 */
#ifndef RM_CELL_KERNELS_H
#define RM_CELL_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/status.h"
#include "ops/cpu/barrier.h"
#include "ops/recurrent/matrix_scan.h"
#include "ops/recurrent/m2rnn.h"
#include "ops/recurrent/selective_scan.h"
#include "ops/recurrent/slstm.h"

typedef enum {
#define CELL(op, ...) RM_CELL_##op,
#include "ops/recurrent/cells.def"
#undef CELL
    RM_CELLS
} rm_cell;

/* The layout of a cell's arrays. */
typedef struct {
    const char *op;
    int gates;   /* G: row blocks of the weights */
    int columns; /* numbers per (t,b,unit) in `gates` of a job: the activated gates, or a plain RNN's one
                    pre-activation */
    /* Column v takes its product with x from row block x_gate[v] of w_ih, v < G; the product with h fills columns
     * first_h.., in the order of w_hh. A gate whose two products lie in different columns (a GRU's n) also has two
     * biases. */
    int x_gate[4], first_h;
    int states;      /* h, and an LSTM's c */
    bool keeps;      /* gates, from forward to backward. If not: sums wait in y, and their gradients are backward's
                        scratch */
    bool carries_dh; /* backward's `carry` is the part of dh that passes the gates by; if not, an LSTM's dc */
} rm_cell_layout;
extern const rm_cell_layout rm_cell_layouts[RM_CELLS];

typedef enum { RM_MIN_GRU, RM_MIN_LSTM, RM_MIN_CELLS } rm_min_cell; /* minimal.c */

/* One tile, shared by all threads of the region. Rows are (t,b), row-major. */
typedef struct {
    rm_cell cell;
    int64_t tau, batch, in, hidden; /* in is 0 when folded */
    const int32_t *token;           /* (rows), or NULL                                    */
    const float *reset;             /* (rows): above 0: the previous state is zeros; NULL: no resets */
    const float *x;                 /* (rows,C), or NULL                                  */
    const float *table;             /* folded: (V,G*H)                                    */
    const float *packed;
    float *y;                 /* (rows,H): forward fills it, backward reads it      */
    const float *h_in, *c_in; /* (B,H), or NULL: zeros */
    float *h_out, *c_out;     /* (B,H); forward */
    /* (rows,columns*H), see above. Forward: the projection of x and then, if `keep`, the activated gates; if not
     * `keep`, only rm_cell_steps_ahead timesteps at a time; NULL if folded and not `keep`. Backward: the activated
     * gates, which are replaced by the gradients of their pre-activations. */
    float *gates;
    bool keep;
    float *c;                          /* lstm (rows,H); forward-only: NULL */
    const float *dy, *dh_out, *dc_out; /* backward: (rows,H), (B,H), (B,H); the last two may be NULL: zeros */
    float *dh_in, *dc_in;              /* (B,H) or NULL: not wanted */
    float *carry;                      /* (B,H), scratch of backward: rm_cell_layout, carries_dh */
    float *dx, *dw_ih, *dw_hh, *db_ih, *db_hh; /* NULL: not wanted; dw_ih is that of the table if folded */
    float *right; /* backward: scratch, rm_cell_right_steps of rm_cell_right_columns, divided among the threads */
    rm_barrier *barrier;                       /* zeroed */
    int64_t cache_bytes;                       /* second-level cache of a core */
} rm_cell_job;

/* The share of thread `thread` of `threads`. */
typedef void rm_cell_kernel(const rm_cell_job *job, int thread, int threads);

/* activations.c: loops over `n` elements. The arrays do not overlap. */
typedef enum {
#define ACTIVATION(op, ...) RM_ACTIVATION_##op,
#include "ops/elementwise/activations.def"
#undef ACTIVATION
} rm_activation;
typedef struct {
    void (*forward)(const float *x, float *y, int64_t n);
    void (*backward)(const float *dy, const float *kept, float *dx, int64_t n);
} rm_activation_loops;

/* projected.c: one row of a timestep of lstm_projected: sums to gates (4H), and backward; c_before NULL: zeros. */
typedef struct {
    void (*forward)(int64_t hidden, float *gates, const float *c_before, float *c, float *m);
    void (*backward)(int64_t hidden, float *gates, const float *c_before, const float *c, const float *dm, float *dc,
                     float *m);
} rm_projected_rows;

/* minimal.c. A job has tau, batch, hidden; x, reset, y, h_in; h_out; and in backward dy, dh_out, dx, dh_in, carry:
 * dh */
typedef struct {
    rm_cell_kernel *forward, *backward;
} rm_min_rows;

/* convolution.c. Channels are side by side in `wide` lanes; at most `most` sums of this width are computed at a time.
 * Pixels: y[p,lane] = start[lane] + the sum over channels c and taps (i,j), in this order, of w[c,i,j,lane] x[c,(i,j)
 * of p]. */
typedef struct {
    int64_t channels, taps[2];
    const float *x; /* under the first tap, of the first pixel */
    int64_t x_plane, x_tap[2], x_step;
    const float *w;
    int64_t w_channel, w_tap[2];
    const float *start; /* `wide` floats */
    float *y;
    int lanes; /* wanted lanes: whole vectors of unwanted lanes are skipped */
} rm_conv_pixels;
/* Weights: dw[k,lane] += the sum over pixels (images,rows,columns) of dy[pixel,lane] x[at[k] + its offset]. */
typedef struct {
    int64_t images, rows, columns;
    const float *dy, *x;
    int64_t x_image, x_row, x_step;
    const int64_t *at;
    float *dw;
    int lanes; /* lanes that are not all zero */
} rm_conv_weights;
enum { RM_CONV_MOST = 12 };
typedef struct {
    int wide, most;
    /* to[r,i] = x[top + r, left + i], rows by columns of a plane of height by width, 0 outside the plane; up to a
     * vector past the end may be overwritten. */
    void (*copy_plane)(const float *x, const int64_t extent[2], const int64_t from[2], const int64_t count[2], float *to);
    /* to[p,lane] = x[lane,p], planes of x `plane` apart; 0 past `lanes`. */
    void (*side_by_side)(const float *x, int64_t plane, int64_t count, int lanes, float *to);
    /* The reverse: x[lane,p] = from[p,lane], or += with `adds`; pixels of x `step` apart. */
    void (*apart)(const float *from, bool adds, int64_t plane, int64_t step, int64_t count, int lanes, float *x);
    void (*pixels[RM_CONV_MOST + 1])(const rm_conv_pixels *t);   /* indexed by the number of pixels */
    void (*weights[RM_CONV_MOST + 1])(const rm_conv_weights *t); /* indexed by the number of weights */
} rm_convolution;

/* small_product.c: C (m,n) = alpha op(A) (m,k) op(B) (k,n) + beta C on one thread, as in ops/math/gemm.h. */
typedef struct {
    bool a_transposed, b_transposed;
    int64_t m, n, k;
    float alpha, beta;
    const float *a, *b;
    int64_t lda, ldb;
    float *c;
    int64_t ldc;
} rm_small_product;

typedef struct {
    const char *isa;
    int lanes; /* floats in a vector */
    uint64_t (*packed_bytes)(rm_cell cell, bool folded, int64_t in, int64_t hidden);
    /* Biases may be NULL. w_ih is not read if folded. Thread `thread` of `threads` packs its share. */
    void (*pack)(rm_cell cell, bool folded, int64_t in, int64_t hidden, const float *w_ih, const float *w_hh,
                 const float *b_ih, const float *b_hh, float *packed, int thread, int threads);
    rm_cell_kernel *forward, *backward;
    rm_cell_kernel *rebuild;   /* gates and c as saved by forward, from x, y, h_in, c_in; for cells that save them */
    const rm_min_rows *minimal; /* by rm_min_cell */
    const rm_selective_rows *selective;
    const rm_slstm_rows *slstm;
    const rm_m2rnn_rows *m2rnn;
    const rm_matrix_rows *matrix; /* by rm_matrix_rule */
    const rm_activation_loops *activation; /* by rm_activation */
    const rm_projected_rows *projected;
    const rm_convolution *convolution;
    void (*small_product)(const rm_small_product *p);
} rm_cell_kernels;

const rm_cell_kernels *rm_cell_kernels_get(void);
int64_t rm_cell_cache_bytes(void); /* size of a core's second-level cache on this machine */
/* All compiled tables, narrowest first, then those that round the operands of the products of cells.def to bf16,
 * which rm_cell_kernels_get never selects. NULL if this processor lacks the instructions, or past the end. For tests
 * and benchmarks: rm_cell_kernels_use sets the table that rm_cell_kernels_get returns from now on (NULL: the best). Do
 * not call it while other threads compute; weights must be packed again. */
const rm_cell_kernels *rm_cell_kernels_list(int i);
enum { RM_CELL_BF16 = 3, RM_CELL_ISAS };
const rm_cell_kernels *rm_cell_kernels_bf16(void); /* number RM_CELL_BF16; NULL also if REMAT_ISA names another */
remat_status rm_cell_kernels_check(void);          /* MISSING: REMAT_ISA names one that is not there */
void rm_cell_kernels_use(const rm_cell_kernels *kernels);

/* The input projection runs this many rows ahead of the recurrence: enough rows to use each weight often, but few
 * enough to be still in the cache when the recurrence needs them. */
enum { RM_CELL_ROWS_AHEAD = 96 };
static inline int64_t rm_cell_steps_ahead(int64_t batch) {
    return batch < RM_CELL_ROWS_AHEAD ? RM_CELL_ROWS_AHEAD / batch : 1;
}

/* Backward's scratch: states, and the gates of a cell that saves none; then the packed right operands of weight
 * gradients. A thread has as many columns of these as stay in a second-level cache, and its share of the steps: with up
 * to four threads, all that it packs at once. The size is the same for all instruction sets and any number of
 * threads. */
enum { RM_CELL_RIGHT_DEPTH = 128, RM_CELL_RIGHT_COLUMNS = 512, RM_CELL_WIDEST = 16 };
static inline int64_t rm_cell_right_steps(int64_t rows) {
    int64_t four = 4 * (rows < RM_CELL_RIGHT_DEPTH ? rows : RM_CELL_RIGHT_DEPTH);
    return four > RM_BARRIER_THREADS ? four : RM_BARRIER_THREADS; /* one for each */
}
static inline int64_t rm_cell_whole_vectors(int64_t floats) {
    return (floats + RM_CELL_WIDEST - 1) / RM_CELL_WIDEST * RM_CELL_WIDEST;
}
static inline int64_t rm_cell_right_columns(int64_t in, int64_t hidden) {
    int64_t columns = rm_cell_whole_vectors(in > hidden ? in : hidden);
    return columns < RM_CELL_RIGHT_COLUMNS ? columns : RM_CELL_RIGHT_COLUMNS;
}
static inline int64_t rm_cell_right_at(rm_cell cell, int64_t tau, int64_t batch, int64_t hidden) {
    return rm_cell_whole_vectors((2 + (rm_cell_layouts[cell].keeps ? 0 : tau * rm_cell_layouts[cell].columns)) * batch * hidden);
}

/* Scratch of one call, for the fast kernels and (in elements) for the definition. */
static inline uint64_t rm_cell_scratch_bytes(rm_cell cell, bool backward, bool folded, int64_t tau, int64_t batch,
                                             int64_t in, int64_t hidden) {
    const rm_cell_layout *l = &rm_cell_layouts[cell];
    int64_t rows = tau * batch, ahead = rm_cell_steps_ahead(batch) * batch, wide = l->columns * hidden, floats;
    if (backward)
        floats =
            rm_cell_right_at(cell, tau, batch, hidden) + rm_cell_right_steps(rows) * rm_cell_right_columns(in, hidden);
    else /* forward-only: projections; if folded they are read from the table, and cells that save no gates keep them in
            y */
        floats = folded || !l->keeps ? wide : (ahead < rows ? ahead : rows) * wide;
    return (uint64_t)floats * sizeof(float);
}

#endif

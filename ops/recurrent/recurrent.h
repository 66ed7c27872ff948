/* recurrent.h: code shared by lstm, gru, rnn_tanh and rnn_relu: their inputs, shapes, costs, the parts of their definitions that
 * do not depend on the cell, and calls of the fast kernels in ops/cpu. Each cell's equations are in its own file.
 * `real` is the precision of the file that includes this (real.h).
 *
 *   inputs   x (tau,B,C), or tokens (tau,B) I32 when an embedding was folded in
 *            w_ih (G*H,C), or with tokens a table (V,G*H) whose row x[t,b] is the input projection
 *            w_hh (G*H,H), b_ih (G*H) optional, b_hh (G*H) optional
 *            reset (tau,B) optional: where it is above 0, the states before that timestep are zeros. It has no gradient
 *   output   y (tau,B,H), the sequence of h          G: number of gates of the cell, in PyTorch's order
 */
#ifndef RM_RECURRENT_H
#define RM_RECURRENT_H

#include "ops/real.h"

#include "ops/op.h"
#include "ops/recurrent/cell_math.h"
#include "ops/shape.h"
#include "ops/cpu/kernels.h"

enum { RM_X, RM_W_IH, RM_W_HH, RM_B_IH, RM_B_HH, RM_RESET, RM_RECURRENT_INPUTS };

#ifdef RM_REAL_DOUBLE
#define rm_recurrent_of rm_recurrent_of_f64
#define rm_recurrent_infer rm_recurrent_infer_f64
#define rm_recurrent_cost rm_recurrent_cost_f64
#define rm_recurrent_bound rm_recurrent_bound_f64
#define rm_recurrent_cuda_scratch_bytes rm_recurrent_cuda_scratch_bytes_f64
#define rm_recurrent_cuda_fixed_bytes rm_recurrent_cuda_fixed_bytes_f64
#define rm_recurrent_input rm_recurrent_input_f64
#define rm_recurrent_hidden rm_recurrent_hidden_f64
#define rm_recurrent_begins rm_recurrent_begins_f64
#define rm_recurrent_previous rm_recurrent_previous_f64
#define rm_recurrent_define_dh rm_recurrent_define_dh_f64
#define rm_recurrent_define_gradients rm_recurrent_define_gradients_f64
#endif

/* A call's inputs, named. */
typedef struct {
    int64_t tau, batch, in, hidden; /* T, B, C, H of this tile; C is 0 if an embedding is folded in */
    int gates;                      /* G */
    const int32_t *token;           /* (tau,B) or NULL   */
    const real *x;                  /* (tau,B,C) or NULL */
    const real *w_ih, *w_hh;        /* (G*H,C) or the table (V,G*H); (G*H,H) */
    const real *b_ih, *b_hh;        /* (G*H) or NULL */
    const real *reset;              /* (tau,B) or NULL */
} rm_recurrent;
rm_recurrent rm_recurrent_of(const remat_call *call);

/* INVALID: the message names the op and the shapes that do not agree. Every state is (B,H). */
remat_status rm_recurrent_infer(rm_cell cell, const remat_desc *x, remat_desc *y, remat_desc *state);
int64_t rm_recurrent_bound(const remat_desc *x, const void *attr, int input);

/* The cost of one tile: the products, plus `element_flops` for each (t,b,unit); x and weights moved; scratch for
 * both the definition and the fast kernels. The cell adds the bytes of its aux. Rebuild computes the products of
 * forward. */
remat_cost rm_recurrent_cost(rm_cell cell, const remat_desc *x, remat_pass pass, double element_flops);

/* For a CUDA call (recurrent.cuh): its scratch, and the fixed place of one timestep, which all tiles use. */
uint64_t rm_recurrent_cuda_scratch_bytes(rm_cell cell, const remat_desc *x, remat_pass pass, bool aux);
uint64_t rm_recurrent_cuda_fixed_bytes(rm_cell cell, const remat_desc *x);

/* ---- Readable definitions ------------------------------------------------------------------------- */

/* Return element `u` (0..G*H-1) of x[t,b] w_ih^T + b_ih, and of h w_hh^T + b_hh; h (H) may be NULL: zeros. */
real rm_recurrent_input(const rm_recurrent *r, int64_t t, int64_t b, int64_t u);
real rm_recurrent_hidden(const rm_recurrent *r, const real *h, int64_t u);

/* Whether row b is reset at timestep t. */
bool rm_recurrent_begins(const rm_recurrent *r, int64_t t, int64_t b);
/* Row b of the state before timestep t: from `sequence` (tau,B,H) at t-1, or from state_in at t = 0. NULL: zeros. */
const real *rm_recurrent_previous(const rm_recurrent *r, const real *sequence, const remat_tensor *state_in, int64_t t,
                                  int64_t b);

/* The places of the gradients of the gates' pre-activations after the last timestep. Row (t,b) of `dgates` has
 * `width` numbers; gate g of unit j is at x_part[g]*H + j for the product with x, and at h_part[g]*H + j for the
 * product with h. The two differ only for the n gate of a GRU. */
typedef struct {
    const real *dgates; /* (tau,B,width) */
    int64_t width;
    int x_part[4], h_part[4];
} rm_dgates;

/* dh (B,H) += dgates[t] w_hh, except for rows that are reset at t */
void rm_recurrent_define_dh(const rm_recurrent *r, const rm_dgates *d, int64_t t, real *dh);
/* Call it after the last timestep: computes dx, and adds the tile's share of dw_ih, dw_hh, db_ih, db_hh. */
void rm_recurrent_define_gradients(const remat_call *call, const rm_recurrent *r, const rm_dgates *d);

/* ---- Fast kernels (float only) ---------------------------------------------------------------------- */

#ifndef RM_REAL_DOUBLE
uint64_t rm_recurrent_packed_bytes(const rm_cell_kernels *kernels, rm_cell cell, const remat_desc *x);
void rm_recurrent_pack(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call, void *packed);
/* For tests, on this thread: at this barrier thread 0 releases the other threads as if it had waited too long. 0: only
 * if it really has. */
void rm_recurrent_pretend_last(unsigned meeting);
void rm_recurrent_forward(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call);
/* recomputes aux as forward left it; not for plain RNNs, which have none */
void rm_recurrent_rebuild(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call);
void rm_recurrent_backward(const rm_cell_kernels *kernels, rm_cell cell, const remat_call *call);

/* Sets *out to a copy of the cell's descriptor whose CPU kernels round the operands of their products to bf16.
 * False: this processor does not multiply bf16, or the build has no such kernels. */
bool rm_recurrent_in_bf16(rm_cell cell, remat_op *out);
#endif

/* ---- Samples: each cell lists the same ones, for its number of gates ------------------------------- */
#define RM_RECURRENT_SAMPLES(G)                                                                                        \
    {.name = "biases",                                                                                                 \
     .sequence = true,                                                                                                 \
     .x = {RM_SHAPE3(RM_REAL, 5, 3, 4), RM_SHAPE2(RM_REAL, (G)*7, 4), RM_SHAPE2(RM_REAL, (G)*7, 7),                    \
           RM_SHAPE1(RM_REAL, (G)*7), RM_SHAPE1(RM_REAL, (G)*7), RM_ABSENT}},                                          \
        {.name = "no biases",                                                                                          \
         .sequence = true,                                                                                             \
         .x = {RM_SHAPE3(RM_REAL, 3, 2, 5), RM_SHAPE2(RM_REAL, (G)*3, 5), RM_SHAPE2(RM_REAL, (G)*3, 3), RM_ABSENT,     \
               RM_ABSENT, RM_ABSENT}},                                                                                 \
        {.name = "folded embedding",                                                                                   \
         .sequence = true,                                                                                             \
         .x = {RM_SHAPE2(REMAT_I32, 4, 3), RM_SHAPE2(RM_REAL, 5, (G)*6), RM_SHAPE2(RM_REAL, (G)*6, 6), RM_ABSENT,      \
               RM_SHAPE1(RM_REAL, (G)*6), RM_SHAPE2(RM_REAL, 4, 3)}},                                                  \
        {.name = "resets",                                                                                             \
         .sequence = true,                                                                                             \
         .x = {RM_SHAPE3(RM_REAL, 6, 5, 4), RM_SHAPE2(RM_REAL, (G)*7, 4), RM_SHAPE2(RM_REAL, (G)*7, 7),                \
               RM_SHAPE1(RM_REAL, (G)*7), RM_SHAPE1(RM_REAL, (G)*7), RM_SHAPE2(RM_REAL, 6, 5)}},                       \
        {.name = "several blocks",                                                                                     \
         .sequence = true,                                                                                             \
         .x = {RM_SHAPE3(RM_REAL, 3, 5, 2), RM_SHAPE2(RM_REAL, (G)*18, 2), RM_SHAPE2(RM_REAL, (G)*18, 18),             \
               RM_SHAPE1(RM_REAL, (G)*18), RM_SHAPE1(RM_REAL, (G)*18), RM_ABSENT}},                                    \
    {                                                                                                                  \
        .name = "one of everything", .sequence = true, .x = {                                                          \
            RM_SHAPE3(RM_REAL, 1, 1, 1),                                                                               \
            RM_SHAPE2(RM_REAL, (G), 1),                                                                                \
            RM_SHAPE2(RM_REAL, (G), 1),                                                                                \
            RM_SHAPE1(RM_REAL, (G)),                                                                                   \
            RM_ABSENT,                                                                                                 \
            RM_ABSENT                                                                                                  \
        }                                                                                                              \
    }

/* ---- What the descriptors share --------------------------------------------------------------- */

/* Defines the functions of a descriptor that only add the cell's name, given without quotes. A cell without aux has no
 * rebuild. */
#define RM_RECURRENT_SHAPES(op)                                                                                        \
    static const remat_sample samples[] = {RM_RECURRENT_SAMPLES(GATES)};                                               \
    static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {               \
        (void)attr;                                                                                                    \
        return rm_recurrent_infer(RM_CELL_##op, x, y, state);                                                          \
    }
#ifdef RM_REAL_DOUBLE
#define RM_RECURRENT_FUNCTIONS(op) RM_RECURRENT_SHAPES(op)
#else
#define RM_RECURRENT_FUNCTIONS(op)                                                                                     \
    RM_RECURRENT_SHAPES(op)                                                                                            \
    static uint64_t packed_bytes(const remat_desc *x, const void *attr, int threads) {                                 \
        (void)attr, (void)threads;                                                                                     \
        return rm_recurrent_packed_bytes(rm_cell_kernels_get(), RM_CELL_##op, x);                                      \
    }                                                                                                                  \
    static uint64_t cuda_scratch_bytes(const remat_desc *x, const void *attr, remat_pass pass, bool aux,               \
                                       int threads) {                                                                  \
        (void)attr, (void)threads;                                                                                     \
        return rm_recurrent_cuda_scratch_bytes(RM_CELL_##op, x, pass, aux);                                            \
    }                                                                                                                  \
    static uint64_t cuda_fixed_bytes(const remat_desc *x, const void *attr) {                                          \
        (void)attr;                                                                                                    \
        return rm_recurrent_cuda_fixed_bytes(RM_CELL_##op, x);                                                         \
    }                                                                                                                  \
    static void pack(const remat_call *call, void *packed) {                                                           \
        rm_recurrent_pack(rm_cell_kernels_get(), RM_CELL_##op, call, packed);                                          \
    }                                                                                                                  \
    static void forward(const remat_call *call) { rm_recurrent_forward(rm_cell_kernels_get(), RM_CELL_##op, call); }   \
    static void backward(const remat_call *call) { rm_recurrent_backward(rm_cell_kernels_get(), RM_CELL_##op, call); }
#endif

/* The members that are the same in all descriptors. `op` is the op's name, without quotes. */
#define RM_RECURRENT_MEMBERS(op)                                                                                       \
    .name = #op, .n_in = RM_RECURRENT_INPUTS, .n_state = STATES,                                                       \
    .optional = 1u << RM_B_IH | 1u << RM_B_HH | 1u << RM_RESET, .resets = 1u << RM_RESET,                              \
    .shared = 1u << RM_W_IH | 1u << RM_W_HH | 1u << RM_B_IH | 1u << RM_B_HH, .time = REMAT_TIME_RECURRENT,             \
    .saves = {.in = 1u << RM_X | 1u << RM_W_IH | 1u << RM_W_HH | 1u << RM_RESET, .out = true, .state = true},          \
    .infer = infer, .cost = cost, .bound = rm_recurrent_bound, .define_forward = define_forward,                       \
    .define_backward = define_backward, .on[REMAT_ON_CPU].forward = RM_FAST(forward, define_forward),                  \
    .on[REMAT_ON_CPU].backward = RM_FAST(backward, define_backward),                                                   \
    .on[REMAT_ON_CPU].packed_bytes = RM_FAST(packed_bytes, NULL), .on[REMAT_ON_CPU].pack = RM_FAST(pack, NULL),        \
    .on[REMAT_ON_CUDA].forward = RM_CUDA(op, forward), .on[REMAT_ON_CUDA].backward = RM_CUDA(op, backward),            \
    .on[REMAT_ON_CUDA].scratch_bytes = RM_FAST(cuda_scratch_bytes, NULL),                                              \
    .on[REMAT_ON_CUDA].fixed_bytes = RM_FAST(cuda_fixed_bytes, NULL), .samples = samples,                              \
    .n_samples = sizeof samples / sizeof *samples

#endif

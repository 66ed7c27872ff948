/* min_gru.c: the op `min_gru`. Its input is the result of a linear layer; minimal.h has the code that it shares with
 * min_lstm.
 *
 *   h' = (1 - z) h + z g(candidate),  z = sigmoid(gate)          (minGRU; g is in minimal_math.h)
 */
#include "ops/recurrent/minimal.h"

enum { PARTS = 2 };

static rm_min_gates gates_at(const real *x, int64_t hidden, int64_t j) { return rm_min_gru_gates(x[j], x[hidden + j]); }

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    return rm_min_infer("min_gru", PARTS, "candidate, gate", x, y, state);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_min_cost(x, y, pass, 40);
}

static void define_forward(const remat_call *call) { rm_min_define_forward(call, PARTS, gates_at); }
static void define_backward(const remat_call *call) { rm_min_define_backward(call, PARTS, gates_at); }

#ifndef RM_REAL_DOUBLE
static void forward(const remat_call *call) { rm_min_forward(RM_MIN_GRU, call); }
static void backward(const remat_call *call) { rm_min_backward(RM_MIN_GRU, call); }
#endif

static const remat_sample samples[] = {RM_MIN_SAMPLES(PARTS)};

const remat_op RM_OP(min_gru) = {
    .struct_bytes = sizeof(remat_op),
    .name = "min_gru",
    .doc = "y (T,B,H) = h of a minGRU over x (T,B,2H), candidate and gate; h = (1 - z) h + z g(candidate)",
    .n_in = RM_MIN_INPUTS,
    .n_state = 1,
    .optional = 1u << RM_MIN_RESET,
    .resets = 1u << RM_MIN_RESET,
    .time = REMAT_TIME_RECURRENT,
    .saves = {.in = 1u << RM_MIN_X | 1u << RM_MIN_RESET, .out = true, .state = true},
    .infer = infer,
    .cost = cost,
    .define_forward = define_forward,
    .define_backward = define_backward,
    .on = {{.forward = RM_FAST(forward, define_forward), .backward = RM_FAST(backward, define_backward)},
           RM_CUDA_KERNELS(min_gru)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

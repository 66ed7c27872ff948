/* min_lstm.c: the op `min_lstm`. Its input is the result of a linear layer; minimal.h has the code that it shares with
 * min_gru.
 *
 *   h' = f' h + i' g(candidate),  f' = f / (f + i),  i' = i / (f + i),  f and i sigmoids    (minLSTM; g: minimal_math.h)
 */
#include "ops/recurrent/minimal.h"

enum { PARTS = 3 };

static rm_min_gates gates_at(const real *x, int64_t hidden, int64_t j) {
    return rm_min_lstm_gates(x[j], x[hidden + j], x[2 * hidden + j]);
}

static remat_status infer(const remat_desc *x, const void *attr, remat_desc *y, remat_desc *state) {
    (void)attr;
    return rm_min_infer("min_lstm", PARTS, "candidate, f, i", x, y, state);
}

static void cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)attr;
    *out = rm_min_cost(x, y, pass, 80);
}

static void define_forward(const remat_call *call) { rm_min_define_forward(call, PARTS, gates_at); }
static void define_backward(const remat_call *call) { rm_min_define_backward(call, PARTS, gates_at); }

#ifndef RM_REAL_DOUBLE
static void forward(const remat_call *call) { rm_min_forward(RM_MIN_LSTM, call); }
static void backward(const remat_call *call) { rm_min_backward(RM_MIN_LSTM, call); }
#endif

static const remat_sample samples[] = {RM_MIN_SAMPLES(PARTS)};

const remat_op RM_OP(min_lstm) = {
    .struct_bytes = sizeof(remat_op),
    .name = "min_lstm",
    .doc = "y (T,B,H) = h of a minLSTM over x (T,B,3H), candidate, f and i; h = (f h + i g(candidate)) / (f + i)",
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
           RM_CUDA_KERNELS(min_lstm)},
    .samples = samples,
    .n_samples = sizeof samples / sizeof *samples,
};

/* bf16.c: descriptors of lstm, gru and rnn_tanh whose products on the CPU round their operands to bf16 (cell/product.h): x, h, weights and
 * the gates' gradients. Sums, gates, states and all that is stored stay floats. Compiled once, for float. Main entry:
 * rm_recurrent_in_bf16. */
#include "ops/recurrent/recurrent.h"

static const rm_cell_kernels *kernels(void) { return rm_cell_kernels_list(RM_CELL_BF16); }

#define CELL(name, cell)                                                                                               \
    static uint64_t packed_bytes_##name(const remat_desc *x, const void *attr, int threads) {                          \
        (void)attr, (void)threads;                                                                                     \
        return rm_recurrent_packed_bytes(kernels(), cell, x);                                                          \
    }                                                                                                                  \
    static void pack_##name(const remat_call *call, void *packed) {                                                    \
        rm_recurrent_pack(kernels(), cell, call, packed);                                                              \
    }                                                                                                                  \
    static void forward_##name(const remat_call *call) { rm_recurrent_forward(kernels(), cell, call); }                \
    static void rebuild_##name(const remat_call *call) { rm_recurrent_rebuild(kernels(), cell, call); }                \
    static void backward_##name(const remat_call *call) { rm_recurrent_backward(kernels(), cell, call); }              \
    static const remat_op_device on_##name = {.packed_bytes = packed_bytes_##name,                                     \
                                              .pack = pack_##name,                                                     \
                                              .forward = forward_##name,                                               \
                                              .rebuild = rebuild_##name,                                               \
                                              .backward = backward_##name};
CELL(lstm, RM_CELL_LSTM)
CELL(gru, RM_CELL_GRU)
CELL(rnn_tanh, RM_CELL_RNN_TANH)
#undef CELL

static const struct {
    const char *name;
    const remat_op_device *on;
} cells[RM_CELLS] = {[RM_CELL_LSTM] = {"lstm", &on_lstm},
                     [RM_CELL_GRU] = {"gru", &on_gru},
                     [RM_CELL_RNN_TANH] = {"rnn_tanh", &on_rnn_tanh}};

bool rm_recurrent_in_bf16(rm_cell cell, remat_op *out) {
    const remat_op_device *on = cells[cell].on;
    if (!kernels()) return false;
    *out = *rm_op_find(cells[cell].name);
    remat_op_device *cpu = &out->on[REMAT_ON_CPU];
    if (cpu->rebuild) cpu->rebuild = on->rebuild;
    cpu->packed_bytes = on->packed_bytes, cpu->pack = on->pack;
    cpu->forward = on->forward, cpu->backward = on->backward;
    return true;
}

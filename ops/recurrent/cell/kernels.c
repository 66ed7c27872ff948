/* cell/kernels.c: the table of one instruction set's kernels; the files beside this one have the kernels. What the cells
 * compute is defined in ops/recurrent/lstm.c, gru.c and rnn_tanh.c; these files differ from them in speed and in rounding only. */
#include "ops/recurrent/cell/kernels.h"

#include <stddef.h>

#include "ops/recurrent/cell/isa.h"
#include "ops/math/vecmath.h"

#define QUOTE2(x) #x
#define QUOTE(x) QUOTE2(x)

extern const rm_cell_kernels RM_JOIN(rm_cell_kernels_, RM_ISA);
const rm_cell_kernels RM_JOIN(rm_cell_kernels_, RM_ISA) = {
    .isa = QUOTE(RM_ISA),
    .lanes = RM_LANES,
    .packed_bytes = rm_cell_packed_bytes,
    .pack = rm_cell_pack,
    .forward = {rm_cell_forward_lstm, rm_cell_forward_gru, rm_cell_forward_rnn_tanh},
    .rebuild = {rm_cell_rebuild_lstm, rm_cell_rebuild_gru, NULL}, /* a plain RNN keeps no gates */
    .backward = {rm_cell_backward_lstm, rm_cell_backward_gru, rm_cell_backward_rnn_tanh},
    .min_forward = {rm_cell_forward_min_gru, rm_cell_forward_min_lstm},
    .min_backward = {rm_cell_backward_min_gru, rm_cell_backward_min_lstm},
    .activation = rm_activations,
    .projected = &rm_cell_projected,
    .convolution = &rm_cell_convolution,
    .small_product = rm_cell_small_product,
};

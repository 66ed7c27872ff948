/* cpu/kernels.c: the table of one instruction set's kernels, which are in the other files of this folder. ops/recurrent
 * has the definitions of the cells; the kernels differ from them only in speed and rounding. */
#include "ops/cpu/view.h"

#define QUOTE2(x) #x
#define QUOTE(x) QUOTE2(x)

const cell_row *const rm_cell_rows[RM_CELLS] = {
#define CELL(op, ...) &CELL_ROW(op),
#include "ops/recurrent/cells.def"
#undef CELL
};

extern const rm_cell_kernels RM_JOIN(rm_cell_kernels_, RM_ISA);
const rm_cell_kernels RM_JOIN(rm_cell_kernels_, RM_ISA) = {
    .isa = QUOTE(RM_ISA),
    .lanes = RM_LANES,
    .packed_bytes = rm_cell_packed_bytes,
    .pack = rm_cell_pack,
    .forward = rm_cell_forward,
    .rebuild = rm_cell_rebuild,
    .backward = rm_cell_backward,
    .minimal = rm_cell_minimal,
    .selective = &rm_cell_selective,
    .slstm = &rm_cell_slstm,
    .m2rnn = &rm_cell_m2rnn,
    .matrix = rm_cell_matrix,
    .activation = rm_activations,
    .projected = &rm_cell_projected,
    .convolution = &rm_cell_convolution,
    .small_product = rm_cell_small_product,
};

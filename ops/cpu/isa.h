/* cpu/isa.h: names. The .c files of this folder are compiled once per instruction set (RM_ISA), so functions shared
 * between them have names with the set's suffix: rm_cell_pack is rm_cell_pack_avx512 for AVX-512. kernels.c lists them
 * in the set's table, the only interface to the rest of the library. */
#ifndef RM_CELL_ISA_H
#define RM_CELL_ISA_H

#include "ops/cpu/kernels.h"

#define RM_JOIN2(a, b) a##b
#define RM_JOIN(a, b) RM_JOIN2(a, b)

/* Files without rounded products are compiled for fp32 only; bf16 uses the same functions. */
#ifdef RM_BF16
#define RM_FP32_ISA avx512
#else
#define RM_FP32_ISA RM_ISA
#endif

#define rm_cell_packed_bytes RM_JOIN(rm_cell_packed_bytes_, RM_ISA)
#define rm_cell_pack RM_JOIN(rm_cell_pack_, RM_ISA)
#define rm_cell_forward RM_JOIN(rm_cell_forward_, RM_ISA)
#define rm_cell_rebuild RM_JOIN(rm_cell_rebuild_, RM_ISA)
#define rm_cell_backward RM_JOIN(rm_cell_backward_, RM_ISA)
#define rm_cell_minimal RM_JOIN(rm_cell_minimal_, RM_FP32_ISA)
#define rm_cell_selective RM_JOIN(rm_cell_selective_, RM_FP32_ISA)
#define rm_cell_m2rnn RM_JOIN(rm_cell_m2rnn_, RM_FP32_ISA)
#define rm_cell_slstm RM_JOIN(rm_cell_slstm_, RM_FP32_ISA)
#define rm_cell_matrix RM_JOIN(rm_cell_matrix_, RM_FP32_ISA)
#define rm_cell_gradients RM_JOIN(rm_cell_gradients_, RM_ISA)
#define rm_activations RM_JOIN(rm_activations_, RM_FP32_ISA)
#define rm_cell_projected RM_JOIN(rm_cell_projected_, RM_FP32_ISA)
#define rm_cell_convolution RM_JOIN(rm_cell_convolution_, RM_FP32_ISA)
#define rm_cell_small_product RM_JOIN(rm_cell_small_product_, RM_FP32_ISA)
#define rm_multiply RM_JOIN(rm_multiply_, RM_ISA)

uint64_t rm_cell_packed_bytes(rm_cell cell, bool folded, int64_t in, int64_t hidden);
void rm_cell_pack(rm_cell cell, bool folded, int64_t in, int64_t hidden, const float *w_ih, const float *w_hh,
                  const float *b_ih, const float *b_hh, float *packed, int thread, int threads);
rm_cell_kernel rm_cell_forward, rm_cell_rebuild, rm_cell_backward;
extern const rm_min_rows rm_cell_minimal[];
extern const rm_selective_rows rm_cell_selective;
extern const rm_m2rnn_rows rm_cell_m2rnn;
extern const rm_slstm_rows rm_cell_slstm;
extern const rm_matrix_rows rm_cell_matrix[];
extern const rm_activation_loops rm_activations[];
extern const rm_projected_rows rm_cell_projected;
extern const rm_convolution rm_cell_convolution;
void rm_cell_small_product(const rm_small_product *p);

#endif

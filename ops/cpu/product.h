/* cpu/product.h: the one matrix product of the recurrent cells: sums of a few rows by a few vectors, held in registers
 * while k advances. Projections, the recurrence, its gradient, weight gradients and dx all use rm_multiply.
 *
 *   C (rows, width vectors) += A (rows, depth) W (depth, width vectors)
 *
 * Every element of C is a sum of chains of multiply-adds over ascending k, one for each DEPTH_BLOCK of k:
 *     s = fma(a[0], w[0], 0); s = fma(a[1], w[1], s); ...; c = c + s
 * for any number of rows and any division of the loops below. So the bits of an element depend only on its own operands:
 * not on the rest of the batch, the threads, or the tile. This makes it possible to rebuild gates for many timesteps at
 * once, bit for bit. One long chain would lose digits: gradients of the input were 2 to 3 times as far from double.
 *
 * W is packed: vector v of step k at w + k*w_step + v*RM_LANES.
 * A is read in place: element (r,k) at a + r*a_row + k*a_step, where one of the two strides is 1.
 *
 * In bf16 (RM_BF16) operands are rounded to 8 significant bits, to nearest, ties to even; sums are floats. A step then
 * is two k, side by side in the 32 bits of a lane, with zero past an odd end; VDPBF16PS adds both products to a sum. W
 * is given in such steps, and so is A along its columns (a_row 1); A along its rows is given as floats, which
 * rm_multiply rounds. Chains consist of pairs from k = 0 on, again for any number of rows and any division.
 */
#ifndef RM_CELL_PRODUCT_H
#define RM_CELL_PRODUCT_H

#include <stdint.h>

#include "ops/cpu/isa.h"
#include "ops/math/vecmath.h"

enum { WIDTH_MAX = 4 }; /* vectors: the gates of an LSTM */
#if RM_LANES == 16
enum { ROWS_MAX = 6 }; /* 6*4 sums, 4 weights, a broadcast: 29 of 32 registers */
#elif RM_LANES == 8
enum { ROWS_MAX = 3 }; /* 12 + 3 of 16 */
#else
enum { ROWS_MAX = 2 };
#endif
#ifdef RM_BF16
enum { STEP = 2 };
#else
enum { STEP = 1 };
#endif
enum { DEPTH_STEPS = 128 }; /* a block of W, 128 * 4 vectors, stays in the first-level cache for all rows */
enum { DEPTH_BLOCK = DEPTH_STEPS * STEP };

static inline int64_t steps_of(int64_t depth) { return (depth + STEP - 1) / STEP; }

/* Functions that make steps of packed operands. step_of: from rows k and k+1, lane by lane (past the end the second is
 * zeros); step_at: from one row of `depth` numbers. In fp32 a step is one k, and the second row is not read. */
#ifdef RM_BF16
RM_INLINE rm_vec step_of(rm_vec first, rm_vec second) {
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)first));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)second));
    return (rm_vec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}
RM_INLINE float step_at(const float *row, int64_t step, int64_t depth) {
    const float *k = row + 2 * step;
    return _mm_cvtss_f32((__m128)_mm_cvtneps_pbh(_mm_set_ps(0, 0, 2 * step + 1 < depth ? k[1] : 0, k[0])));
}
#else
RM_INLINE rm_vec step_of(rm_vec first, rm_vec second) {
    (void)second;
    return first;
}
RM_INLINE float step_at(const float *row, int64_t step, int64_t depth) {
    (void)depth;
    return row[step];
}
#endif

typedef struct {
    const float *a;
    int64_t a_row, a_step;
    const float *w;
    int64_t w_step;
    float *c;
    int64_t c_row, c_vector; /* strides of C, in floats */
    /* Weights that are not in the second-level cache are prefetched this many floats ahead in w; 0: no prefetch. Only
     * for A along its rows. */
    int64_t ahead;
} rm_product;

/* width <= WIDTH_MAX vectors; rows >= 1; for A along its columns depth <= DEPTH_BLOCK, the most that callers pack at
 * once. */
void rm_multiply(rm_product p, int64_t rows, int width, int64_t depth);

#endif

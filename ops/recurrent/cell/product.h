/* cell/product.h: the one matrix product of the recurrent cells: a few rows by a few vectors, held in registers while k
 * runs. Projections, the recurrence, its gradient, weight gradients and dx all go through rm_multiply.
 *
 *   C (rows, width vectors) += A (rows, depth) W (depth, width vectors)
 *
 * Every element of C is one chain of multiply-adds over ascending k, starting from what C held:
 *     c = fma(a[0], w[0], c); c = fma(a[1], w[1], c); ...
 * whatever the number of rows, and wherever the loops below are cut (storing and loading a float loses nothing). So an
 * element's bits depend on its own operands only: not on the batch beside it, the threads, or the tile. This is what
 * lets gates be rebuilt for many timesteps at once, bit for bit.
 *
 * W is packed: vector v of step k at w + k*w_step + v*RM_LANES.
 * A is read in place: element (r,k) at a + r*a_row + k*a_step, where one of the two strides is 1.
 */
#ifndef RM_CELL_PRODUCT_H
#define RM_CELL_PRODUCT_H

#include <stdint.h>

#include "ops/recurrent/cell/isa.h"
#include "ops/math/vecmath.h"

enum { WIDTH_MAX = 4 }; /* vectors: the gates of an LSTM */
#if RM_LANES == 16
enum { ROWS_MAX = 6 }; /* 6*4 sums, 4 weights, a broadcast: 29 of 32 registers */
#elif RM_LANES == 8
enum { ROWS_MAX = 3 }; /* 12 + 3 of 16 */
#else
enum { ROWS_MAX = 2 };
#endif
enum { DEPTH_BLOCK = 128 }; /* a block of W, 128 * 4 vectors, stays in the first-level cache while rows go by */

typedef struct {
    const float *a;
    int64_t a_row, a_step;
    const float *w;
    int64_t w_step;
    float *c;
    int64_t c_row, c_vector; /* strides of C, in floats */
    /* Weights that the second-level cache does not hold are fetched so many floats ahead, which lie one behind the other in w; 0: they
     * are there. Of A along its rows. */
    int64_t ahead;
} rm_product;

/* width <= WIDTH_MAX vectors; rows >= 1. */
void rm_multiply(rm_product p, int64_t rows, int width, int64_t depth);

#endif

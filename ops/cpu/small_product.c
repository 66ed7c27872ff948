/* cpu/small_product.c: products that are too small for the packing of a library, or for which the library would
 * allocate (ops/math/gemm.c): two vectors of columns at a time by rm_multiply; B is read in place if its layout allows
 * it. Every element of C is beta c plus the sums of rm_multiply, independent of the other elements. */
#include "ops/cpu/product.h"

enum { PANEL = 2 * RM_LANES, STRIP = 64 /* rows that go through a separate buffer at a time */ };

static void scale_rows(const rm_small_product *p) {
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) p->c[i * p->ldc + j] = p->beta == 0 ? 0 : p->beta * p->c[i * p->ldc + j];
}

/* Row `from` of a panel of `columns` columns, padded with zeros; store_row is the reverse. */
static void load_row(const float *from, int64_t columns, float *to) {
    for (int v = 0; v < PANEL; v += RM_LANES) {
        int64_t n = columns - v < RM_LANES ? columns - v : RM_LANES;
        rm_store(to + v, n > 0 ? rm_load_n(from + v, (int)n) : rm_splat(0));
    }
}
static void store_row(const float *from, int64_t columns, float *to) {
    for (int v = 0; v < columns; v += RM_LANES)
        rm_store_n(to + v, rm_load(from + v), (int)(columns - v < RM_LANES ? columns - v : RM_LANES));
}

/* packed (depth, PANEL) = alpha B's rows k.., columns j.. */
static void pack(const rm_small_product *p, int64_t j, int64_t columns, int64_t k, int64_t depth, float *packed) {
    if (p->b_transposed) rm_cell_convolution.side_by_side(p->b + j * p->ldb + k, p->ldb, depth, (int)columns, packed);
    for (int64_t r = 0; r < depth && !p->b_transposed; r++)
        load_row(p->b + (k + r) * p->ldb + j, columns, packed + r * PANEL);
    for (int64_t i = 0; i < depth * PANEL && p->alpha != 1; i += RM_LANES)
        rm_store(packed + i, rm_load(packed + i) * rm_splat(p->alpha));
}

/* C's columns j.. += A's columns k.. times w. */
static void multiply_panel(const rm_small_product *p, int64_t j, int64_t columns, int64_t k, int64_t depth,
                           const float *w, int64_t w_step) {
    int width = (int)((columns + RM_LANES - 1) / RM_LANES);
    rm_product q = {
        .a_row = p->a_transposed ? 1 : p->lda, .a_step = p->a_transposed ? p->lda : 1, .w = w, .w_step = w_step};
    q.a = p->a + k * q.a_step, q.c = p->c + j, q.c_row = p->ldc, q.c_vector = RM_LANES;
    if (columns == width * RM_LANES) {
        rm_multiply(q, p->m, width, depth);
        return;
    }
    float room[STRIP * PANEL];
    for (int64_t i = 0; i < p->m; i += STRIP) {
        int64_t rows = p->m - i < STRIP ? p->m - i : STRIP;
        float *c = p->c + i * p->ldc + j;
        rm_product strip = q;
        strip.a = q.a + i * q.a_row, strip.c = room, strip.c_row = PANEL;
        for (int64_t r = 0; r < rows; r++) load_row(c + r * p->ldc, columns, room + r * PANEL);
        rm_multiply(strip, rows, width, depth);
        for (int64_t r = 0; r < rows; r++) store_row(room + r * PANEL, columns, c + r * p->ldc);
    }
}

void rm_cell_small_product(const rm_small_product *p) {
    float packed[DEPTH_BLOCK * PANEL];
    scale_rows(p);
    for (int64_t j = 0; j < p->n; j += PANEL) {
        int64_t columns = p->n - j < PANEL ? p->n - j : PANEL;
        bool in_place = !p->b_transposed && p->alpha == 1 && columns % RM_LANES == 0;
        for (int64_t k = 0; k < p->k; k += DEPTH_BLOCK) {
            int64_t depth = p->k - k < DEPTH_BLOCK ? p->k - k : DEPTH_BLOCK;
            if (!in_place) pack(p, j, columns, k, depth, packed);
            multiply_panel(p, j, columns, k, depth, in_place ? p->b + k * p->ldb + j : packed,
                           in_place ? p->ldb : PANEL);
        }
    }
}

/* cpu/product.c: rm_multiply (product.h): a register tile for every shape, and the loops that divide rows and depth
 * into tiles. Compiled once per instruction set. */
#include "ops/cpu/product.h"

#include <stdbool.h>

/* A loop that must be unrolled, so that the arrays it indexes become registers. */
#ifdef __clang__
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#define FOUR_TOGETHER(k, n) _Pragma("clang loop unroll_count(4)") for (int64_t k = 0; k < (n); k++)
#else
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)
#define FOUR_TOGETHER(k, n) _Pragma("GCC unroll 4") for (int64_t k = 0; k < (n); k++)
#endif

/* c + a w; in bf16 c + a[0] w[0] + a[1] w[1]. */
RM_INLINE rm_vec multiply_add(rm_vec a, rm_vec w, rm_vec c) {
#ifdef RM_BF16
    return (rm_vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)w);
#else
    return rm_fma(a, w, c);
#endif
}

/* Prefetches the weights of a step. */
RM_INLINE void fetch(int width, const float *w) {
    for (int i = 0; i < width * RM_LANES; i += 16) __builtin_prefetch(w + i);
}

/* One step. */
RM_INLINE void multiply_step(int rows, int width, const float *a, int64_t a_row, const float *w,
                             rm_vec (*sum)[WIDTH_MAX]) {
    rm_vec weight[WIDTH_MAX];
    EACH(v, width) { weight[v] = rm_load(w + v * RM_LANES); }
    EACH(r, rows) {
        rm_vec left = rm_splat(a[r * a_row]);
        EACH(v, width) { sum[r][v] = multiply_add(left, weight[v], sum[r][v]); }
    }
}

/* With few sums there are few multiply-adds to hide the loop overhead, so these process four steps at a time; registers
 * suffice. */
RM_INLINE void multiply_tile(int rows, int width, const rm_product *p, int64_t a_row, int64_t a_step, int64_t steps,
                             bool streamed) {
    rm_vec sum[ROWS_MAX][WIDTH_MAX];
    const float *a = p->a, *w = p->w;
    const int64_t w_step = p->w_step, ahead = p->ahead;
    EACH(r, rows) {
        EACH(v, width) { sum[r][v] = rm_splat(0); }
    }
    if (rows < ROWS_MAX) {
        FOUR_TOGETHER(k, steps) {
            if (streamed) fetch(width, w + k * w_step + ahead);
            multiply_step(rows, width, a + k * a_step, a_row, w + k * w_step, sum);
        }
    } else {
        for (int64_t k = 0; k < steps; k++) {
            if (streamed) fetch(width, w + k * w_step + ahead);
            multiply_step(rows, width, a + k * a_step, a_row, w + k * w_step, sum);
        }
    }
    EACH(r, rows) {
        EACH(v, width) {
            float *c = p->c + r * p->c_row + v * p->c_vector;
            rm_store(c, rm_load(c) + sum[r][v]);
        }
    }
}

/* The register tile of each shape, for A along its rows (a_step 1), with weights near or streamed, and along its
 * columns (a_row 1). */
typedef void tile_kernel(const rm_product *p, int64_t steps);
#define TILE(rows, width)                                                                                              \
    static void tile_rows_##rows##_##width(const rm_product *p, int64_t steps) {                                       \
        multiply_tile(rows, width, p, p->a_row, 1, steps, false);                                                      \
    }                                                                                                                  \
    static void tile_streamed_##rows##_##width(const rm_product *p, int64_t steps) {                                   \
        multiply_tile(rows, width, p, p->a_row, 1, steps, true);                                                       \
    }                                                                                                                  \
    static void tile_columns_##rows##_##width(const rm_product *p, int64_t steps) {                                    \
        multiply_tile(rows, width, p, 1, p->a_step, steps, false);                                                     \
    }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3) TILE(rows, 4)
#define NAMES(kind, rows)                                                                                              \
    { tile_##kind##_##rows##_1, tile_##kind##_##rows##_2, tile_##kind##_##rows##_3, tile_##kind##_##rows##_4 }

TILES(1)
TILES(2)
#if RM_LANES >= 8
TILES(3)
#endif
#if RM_LANES == 16
TILES(4)
TILES(5)
TILES(6)
#endif

enum { NEAR, STREAMED, COLUMNS, KINDS };
#if RM_LANES == 16
#define ALL(kind)                                                                                                      \
    { NAMES(kind, 1), NAMES(kind, 2), NAMES(kind, 3), NAMES(kind, 4), NAMES(kind, 5), NAMES(kind, 6) }
#elif RM_LANES == 8
#define ALL(kind)                                                                                                      \
    { NAMES(kind, 1), NAMES(kind, 2), NAMES(kind, 3) }
#else
#define ALL(kind)                                                                                                      \
    { NAMES(kind, 1), NAMES(kind, 2) }
#endif
static tile_kernel *const tiles[KINDS][ROWS_MAX][WIDTH_MAX] = {
    [NEAR] = ALL(rows), [STREAMED] = ALL(streamed), [COLUMNS] = ALL(columns)};

/* Rows are divided among tiles as evenly as possible: 16 is 6+5+5, not 6+6+4. */
static void multiply_rows(rm_product p, int64_t rows, int width, int64_t steps, int kind) {
    int64_t n_tiles = (rows + ROWS_MAX - 1) / ROWS_MAX, small = rows / n_tiles, larger = rows % n_tiles;
    for (int64_t i = 0; i < n_tiles; i++) {
        int64_t count = small + (i < larger);
        tiles[kind][count - 1][width - 1](&p, steps);
        p.a += count * p.a_row;
        p.c += count * p.c_row;
    }
}

#ifdef RM_BF16
/* A buffer for some rows of A, in steps. The distance of rows is not a power of two, so that they do not share a few
 * sets of the cache. */
enum { ROUNDED_ROWS = 8 * ROWS_MAX, ROUNDED_ROW = DEPTH_STEPS + RM_LANES };

static void round_row(const float *a, int64_t depth, float *to) {
    for (int64_t k = 0; k < depth; k += 2 * RM_LANES) {
        int64_t left = depth - k, low = left < RM_LANES ? left : RM_LANES;
        int64_t high = left < 2 * RM_LANES ? left - low : RM_LANES;
        rm_vec first = rm_load_n(a + k, (int)low), second = rm_load_n(a + k + low, (int)high);
        rm_store(to + k / 2, (rm_vec)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
    }
}

/* Not inlined, so that products without rounding do not use its stack. */
static __attribute__((noinline)) void multiply_rounded(rm_product p, int64_t rows, int width, int64_t depth) {
    float room[ROUNDED_ROWS][ROUNDED_ROW] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows; r += ROUNDED_ROWS) {
        int64_t count = rows - r < ROUNDED_ROWS ? rows - r : ROUNDED_ROWS;
        rm_product rounded = p;
        for (int64_t i = 0; i < count; i++) round_row(p.a + (r + i) * p.a_row, depth, room[i]);
        rounded.a = room[0], rounded.a_row = ROUNDED_ROW, rounded.c += r * p.c_row;
        multiply_rows(rounded, count, width, steps_of(depth), p.ahead ? STREAMED : NEAR);
    }
}

static void multiply_block(rm_product p, int64_t rows, int width, int64_t depth) {
    if (p.a_step != 1)
        multiply_rows(p, rows, width, steps_of(depth), COLUMNS);
    else
        multiply_rounded(p, rows, width, depth);
}
#else
static void multiply_block(rm_product p, int64_t rows, int width, int64_t depth) {
    multiply_rows(p, rows, width, depth, p.a_step != 1 ? COLUMNS : p.ahead ? STREAMED : NEAR);
}
#endif

void rm_multiply(rm_product p, int64_t rows, int width, int64_t depth) {
    for (int64_t k = 0; k < depth; k += DEPTH_BLOCK) {
        multiply_block(p, rows, width, depth - k < DEPTH_BLOCK ? depth - k : DEPTH_BLOCK);
        p.a += DEPTH_BLOCK;
        p.w += DEPTH_STEPS * p.w_step;
    }
}

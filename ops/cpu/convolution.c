/* cpu/convolution.c: the two kinds of sums of a convolution, for a few pixels or weights by two vectors of channels,
 * held in registers. ops/layers/convolve.c divides convolutions into these. Every sum is one chain of multiply-adds in
 * the order of its loops, independent of the other sums. */
#include <stdbool.h>
#include <stddef.h>

#include "ops/math/vecmath.h"
#include "ops/cpu/isa.h"

enum { WIDE = 2 * RM_LANES };
#if RM_LANES == 16
enum { MOST = 12 }; /* 12*2 sums, 2 vectors of weights, a broadcast: 27 of 32 registers */
#else
enum { MOST = 6 }; /* 12 + 3 of 16 */
#endif

/* ---- Exchanging pixels and lanes --------------------------------------------------------------------------------- */

#if RM_LANES == 16
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif RM_LANES == 8
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Element j of vector i becomes element i of vector j: after log2(lanes) rounds, each a perfect shuffle of all
 * elements. */
RM_INLINE void transpose(rm_vec v[RM_LANES]) {
    for (int round = 1; round < RM_LANES; round *= 2) {
        rm_vec next[RM_LANES];
        for (int i = 0; i < RM_LANES / 2; i++) {
            next[2 * i] = LOW(v[i], v[i + RM_LANES / 2]);
            next[2 * i + 1] = HIGH(v[i], v[i + RM_LANES / 2]);
        }
        for (int i = 0; i < RM_LANES; i++) v[i] = next[i];
    }
}

/* Writes past the end of a row go to the next row, which follows, or to its padding. */
static void copy_narrow(const float *x, const int64_t extent[2], const int64_t from[2], const int64_t count[2],
                        float *to) {
    int64_t begin = from[1] < 0 ? -from[1] : 0, end = extent[1] - from[1] < count[1] ? extent[1] - from[1] : count[1];
    int n = end > begin ? (int)(end - begin) : 0;
    if (n == 0) begin = 0;
    rm_store(to, rm_splat(0));
    for (int64_t r = 0; r < count[0]; r++) {
        int64_t y = from[0] + r;
        rm_vec row = y >= 0 && y < extent[0] ? rm_load_n(x + y * extent[1] + from[1] + begin, n) : rm_splat(0);
        rm_store(to + r * count[1] + begin, row);
    }
}

static void copy_row(const float *row, int64_t from, int64_t count, int64_t width, float *to) {
    int64_t begin = from < 0 ? -from : 0, end = width - from < count ? width - from : count;
    for (int64_t i = 0; i < count; i += RM_LANES) rm_store(to + i, rm_splat(0));
    for (int64_t i = begin; i < end; i += RM_LANES) {
        int n = end - i < RM_LANES ? (int)(end - i) : RM_LANES;
        rm_store_n(to + i, rm_load_n(row + from + i, n), n);
    }
}

static void copy_plane(const float *x, const int64_t extent[2], const int64_t from[2], const int64_t count[2],
                       float *to) {
    if (count[1] <= RM_LANES) {
        copy_narrow(x, extent, from, count, to);
        return;
    }
    for (int64_t r = 0; r < count[0]; r++) {
        int64_t y = from[0] + r;
        bool inside = y >= 0 && y < extent[0];
        copy_row(x + (inside ? y * extent[1] : 0), from[1], count[1], inside ? extent[1] : 0, to + r * count[1]);
    }
}

static void side_by_side(const float *x, int64_t plane, int64_t count, int lanes, float *to) {
    for (int64_t p = 0; p < count; p += RM_LANES)
        for (int first = 0; first < WIDE; first += RM_LANES) {
            rm_vec v[RM_LANES];
            int n = count - p < RM_LANES ? (int)(count - p) : RM_LANES;
            for (int i = 0; i < RM_LANES; i++)
                v[i] = first + i < lanes ? rm_load_n(x + (first + i) * plane + p, n) : rm_splat(0);
            transpose(v);
            for (int i = 0; i < n; i++) rm_store(to + (p + i) * WIDE + first, v[i]);
        }
}

RM_INLINE void put(rm_vec v, bool adds, int64_t step, int n, float *x) {
    if (step == 1)
        rm_store_n(x, adds ? rm_load_n(x, n) + v : v, n);
    else
        for (int i = 0; i < n; i++) x[i * step] = adds ? x[i * step] + v[i] : v[i];
}

static void apart(const float *from, bool adds, int64_t plane, int64_t step, int64_t count, int lanes, float *x) {
    for (int first = 0; first < lanes; first += RM_LANES)
        for (int64_t p = 0; p < count; p += RM_LANES) {
            rm_vec v[RM_LANES];
            int n = count - p < RM_LANES ? (int)(count - p) : RM_LANES;
            for (int i = 0; i < RM_LANES; i++) v[i] = i < n ? rm_load(from + (p + i) * WIDE + first) : rm_splat(0);
            transpose(v);
            for (int i = 0; i < RM_LANES && first + i < lanes; i++)
                put(v[i], adds, step, n, x + (first + i) * plane + p * step);
        }
}

/* ---- Pixels ------------------------------------------------------------------------------------------------------ */

/* `vectors`: vectors of lanes. `step`: t->x_step as a compile-time constant if possible, which saves address
 * computations. */
RM_INLINE void sum_pixels(const rm_conv_pixels *t, int count, int vectors, int64_t step) {
    rm_vec sum[MOST][2], w[2];
    for (int v = 0; v < vectors; v++) {
        rm_vec start = rm_load(t->start + v * RM_LANES);
        for (int p = 0; p < count; p++) sum[p][v] = start;
    }
    for (int64_t c = 0; c < t->channels; c++)
        for (int64_t i = 0; i < t->taps[0]; i++) {
            const float *x = t->x + c * t->x_plane + i * t->x_tap[0], *at = t->w + c * t->w_channel + i * t->w_tap[0];
            for (int64_t j = 0; j < t->taps[1]; j++, x += t->x_tap[1], at += t->w_tap[1]) {
                for (int v = 0; v < vectors; v++) w[v] = rm_load(at + v * RM_LANES);
#pragma GCC unroll 12
                for (int p = 0; p < count; p++) {
                    rm_vec pixel = rm_splat(x[p * step]);
                    for (int v = 0; v < vectors; v++) sum[p][v] = rm_fma(w[v], pixel, sum[p][v]);
                }
            }
        }
    for (int p = 0; p < count; p++)
        for (int v = 0; v < vectors; v++) rm_store(t->y + p * WIDE + v * RM_LANES, sum[p][v]);
}

RM_INLINE void choose_step(const rm_conv_pixels *t, int count, int vectors) {
    if (t->x_step == 1)
        sum_pixels(t, count, vectors, 1);
    else if (t->x_step == 2)
        sum_pixels(t, count, vectors, 2);
    else
        sum_pixels(t, count, vectors, t->x_step);
}

/* A function for each number of sums, which the compiler then keeps in registers. */
#if RM_LANES == 16
#define EACH(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define EACH(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

#define PIXELS(n)                                                                                                      \
    static void pixels_##n(const rm_conv_pixels *t) {                                                                  \
        if (t->lanes <= RM_LANES)                                                                                      \
            choose_step(t, n, 1);                                                                                      \
        else                                                                                                           \
            choose_step(t, n, 2);                                                                                      \
    }
EACH(PIXELS)

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

RM_INLINE void sum_weights(const rm_conv_weights *t, int count, int vectors) {
    rm_vec sum[MOST][2], dy[2];
    const float *x[MOST], *at = t->dy;
    for (int k = 0; k < count; k++) {
        for (int v = 0; v < vectors; v++) sum[k][v] = rm_splat(0);
        x[k] = t->x + t->at[k];
    }
    for (int64_t image = 0; image < t->images; image++)
        for (int64_t r = 0; r < t->rows; r++) {
            int64_t place = image * t->x_image + r * t->x_row;
            for (int64_t q = 0; q < t->columns; q++, place += t->x_step, at += WIDE) {
                for (int v = 0; v < vectors; v++) dy[v] = rm_load(at + v * RM_LANES);
#pragma GCC unroll 12
                for (int k = 0; k < count; k++) {
                    rm_vec pixel = rm_splat(x[k][place]);
                    for (int v = 0; v < vectors; v++) sum[k][v] = rm_fma(dy[v], pixel, sum[k][v]);
                }
            }
        }
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vectors; v++) {
            float *dw = t->dw + k * WIDE + v * RM_LANES;
            rm_store(dw, rm_load(dw) + sum[k][v]);
        }
}

#define WEIGHTS(n)                                                                                                     \
    static void weights_##n(const rm_conv_weights *t) {                                                                \
        if (t->lanes <= RM_LANES)                                                                                      \
            sum_weights(t, n, 1);                                                                                      \
        else                                                                                                           \
            sum_weights(t, n, 2);                                                                                      \
    }
EACH(WEIGHTS)

#define NAME_PIXELS(n) pixels_##n,
#define NAME_WEIGHTS(n) weights_##n,
const rm_convolution rm_cell_convolution = {.wide = WIDE,
                                            .most = MOST,
                                            .copy_plane = copy_plane,
                                            .side_by_side = side_by_side,
                                            .apart = apart,
                                            .pixels = {NULL, EACH(NAME_PIXELS)},
                                            .weights = {NULL, EACH(NAME_WEIGHTS)}};

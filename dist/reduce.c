/* reduce.c: sums in the order of ranks. Built without contraction of a*b+c into one rounding (CMakeLists.txt), so that a
 * mean is fl32(x * fl32(1/W)) added up, on every machine. */
#include "dist/reduce.h"

#include <string.h>

/* Sums are made in a block that stays in the first-level cache and copied out from there: each in is read once, each out
 * written once, whatever their number. */
enum { BLOCK = 2048 };

#define SUM_BLOCK(name, type)                                                                                          \
    static void name(type *restrict sum, const void *const *in, int32_t ins, int64_t at, int64_t n) {                  \
        memcpy(sum, (const type *)in[0] + at, (size_t)n * sizeof *sum);                                                \
        for (int32_t r = 1; r < ins; r++) {                                                                            \
            const type *x = (const type *)in[r] + at;                                                                  \
            for (int64_t i = 0; i < n; i++) sum[i] = (type)(sum[i] + x[i]);                                            \
        }                                                                                                              \
    }
SUM_BLOCK(sum_f32, float)
SUM_BLOCK(sum_u32, uint32_t) /* i32: unsigned, because it wraps around */
SUM_BLOCK(sum_u8, uint8_t)

static void mean_f32(float *restrict sum, const void *const *in, int32_t ins, int64_t at, int64_t n) {
    const float share = 1.0f / (float)ins, *first = (const float *)in[0] + at;
    for (int64_t i = 0; i < n; i++) sum[i] = first[i] * share;
    for (int32_t r = 1; r < ins; r++) {
        const float *x = (const float *)in[r] + at;
        for (int64_t i = 0; i < n; i++) sum[i] = sum[i] + x[i] * share;
    }
}

/* Two ranks, in place or not, is the usual case on a desk: no block in between. An out is one of the ins or apart from
 * both, so elements do not depend on each other; the compiler cannot know that. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
static void sum_two(const float *a, const float *b, float *x, float *y, int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) x[i] = y[i] = a[i] + b[i];
}
static void mean_two(const float *a, const float *b, float *x, float *y, int64_t count) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) x[i] = y[i] = a[i] * 0.5f + b[i] * 0.5f;
}

static void block_of(rm_wire wire, rm_reduction reduction, void *sum, const void *const *in, int32_t ins, int64_t at,
                     int64_t n) {
    if (wire == RM_WIRE_F32 && reduction == RM_MEAN)
        mean_f32(sum, in, ins, at, n);
    else if (wire == RM_WIRE_F32)
        sum_f32(sum, in, ins, at, n);
    else if (wire == RM_WIRE_I32)
        sum_u32(sum, in, ins, at, n);
    else
        sum_u8(sum, in, ins, at, n);
}

void rm_reduce(rm_wire wire, rm_reduction reduction, const void *const *in, int32_t ins, void *const *out, int32_t outs,
               int64_t count) {
    if (wire == RM_WIRE_F32 && ins == 2 && outs == 2) {
        (reduction == RM_MEAN ? mean_two : sum_two)(in[0], in[1], out[0], out[1], count);
        return;
    }
    _Alignas(64) char sum[BLOCK * sizeof(float)];
    const size_t size = (size_t)rm_wire_bytes(wire);
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        block_of(wire, reduction, sum, in, ins, at, n);
        for (int32_t o = 0; o < outs; o++) memcpy((char *)out[o] + (size_t)at * size, sum, (size_t)n * size);
    }
}

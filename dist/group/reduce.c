/* reduce.c: sums in a fixed order. Compiled without contraction of a*b+c into one rounding (CMakeLists.txt), so that a
 * mean is a sum of fl32(x * fl32(1/W)) on every machine. */
#include "dist/group/reduce.h"

#include <stdatomic.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "dist/group/half.h"

/* Sums are made in a block that stays in the first-level cache and copied out from there: each input is read once and
 * each output written once, regardless of their number. */
enum { BLOCK = 2048 };

/* sum = the sum over `ins` of elements at .. at + n */
typedef void block_sum(void *sum, const void *const *in, int32_t ins, int64_t at, int64_t n);

/* ---- In the order of ranks ------------------------------------------------------------------------------------- */

#define SUM_BLOCK(name, type)                                                                                          \
    static void name(void *to, const void *const *in, int32_t ins, int64_t at, int64_t n) {                            \
        type *restrict sum = to;                                                                                       \
        memcpy(sum, (const type *)in[0] + at, (size_t)n * sizeof *sum);                                                \
        for (int32_t r = 1; r < ins; r++) {                                                                            \
            const type *x = (const type *)in[r] + at;                                                                  \
            for (int64_t i = 0; i < n; i++) sum[i] = (type)(sum[i] + x[i]);                                            \
        }                                                                                                              \
    }
SUM_BLOCK(sum_f32, float)
SUM_BLOCK(sum_f64, double)
SUM_BLOCK(sum_u32, uint32_t) /* i32 sums are unsigned, because they wrap around */
SUM_BLOCK(sum_u8, uint8_t)

static void mean_f32(void *to, const void *const *in, int32_t ins, int64_t at, int64_t n) {
    const float share = 1.0f / (float)ins, *first = (const float *)in[0] + at;
    float *restrict sum = to;
    for (int64_t i = 0; i < n; i++) sum[i] = first[i] * share;
    for (int32_t r = 1; r < ins; r++) {
        const float *x = (const float *)in[r] + at;
        for (int64_t i = 0; i < n; i++) sum[i] = sum[i] + x[i] * share;
    }
}

/* ---- As a tree -------------------------------------------------------------------------------------------------- */

/* The sum of ranks r, r + w, r + 2w, ...: the even-numbered and the odd-numbered ones are summed recursively. The
 * recursion keeps one piece for each of its log2(ins) levels on the stack. */
enum { PIECE = BLOCK / 8 };
#define TREE_BLOCK(name, type)                                                                                         \
    static void name##_part(type *restrict sum, const void *const *in, int32_t ins, int32_t r, int32_t w, int64_t at,  \
                            int64_t n) {                                                                               \
        if (w == ins) {                                                                                                \
            memcpy(sum, (const type *)in[r] + at, (size_t)n * sizeof *sum);                                            \
            return;                                                                                                    \
        }                                                                                                              \
        type odd[PIECE];                                                                                               \
        name##_part(sum, in, ins, r, 2 * w, at, n);                                                                    \
        name##_part(odd, in, ins, r + w, 2 * w, at, n);                                                                \
        for (int64_t i = 0; i < n; i++) sum[i] = sum[i] + odd[i];                                                      \
    }                                                                                                                  \
    static void name(void *sum, const void *const *in, int32_t ins, int64_t at, int64_t n) {                           \
        for (int64_t i = 0; i < n; i += PIECE)                                                                         \
            name##_part((type *)sum + i, in, ins, 0, 1, at + i, n - i < PIECE ? n - i : PIECE);                        \
    }
TREE_BLOCK(tree_f32, float)
TREE_BLOCK(tree_f64, double)

/* ---- 16 bits ---------------------------------------------------------------------------------------------------- */

static void narrow_plainly(rm_wire wire, float share, const float *from, uint16_t *to, int64_t count) {
    if (wire == RM_WIRE_F16)
        for (int64_t i = 0; i < count; i++) to[i] = rm_to_f16(from[i] * share);
    else
        for (int64_t i = 0; i < count; i++) to[i] = rm_to_bf16(from[i] * share);
}

static void widen_plainly(rm_wire wire, const uint16_t *from, float *to, int64_t count) {
    if (wire == RM_WIRE_F16)
        for (int64_t i = 0; i < count; i++) to[i] = rm_from_f16(from[i]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = rm_from_bf16(from[i]);
}

/* Most machines convert f16 in hardware, and bf16 faster with wider vectors: the same bits, several times faster.
 * Returns the number of elements done, a multiple of eight. The hardware keeps a NaN's fraction and sign, so NaNs are
 * replaced by the one that rm_to_f16 makes. */
#ifdef __x86_64__
#define ON_AVX2 __attribute__((target("avx2,f16c"))) static int64_t
ON_AVX2 narrow_widely(rm_wire wire, float share, const float *from, uint16_t *to, int64_t count) {
    const __m128i quiet = _mm_set1_epi16(0x7e00);
    int64_t i = 0;
    for (; wire == RM_WIRE_F16 && i + 8 <= count; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(share));
        __m256i lost = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        __m128i nan = _mm_packs_epi32(_mm256_castsi256_si128(lost), _mm256_extracti128_si256(lost, 1));
        __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm_blendv_epi8(half, quiet, nan));
    }
    for (; wire == RM_WIRE_BF16 && i < count; i++) to[i] = rm_to_bf16(from[i] * share);
    return i;
}
ON_AVX2 widen_widely(rm_wire wire, const uint16_t *from, float *to, int64_t count) {
    int64_t i = 0;
    for (; wire == RM_WIRE_BF16 && i < count; i++) to[i] = rm_from_bf16(from[i]);
    return i;
}
static bool ask(void) { /* clang's __builtin_cpu_supports does not know f16c */
    unsigned a, b, c = 0, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static bool is_wide(void) {
    /* 1: no, 2: yes; cached, because the query takes tens of microseconds on a virtual machine */
    static atomic_int answer;
    int known = atomic_load_explicit(&answer, memory_order_relaxed);
    if (!known) atomic_store_explicit(&answer, known = 1 + ask(), memory_order_relaxed);
    return known == 2;
}
#else
static bool is_wide(void) { return false; }
#define narrow_widely(...) 0
#define widen_widely(...) 0
#endif

void rm_narrow(rm_wire wire, float share, const float *from, uint16_t *to, int64_t count) {
    int64_t done = is_wide() ? narrow_widely(wire, share, from, to, count) : 0;
    narrow_plainly(wire, share, from + done, to + done, count - done);
}

void rm_widen(rm_wire wire, const uint16_t *from, float *to, int64_t count) {
    int64_t done = is_wide() ? widen_widely(wire, from, to, count) : 0;
    widen_plainly(wire, from + done, to + done, count - done);
}

void rm_scale(rm_wire wire, float share, const void *from, void *to, int64_t count) {
    float part[BLOCK];
    if (wire == RM_WIRE_F32) {
        const float *x = from;
        float *y = to;
        for (int64_t i = 0; i < count; i++) y[i] = x[i] * share;
        return;
    }
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        rm_widen(wire, (const uint16_t *)from + at, part, n);
        rm_narrow(wire, share, part, (uint16_t *)to + at, n);
    }
}

static void sum_half(rm_wire wire, bool mean, void *to, const void *const *in, int32_t ins, int64_t at, int64_t n) {
    float sum[BLOCK], part[BLOCK];
    uint16_t scaled[BLOCK];
    for (int32_t r = 0; r < ins; r++) {
        const uint16_t *x = (const uint16_t *)in[r] + at;
        if (mean) rm_scale(wire, 1.0f / (float)ins, x, scaled, n);
        rm_widen(wire, mean ? scaled : x, r ? part : sum, n);
        for (int64_t i = 0; r && i < n; i++) sum[i] = sum[i] + part[i];
    }
    rm_narrow(wire, 1, sum, to, n);
}
static void sum_f16(void *to, const void *const *in, int32_t ins, int64_t at, int64_t n) {
    sum_half(RM_WIRE_F16, false, to, in, ins, at, n);
}
static void mean_f16(void *to, const void *const *in, int32_t ins, int64_t at, int64_t n) {
    sum_half(RM_WIRE_F16, true, to, in, ins, at, n);
}
static void sum_bf16(void *to, const void *const *in, int32_t ins, int64_t at, int64_t n) {
    sum_half(RM_WIRE_BF16, false, to, in, ins, at, n);
}
static void mean_bf16(void *to, const void *const *in, int32_t ins, int64_t at, int64_t n) {
    sum_half(RM_WIRE_BF16, true, to, in, ins, at, n);
}

/* ---- Dispatch --------------------------------------------------------------------------------------------------- */

static block_sum *const block_sums[RM_WIRES][RM_REDUCTIONS] = {
    [RM_WIRE_F32] = {[RM_SUM] = sum_f32, [RM_MEAN] = mean_f32, [RM_TREE] = tree_f32},
    [RM_WIRE_I32] = {[RM_SUM] = sum_u32},
    [RM_WIRE_U8] = {[RM_SUM] = sum_u8},
    [RM_WIRE_F64] = {[RM_SUM] = sum_f64, [RM_TREE] = tree_f64},
    [RM_WIRE_F16] = {[RM_SUM] = sum_f16, [RM_MEAN] = mean_f16},
    [RM_WIRE_BF16] = {[RM_SUM] = sum_bf16, [RM_MEAN] = mean_bf16},
};

bool rm_can_reduce(rm_wire wire, rm_reduction reduction) { return block_sums[wire][reduction] != NULL; }

/* Two ranks, in place or not, are the usual case on one machine, so they need no block in between. An out is one of the
 * ins or separate from both, so elements are independent; the compiler cannot know this. */
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

void rm_reduce(rm_wire wire, rm_reduction reduction, const void *const *in, int32_t ins, void *const *out, int32_t outs,
               int64_t count) {
    if (wire == RM_WIRE_F32 && ins == 2 && outs == 2) {
        (reduction == RM_MEAN ? mean_two : sum_two)(in[0], in[1], out[0], out[1], count);
        return;
    }
    _Alignas(64) char sum[BLOCK * sizeof(double)];
    const size_t size = (size_t)rm_wire_bytes(wire);
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        block_sums[wire][reduction](sum, in, ins, at, n);
        for (int32_t o = 0; o < outs; o++) memcpy((char *)out[o] + (size_t)at * size, sum, (size_t)n * size);
    }
}

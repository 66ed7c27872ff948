/* vecmath.h: exp, sigmoid, tanh and softplus on vectors of floats. The vector width is that of the including file's target:
 * 16 floats with AVX-512, 8 with AVX2 and FMA, 4 elsewhere. Written in GCC vector extensions; the few instructions
 * that these lack (fma, min, max, reciprocal) are at the top. Accuracy and speed compared with libmvec and SLEEF:
 * docs/notes/cells.md, measured by bench/vecmath.c.
 *
 * Every file that includes this is compiled with -ffp-contract=off: only rm_fma fuses a multiply-add into one
 * rounding, so two copies of the same expression cannot round differently.
 *
 * Method. x = n ln2 + r, |r| <= ln2/2 (Cody and Waite, two-part ln2); e^r - 1 = r + r^2 q(r), q a polynomial of degree
 * 4 fitted for relative error (0.14 ulp); 2^n by shifting n into the exponent.
 *   sigmoid(x) = 1 / (1 + e^-x)
 *   tanh(x)    = sign(x) -m / (m + 2), m = e^(-2|x|) - 1: no cancellation near 0, and odd to the last bit
 */
#ifndef RM_VECMATH_H
#define RM_VECMATH_H

#include <stdint.h>

#if defined(__AVX512F__)
#define RM_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define RM_LANES 8
#else
#define RM_LANES 4
#endif

typedef float rm_vec __attribute__((vector_size(4 * RM_LANES)));
typedef int32_t rm_ivec __attribute__((vector_size(4 * RM_LANES)));
typedef float rm_vec_anywhere __attribute__((vector_size(4 * RM_LANES), aligned(4), may_alias));

#define RM_INLINE static inline __attribute__((always_inline))

/* ---- Instructions --------------------------------------------------------------------------------- */

/* rm_fma: a b + c, with one rounding if the machine supports it. rm_least, rm_most: minimum and maximum; if b is NaN,
 * the result is b. */
#if RM_LANES == 16
#include <immintrin.h>
RM_INLINE rm_vec rm_splat(float x) { return (rm_vec)_mm512_set1_ps(x); }
RM_INLINE rm_vec rm_fma(rm_vec a, rm_vec b, rm_vec c) {
    return (rm_vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
RM_INLINE rm_vec rm_least(rm_vec a, rm_vec b) { return (rm_vec)_mm512_min_ps((__m512)a, (__m512)b); }
RM_INLINE rm_vec rm_most(rm_vec a, rm_vec b) { return (rm_vec)_mm512_max_ps((__m512)a, (__m512)b); }
#elif RM_LANES == 8
#include <immintrin.h>
RM_INLINE rm_vec rm_splat(float x) { return (rm_vec)_mm256_set1_ps(x); }
RM_INLINE rm_vec rm_fma(rm_vec a, rm_vec b, rm_vec c) {
    return (rm_vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
RM_INLINE rm_vec rm_least(rm_vec a, rm_vec b) { return (rm_vec)_mm256_min_ps((__m256)a, (__m256)b); }
RM_INLINE rm_vec rm_most(rm_vec a, rm_vec b) { return (rm_vec)_mm256_max_ps((__m256)a, (__m256)b); }
#else
RM_INLINE rm_vec rm_splat(float x) { return (rm_vec){x, x, x, x}; }
RM_INLINE rm_vec rm_choose(rm_ivec mask, rm_vec a, rm_vec b) {
    return (rm_vec)((mask & (rm_ivec)a) | (~mask & (rm_ivec)b));
}
#if defined(__aarch64__)
#include <arm_neon.h>
RM_INLINE rm_vec rm_fma(rm_vec a, rm_vec b, rm_vec c) {
    return (rm_vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
RM_INLINE rm_vec rm_fma(rm_vec a, rm_vec b, rm_vec c) { return a * b + c; }
#endif
RM_INLINE rm_vec rm_least(rm_vec a, rm_vec b) { return rm_choose((rm_ivec)(a < b), a, b); }
RM_INLINE rm_vec rm_most(rm_vec a, rm_vec b) { return rm_choose((rm_ivec)(a > b), a, b); }
#endif

/* 1/d for d in [1, 2^126]. With AVX-512 the 14-bit estimate and a Newton step take a third of the time of a division,
 * whose throughput is what counts here. */
#if RM_LANES == 16
RM_INLINE rm_vec rm_reciprocal(rm_vec d) {
    rm_vec y = (rm_vec)_mm512_rcp14_ps((__m512)d);
    return rm_fma(y, rm_fma(-d, y, rm_splat(1)), y);
}
#else
RM_INLINE rm_vec rm_reciprocal(rm_vec d) { return rm_splat(1) / d; }
#endif

/* a / (m + 2) for m in [-1, 0]. Rounding m + 2 alone would cost one ulp of the result, so the rounding error is
 * corrected. */
RM_INLINE rm_vec rm_over_plus_two(rm_vec a, rm_vec m) {
    rm_vec d = m + rm_splat(2), lost = m - (d - rm_splat(2));
    rm_vec y = rm_reciprocal(d), q = a * y;
    return rm_fma(rm_fma(-lost, q, rm_fma(-d, q, a)), y, q);
}

/* ---- Loads and stores; _n: of the first n floats, the others load as zero ------------------------- */

RM_INLINE rm_vec rm_load(const float *p) { return *(const rm_vec_anywhere *)p; }
RM_INLINE void rm_store(float *p, rm_vec v) { *(rm_vec_anywhere *)p = v; }

#if RM_LANES == 16
RM_INLINE rm_vec rm_load_n(const float *p, int n) {
    return (rm_vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
RM_INLINE void rm_store_n(float *p, rm_vec v, int n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}
#else
#if RM_LANES == 8
RM_INLINE rm_ivec rm_first(int n) { return (rm_ivec){0, 1, 2, 3, 4, 5, 6, 7} < (rm_ivec)_mm256_set1_epi32(n); }
RM_INLINE rm_vec rm_load_n(const float *p, int n) { return (rm_vec)_mm256_maskload_ps(p, (__m256i)rm_first(n)); }
#else
RM_INLINE rm_vec rm_load_n(const float *p, int n) {
    float lane[RM_LANES] = {0};
    if (n == RM_LANES) return rm_load(p);
    for (int i = 0; i < n; i++) lane[i] = p[i];
    return rm_load(lane);
}
#endif
RM_INLINE void rm_store_n(float *p, rm_vec v, int n) {
    if (n == RM_LANES) {
        rm_store(p, v);
        return;
    }
    for (int i = 0; i < n; i++) p[i] = v[i];
}
#endif

/* A non-temporal store that bypasses the caches, to an address aligned like the vector. Other threads see such stores
 * after rm_stream_end. */
#if RM_LANES == 16
RM_INLINE void rm_stream(float *p, rm_vec v) { _mm512_stream_ps(p, (__m512)v); }
RM_INLINE void rm_stream_end(void) { _mm_sfence(); }
#elif RM_LANES == 8
RM_INLINE void rm_stream(float *p, rm_vec v) { _mm256_stream_ps(p, (__m256)v); }
RM_INLINE void rm_stream_end(void) { _mm_sfence(); }
#else
RM_INLINE void rm_stream(float *p, rm_vec v) { rm_store(p, v); }
RM_INLINE void rm_stream_end(void) {}
#endif

/* ---- Functions ------------------------------------------------------------------------------------ */

/* For x in [-126 ln2, 129 ln2], or NaN: e^x = scale (1 + p). *scale = 2^n (for n > 127 only its shifted bits); returns
 * p = e^r - 1. */
RM_INLINE rm_vec rm_exp_parts(rm_vec x, rm_vec *scale) {
    const rm_vec magic = rm_splat(0x1.8p23f); /* adding it rounds to an integer, left in the low bits */
    rm_vec shifted = rm_fma(x, rm_splat(0x1.715476p+0f), magic);
    rm_vec n = shifted - magic;
    rm_vec r = rm_fma(n, rm_splat(-0x1.63p-1f), x); /* ln2's first 9 bits: n times it is exact */
    r = rm_fma(n, rm_splat(0x1.bd0106p-13f), r);
    rm_vec q = rm_fma(r, rm_splat(0x1.6bec06p-10f), rm_splat(0x1.122772p-7f));
    q = rm_fma(q, r, rm_splat(0x1.555674p-5f));
    q = rm_fma(q, r, rm_splat(0x1.5554b0p-3f));
    q = rm_fma(q, r, rm_splat(0x1.fffffep-2f));
    *scale = (rm_vec)(((rm_ivec)shifted << 23) + (rm_ivec)rm_splat(1));
    return rm_fma(q, r * r, r);
}

#define RM_EXP_LEAST (-0x1.5d589ep6f) /* below it e^x < 2^-126, flushed to 0 */

/* v, or 0 where x is below RM_EXP_LEAST. */
RM_INLINE rm_vec rm_flush(rm_vec x, rm_vec v) { return (rm_vec)((rm_ivec)v & ~(rm_ivec)(x < rm_splat(RM_EXP_LEAST))); }

/* e^x. Overflows to infinity; results below 2^-126 are 0; NaN is passed through. */
RM_INLINE rm_vec rm_vec_exp(rm_vec x) {
    rm_vec scale, p = rm_exp_parts(rm_least(rm_splat(89), rm_most(rm_splat(RM_EXP_LEAST), x)), &scale);
    /* n reaches 128, which no exponent holds: 2^n = 2^(n/2) 2^(n - n/2) */
    rm_ivec n = ((rm_ivec)scale - (rm_ivec)rm_splat(1)) >> 23, half = n >> 1;
    rm_vec first = (rm_vec)((half + 127) << 23), second = (rm_vec)((n - half + 127) << 23);
    return rm_flush(x, rm_fma(first, p, first) * second);
}

/* e^x for x <= 0, in fewer instructions. Results below 2^-126 are 0; NaN is passed through. */
RM_INLINE rm_vec rm_vec_exp_nonpositive(rm_vec x) {
    rm_vec scale, p = rm_exp_parts(rm_most(rm_splat(RM_EXP_LEAST), x), &scale);
    return rm_flush(x, rm_fma(scale, p, scale));
}

/* 1 / (1 + e^-x). 1 from about 17 upwards; results below 2^-126 are 0; NaN is passed through. */
RM_INLINE rm_vec rm_vec_sigmoid(rm_vec x) {
    rm_vec scale, bounded = rm_least(rm_splat(-RM_EXP_LEAST), rm_most(rm_splat(-30), -x));
    rm_vec p = rm_exp_parts(bounded, &scale);
    return rm_flush(x, rm_reciprocal(rm_fma(scale, p, scale) + rm_splat(1)));
}

/* tanh x. Exactly odd; exactly 1 from about 9 upwards; NaN is passed through. */
RM_INLINE rm_vec rm_vec_tanh(rm_vec x) {
    const rm_ivec sign = (rm_ivec)rm_splat(-0.0f);
    rm_vec magnitude = (rm_vec)((rm_ivec)x & ~sign), scale;
    rm_vec p = rm_exp_parts(rm_most(rm_splat(-20), magnitude * rm_splat(-2)), &scale);
    rm_vec m = rm_fma(scale, p, scale - rm_splat(1));
    rm_vec t = rm_over_plus_two(-m, m);
    return (rm_vec)((rm_ivec)t | ((rm_ivec)x & sign));
}

/* log(1 + e^x) = max(x, 0) + log1p(e), e = e^-|x|; log1p(e) = 2 atanh(s), s = e / (2 + e) <= 1/3, by its series up to
 * s^17. NaN is passed through. */
RM_INLINE rm_vec rm_vec_softplus(rm_vec x) {
    rm_vec e = rm_vec_exp_nonpositive((rm_vec)((rm_ivec)x | (rm_ivec)rm_splat(-0.0f))); /* of -|x| */
    rm_vec s = e * rm_reciprocal(e + rm_splat(2)), square = s * s, series = rm_splat(1 / 17.0f);
    for (int odd = 15; odd > 0; odd -= 2) series = rm_fma(series, square, rm_splat(1 / (float)odd));
    return rm_fma(s + s, series, rm_most(rm_splat(0), x));
}

#endif

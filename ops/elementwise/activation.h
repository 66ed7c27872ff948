/* activation.h: formulas of the element-wise ops, shared by their definitions in C and their CUDA kernels. Those of
 * the recurrent cells are in cell_math.h. */
#ifndef RM_ACTIVATION_H
#define RM_ACTIVATION_H

#include "ops/real.h"

#include <stdbool.h>
#include <stdint.h>

#include "ops/math/exp.h"

/* The float versions avoid the C library, so that loops over them are vectorised (ops/math/exp.h). They are within 3
 * ulp of the exact value, except for Phi far below 0, where rounding x^2 costs x^2 / 4 ulp. Doubles, used only by
 * tests, call the C library. */
RM_HD real rm_logistic(real x) {
    real e = rm_exp_nonpositive(x < 0 ? x : -x);
    return (x < 0 ? e : 1) / (1 + e);
}

RM_HD real rm_normal_density(real x) { return (real)0.39894228040143267794 * rm_exp_nonpositive((real)-0.5 * x * x); }

#ifdef RM_REAL_DOUBLE
RM_HD real rm_exponential(real x) { return exp(x); }
RM_HD real rm_root(real x) { return sqrt(x); }
RM_HD real rm_natural_log(real x) { return log(x); }
RM_HD real rm_log_of_one_and(real e) { return log1p(e); }
RM_HD real rm_hyperbolic_tangent(real x) { return tanh(x); }
RM_HD real rm_normal_below(real x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
RM_HD real rm_log_one_plus(real x) { return log1p(x); }
RM_HD real rm_exponential_minus_one(real x) { return expm1(x); }
RM_HD real rm_error_function(real x) { return erf(x); }
RM_HD real rm_sine(real x) { return sin(x); }
RM_HD real rm_cosine(real x) { return cos(x); }
#else
/* e^x = 1 / e^-x for x > 0; above 87.3 it is infinite. */
RM_HD real rm_exponential(real x) {
    real e = rm_exp_nonpositive(x < 0 ? x : -x);
    return x < 0 ? e : 1 / e;
}

RM_HD real rm_root(real x) { return sqrtf(x); }

/* x = 2^n m, sqrt(1/2) <= m < sqrt(2): log x = n ln 2 + log(1 + f), f = m - 1, ln 2 in two parts as in exp.h. With s = f / (2 + f),
 * log(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + ..) = f - (h - s (h + r)), where h = f^2 / 2 and r = 2 (s^2 / 3 + s^4 / 5 + ..): f is exact,
 * and the rest is small beside it. */
RM_HD real rm_natural_log(real x) {
    bool tiny = x < 0x1p-126f; /* not normal, 0, or below 0 */
    real scaled = tiny ? x * 0x1p23f : x, m;
    uint32_t bits;
    memcpy(&bits, &scaled, sizeof bits);
    uint32_t above = bits - 0x3f3504f3u; /* sqrt(1/2) */
    real n = (real)((int32_t)above >> 23) - (tiny ? 23 : 0);
    bits = (above & 0x7fffffu) + 0x3f3504f3u;
    memcpy(&m, &bits, sizeof m);
    real f = m - 1, s = f / (2 + f), square = s * s, h = 0.5f * f * f;
    real r =
        square * (0x1.555556p-1f + square * (0x1.99999ap-2f + square * (0x1.24924ap-2f + square * 0x1.c71c72p-3f)));
    real y = n * 0x1.62e4p-1f - ((h - (s * (h + r) + n * 0x1.7f7d1cp-20f)) - f);
    y = x > 0x1.fffffep127f ? x : y; /* infinity */
    y = x > 0 ? y : x < 0 ? (real)NAN : (real)-INFINITY;
    return x != x ? x : y;
}

/* log(1 + e) for 0 <= e <= 1: 2 (t + t^3 / 3 + t^5 / 5 + ..), t = e / (2 + e). */
RM_HD real rm_log_of_one_and(real e) {
    real t = e / (2 + e), square = t * t, p = 1.0f / 13;
    p = p * square + 1.0f / 11;
    p = p * square + 1.0f / 9;
    p = p * square + 1.0f / 7;
    p = p * square + 1.0f / 5;
    p = p * square + 1.0f / 3;
    return 2 * t + 2 * t * square * p;
}

/* Near 0: x + x^3 p(x^2); elsewhere: sign(x) (1 - e^-2|x|) / (1 + e^-2|x|). */
RM_HD real rm_hyperbolic_tangent(real x) {
    real square = x * x, e = rm_exp_nonpositive(x < 0 ? 2 * x : -2 * x), far = (1 - e) / (1 + e);
    real p = 0x1.3df330p-6f;
    p = p * square - 0x1.b81488p-5f;
    p = p * square + 0x1.110be2p-3f;
    p = p * square - 0x1.55554ep-2f;
    return square < 0.12f ? x + x * square * p : x < 0 ? -far : far;
}

/* Phi(x), the normal distribution function: Phi(-|x|) = e^(-x^2/2) t p(t), t = 1 / (1 + 0.265 |x|), which stays
 * accurate far below 0. */
RM_HD real rm_normal_below(real x) {
    real t = 1 / (1 + (x < 0 ? -x : x) * 0x1.0f876cp-2f);
    real p = 0x1.f81f64p-6f;
    p = p * t - 0x1.2639acp-3f;
    p = p * t + 0x1.bac65ep-3f;
    p = p * t - 0x1.d5d5f2p-4f;
    p = p * t + 0x1.184b0ep-3f;
    p = p * t + 0x1.f1af84p-5f;
    p = p * t + 0x1.a47b5ap-4f;
    p = p * t + 0x1.af6916p-4f;
    p = p * t + 0x1.b16266p-4f;
    p *= t * rm_exp_nonpositive(-0.5f * x * x);
    return x < 0 ? p : 1 - p;
}

/* Kahan's: u = 1 + x is rounded, and log(u) / (u - 1) is as good for x. */
RM_HD real rm_log_one_plus(real x) {
    real u = 1 + x, y = rm_natural_log(u) * (x / (u - 1));
    return u == 1 || u > 0x1.fffffep127f ? x : y;
}

/* The same for e^x - 1, with x / log(e^x). */
RM_HD real rm_exponential_minus_one(real x) {
    real u = rm_exponential(x), less = u - 1, y = less * (x / rm_natural_log(u));
    return u == 1 ? x : less == -1 || u > 0x1.fffffep127f ? less : y;
}

/* Near 0: x + x p(x^2); elsewhere from Phi. */
RM_HD real rm_error_function(real x) {
    real square = x * x, size = x < 0 ? -x : x, far = 1 - 2 * rm_normal_below(size * -0x1.6a09e6p+0f);
    real p = 0x1.4ae4d0p-14f;
    p = p * square - 0x1.a485ecp-11f;
    p = p * square + 0x1.5419f6p-8f;
    p = p * square - 0x1.b7fbb4p-6f;
    p = p * square + 0x1.ce2d20p-4f;
    p = p * square - 0x1.81273ep-2f;
    p = p * square + 0x1.06eba2p-3f;
    return square < 1 ? x + x * p : x < 0 ? -far : far;
}

/* sin(x + quarters pi/2): x = n pi/2 + r, |r| <= pi/4, in double, where pi/2 has two parts; then polynomials. From 2^30 on,
 * where neighbouring floats are 128 apart, 0. */
RM_HD real rm_sine_of(real x, uint32_t quarters) {
    double shifted = (double)x * 0x1.45f306dc9c883p-1 + 0x1.8p52; /* 2/pi; the sum leaves n in the low bits */
    double n = shifted - 0x1.8p52;
    real r = (real)(((double)x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34), square = r * r;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    uint32_t at = (uint32_t)bits + quarters;
    real sine = r + r * square * (-0x1.555546p-3f + square * (0x1.110756p-7f + square * -0x1.994b40p-13f));
    real tail = square * square * (0x1.55554ap-5f + square * (-0x1.6c0c82p-10f + square * 0x1.99ff40p-16f));
    real y = at & 1 ? 1 - (0.5f * square - tail) : sine;
    y = at & 2 ? -y : y;
    return (x < 0 ? -x : x) < 0x1p30f ? y : x - x;
}
RM_HD real rm_sine(real x) { return rm_sine_of(x, 0); }
RM_HD real rm_cosine(real x) { return rm_sine_of(x, 1); }
#endif

/* (1 + tanh u) / 2 = 1 / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3), and its derivative. */
RM_HD real rm_gelu_gate(real x) { return rm_logistic((real)1.59576912160573071176 * x * (1 + (real)0.044715 * x * x)); }
RM_HD real rm_gelu_slope(real x) {
    real gate = rm_gelu_gate(x);
    return gate * (1 - gate) * (real)1.59576912160573071176 * (1 + (real)(3 * 0.044715) * x * x);
}

/* rm_tanh(x), rm_tanh_backward(dy, y) and so on, from the formulas of activations.def. */
#define ACTIVATION(op, formula, reads, derivative, ...)                                                                \
    RM_HD real rm_##op(real x) { return formula; }                                                                     \
    RM_HD real rm_##op##_backward(real dy, real reads) { return derivative; }
#include "ops/elementwise/activations.def"
#undef ACTIVATION

/* out = x / (1 - p) where the upper 24 bits of `word`, drawn by rm_random, are at least p, else 0. */
static inline uint32_t rm_dropout_threshold(double p) { return (uint32_t)ceil(p * 0x1p24); }
static inline real rm_dropout_scale(double p) { return (real)(1 / (1 - p)); }
RM_HD real rm_dropout(real x, uint32_t word, uint32_t threshold, real scale) {
    real kept = x * scale; /* always computed: a select, not a branch */
    return word >> 8 >= threshold ? kept : 0;
}

#endif

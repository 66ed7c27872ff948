/* halves.h: 16-bit floats by their definition, in exact double arithmetic: the reference for dist/group/half.h. */
#ifndef TEST_HALVES_H
#define TEST_HALVES_H

#include <math.h>
#include <stdint.h>

typedef struct {
    int fraction_bits, bias;
} half_format;

static const half_format F16 = {.fraction_bits = 10, .bias = 15}, BF16 = {.fraction_bits = 7, .bias = 127};

static inline double half_value(uint16_t half, half_format f) {
    const int exponent = (half & 0x7fff) >> f.fraction_bits, fraction = half & ((1 << f.fraction_bits) - 1);
    const double sign = half & 0x8000 ? -1 : 1;
    if (exponent == 2 * f.bias + 1) return fraction ? (double)NAN : sign * (double)INFINITY;
    const int steps = exponent ? fraction + (1 << f.fraction_bits) : fraction;
    return sign * ldexp(steps, (exponent ? exponent : 1) - f.bias - f.fraction_bits);
}

/* The nearest value, ties to even; rint() rounds in this way. */
static inline uint16_t half_of(double x, half_format f) {
    const int infinite = (2 * f.bias + 1) << f.fraction_bits, sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x)) return (uint16_t)(infinite | 1 << (f.fraction_bits - 1));
    if (isinf(x)) return (uint16_t)(infinite | sign);
    int exponent = x == 0 || ilogb(x) < 1 - f.bias ? 1 - f.bias : ilogb(x);
    double steps = rint(ldexp(fabs(x), f.fraction_bits - exponent));          /* up to 2^(fraction_bits + 1) */
    /* Carries into the exponent automatically */
    int half = (exponent + f.bias - 1) * (1 << f.fraction_bits) + (int)steps;
    return (uint16_t)((half > infinite ? infinite : half) | sign);
}

#endif

/* half.h: the two 16-bit float formats, in integer arithmetic that compilers vectorize. No machine needs special
 * instructions, and all give the same bits.
 *
 *   f16    sign, 5 bits of exponent, 10 of fraction: largest 65504, smallest 2^-24
 *   bf16   sign, 8 bits of exponent, 7 of fraction: the upper half of a float
 *
 * Conversion to 16 bits rounds to nearest, ties to even. Overflow gives infinity. Every NaN becomes the same quiet NaN,
 * so that sums of NaNs have the same bits in any order. Conversion to 32 bits is exact. */
#ifndef RM_HALF_H
#define RM_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t rm_float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float rm_bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint16_t rm_to_bf16(float x) {
    uint32_t bits = rm_float_bits(x), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
static inline float rm_from_bf16(uint16_t half) { return rm_bits_float((uint32_t)half << 16); }

static inline uint16_t rm_to_f16(float x) {
    uint32_t bits = rm_float_bits(x), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    /* From 2^-14 on: the exponent's bias changes from 127 to 15, and 13 bits of the fraction are dropped. Values above
     * 65504 round up to infinity. Below 2^-14: the last bit of 0.5 has the weight of the smallest halves, so the
     * addition rounds. */
    uint32_t usual = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
    uint32_t tiny = rm_float_bits(rm_bits_float(size) + 0.5f) - 0x3f000000u;
    uint32_t half = size < 0x38800000u ? tiny : size >= 0x47800000u ? 0x7c00u : usual;
    return (uint16_t)(size > 0x7f800000u ? 0x7e00u : half | sign);
}
static inline float rm_from_f16(uint16_t half) {
    uint32_t size = (half & 0x7fffu) << 13, sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t tiny = rm_float_bits(rm_bits_float(size + (113u << 23)) - 0x1p-14f); /* avoids denormal floats */
    uint32_t bits = size < (1u << 23) ? tiny : size >= (31u << 23) ? size | 0x7f800000u : size + (112u << 23);
    return rm_bits_float(bits | sign);
}

/* Converts the n 16-bit floats at the start of the buffer to 32 bits, in place, from the last to the first. */
static inline void rm_widen_in_place(void *buffer, uint64_t n, bool bf16) {
    for (uint64_t i = n; i-- > 0;) {
        uint16_t half;
        memcpy(&half, (const char *)buffer + i * sizeof half, sizeof half);
        const float x = bf16 ? rm_from_bf16(half) : rm_from_f16(half);
        memcpy((char *)buffer + i * sizeof x, &x, sizeof x);
    }
}

#endif

/* exp.h: rm_exp_nonpositive, e^x for x <= 0 in plain arithmetic, so that compilers vectorise a plain loop around it
 * for any instruction set and without fast-math. (vecmath.h is written in vectors, for the recurrent
 * cells.) Float: within 1.1 ulp of the true value, tested for every float. Double, used only by
 * tests, calls the C library.
 *
 *   e^x = 2^n e^r,   n = round(x / ln 2),   |r| <= ln 2 / 2,   e^r = 1 + r + r^2 (a minimax polynomial)
 */
#ifndef RM_EXP_H
#define RM_EXP_H

#include <stdint.h>
#include <string.h>

#include "ops/real.h"

#include "engine/host_device.h"

/* NaN is passed through. Results below the smallest normal number (x < -87.3) are 0. */
RM_HD float rm_expf_nonpositive(float x) {
    float shifted = x * 0x1.715476p+0f + 0x1.8p23f; /* adding 1.5 2^23 leaves n in the low bits */
    float n = shifted - 0x1.8p23f;
    float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f; /* ln 2 in two parts: n times the first is exact */
    float p = 0x1.6a2434p-10f;
    p = p * r + 0x1.1239e2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r * r + r + 1;
    uint32_t bits;
    float power; /* 2^n */
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    memcpy(&power, &bits, sizeof power);
    return x < -87.3f ? 0 : p * power;
}

#ifdef RM_REAL_DOUBLE
#define rm_exp_nonpositive exp
#else
#define rm_exp_nonpositive rm_expf_nonpositive
#endif

#endif

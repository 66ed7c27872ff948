/* bf16.cuh: numbers in bf16, for kernels: bf16.h. */
#ifndef RM_BF16_CUH
#define RM_BF16_CUH

#include "ops/cuda/fours.cuh"

#include <string.h>

static __device__ inline float rm_from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static __device__ inline uint16_t rm_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 64); /* a NaN stays one */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Four numbers in bf16, read and written by 8 bytes, so their address is a multiple of 8. */
struct alignas(8) rm_four_halves {
    uint16_t v[4];
};

/* x[0..4), of which `left` exist; the others are 0. */
static __device__ inline rm_four rm_load_halves(const uint16_t *x, int64_t left) {
    rm_four_halves halves = {};
    rm_four four;
    if (left >= 4)
        halves = *(const rm_four_halves *)x;
    else
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < left) halves.v[k] = x[k];
    RM_UNROLL for (int k = 0; k < 4; k++) four.v[k] = rm_from_bf16(halves.v[k]);
    return four;
}

static __device__ inline void rm_store_halves(uint16_t *x, int64_t left, const rm_four &four) {
    rm_four_halves halves;
    RM_UNROLL for (int k = 0; k < 4; k++) halves.v[k] = rm_to_bf16(four.v[k]);
    if (left >= 4)
        *(rm_four_halves *)x = halves;
    else
        RM_UNROLL for (int k = 0; k < 4; k++) if (k < left) x[k] = halves.v[k];
}

#endif

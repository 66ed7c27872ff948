/* hash.c: eight sums of 64 bits, one for each word of a block of 64 bytes:
 *
 *   k        = key of this lane and block            (a different key for every block, so that order matters)
 *   sum[i]  += low32(w[i] ^ k) * high32(w[i] ^ k)    (the product mixes all bits of a word ...)
 *   sum[i^1] += w[i]                                 (... and the word itself covers products that lose bits)
 *
 * Only the sums connect blocks, so the lanes run in parallel. A single flipped bit b changes sum[i^1] by 2^b, so the sums of the two
 * inputs always differ. */
#include "engine/hash.h"

#include <string.h>

enum { LANES = 8, BLOCK = 8 * LANES };

/* Odd, with about half the bits set: the first digits of the fractional parts of square roots of 2, 3, 5, ... 19. */
static const uint64_t key[LANES] = {0x6A09E667F3BCC909u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u,
                                    0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu, 0x1F83D9ABFB41BD6Bu, 0x5BE0CD19137E2179u};
static const uint64_t next_block = 0x9E3779B97F4A7C15u;

static inline uint64_t word_at(const unsigned char *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

static inline void add_block(uint64_t *sum, const unsigned char *data, uint64_t block) {
    uint64_t other[LANES];
    for (int i = 0; i < LANES; i++) {
        uint64_t word = word_at(data + 8 * i), mixed = word ^ (key[i] + block * next_block);
        sum[i] += (mixed & 0xFFFFFFFFu) * (mixed >> 32);
        other[i] = word;
    }
    for (int i = 0; i < LANES; i++) sum[i ^ 1] += other[i];
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x = (x ^ x >> 29) * 0xCF1BBCDCB7A56463u;
    return x ^ x >> 32;
}

uint64_t rm_hash(const void *data, uint64_t bytes, uint64_t seed) {
    const unsigned char *at = data;
    uint64_t sum[LANES], blocks = bytes / BLOCK, rest = bytes % BLOCK;
    for (int i = 0; i < LANES; i++) sum[i] = key[i] ^ seed;
    for (uint64_t b = 0; b < blocks; b++) add_block(sum, at + b * BLOCK, b);
    if (rest) {
        unsigned char last[BLOCK] = {0};
        memcpy(last, at + blocks * BLOCK, rest);
        add_block(sum, last, blocks);
    }
    uint64_t hash = mix(bytes ^ seed);
    for (int i = 0; i < LANES; i++) hash = mix(hash ^ sum[i]) + next_block;
    return hash;
}

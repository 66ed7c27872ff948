/* hmac.c: see hmac.h. */
#include "dist/store/hmac.h"

#include <string.h>

enum { BLOCK = 64 };

typedef struct {
    uint32_t state[8];
    uint64_t bytes; /* hashed so far */
    uint8_t block[BLOCK];
} sha256;

/* ---- SHA-256 (FIPS 180-4, section 6.2) --------------------------------------------------------------------------- */

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* The first 32 bits of the fractional parts of the square roots of the first 8 primes. */
static const uint32_t first_state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void spread(const uint8_t block[BLOCK], uint32_t w[64]) {
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 |
               block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
}

static void mix_block(uint32_t state[8], const uint8_t block[BLOCK]) {
    uint32_t w[64], s[8];
    spread(block, w);
    memcpy(s, state, sizeof s);
    for (int t = 0; t < 64; t++) { /* s: a b c d e f g h */
        uint32_t sum1 = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25), choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t sum0 = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t one = s[7] + sum1 + choice + K[t] + w[t], two = sum0 + majority;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

static sha256 begin(void) {
    sha256 h = {.bytes = 0};
    memcpy(h.state, first_state, sizeof h.state);
    return h;
}

static void add(sha256 *h, const void *data, size_t bytes) {
    for (const uint8_t *at = data; bytes > 0;) {
        size_t used = h->bytes % BLOCK, n = BLOCK - used < bytes ? BLOCK - used : bytes;
        memcpy(h->block + used, at, n);
        h->bytes += n;
        at += n;
        bytes -= n;
        if (used + n == BLOCK) mix_block(h->state, h->block);
    }
}

/* Pads the last block with a one bit, zeros, and the length in bits. */
static void end(sha256 *h, uint8_t out[RM_HMAC_BYTES]) {
    static const uint8_t filling[BLOCK] = {0x80};
    uint64_t bits = 8 * h->bytes;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    add(h, filling, 1 + (2 * BLOCK - 9 - h->bytes % BLOCK) % BLOCK);
    add(h, length, sizeof length);
    for (int i = 0; i < RM_HMAC_BYTES; i++) out[i] = (uint8_t)(h->state[i / 4] >> (24 - i % 4 * 8));
}

/* ---- HMAC: H(key ^ opad, H(key ^ ipad, data)) -------------------------------------------------------------------- */

static sha256 begin_with(const uint8_t key[BLOCK], uint8_t pad) {
    uint8_t padded[BLOCK];
    sha256 h = begin();
    for (int i = 0; i < BLOCK; i++) padded[i] = key[i] ^ pad;
    add(&h, padded, sizeof padded);
    return h;
}

void rm_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t out[RM_HMAC_BYTES]) {
    uint8_t whole[BLOCK] = {0}; /* the key, or its hash if it is longer than a block */
    if (key_bytes > BLOCK) {
        sha256 h = begin();
        add(&h, key, key_bytes);
        end(&h, whole);
    } else if (key_bytes) {
        memcpy(whole, key, key_bytes);
    }
    sha256 inner = begin_with(whole, 0x36), outer = begin_with(whole, 0x5c);
    add(&inner, data, bytes);
    end(&inner, out);
    add(&outer, out, RM_HMAC_BYTES);
    end(&outer, out);
}

bool rm_hmac_same(const uint8_t a[RM_HMAC_BYTES], const uint8_t b[RM_HMAC_BYTES]) {
    volatile uint8_t differ = 0; /* volatile, so that the loop does not end early */
    for (int i = 0; i < RM_HMAC_BYTES; i++) differ = (uint8_t)(differ | (a[i] ^ b[i]));
    return differ == 0;
}

/* compare.h: checks that a state in device memory, which the host cannot read, has not changed. Its hash is computed on
 * the device, stored when the state is first computed and compared later. The first difference is recorded for the host
 * to read at the end of the step. Used by engine/session/verify.c on the device cuda; where the host can read states,
 * engine/hash.h is used.
 *
 *   term(i) = mix(word[i] ^ (seed + (i + 1) g))        8 bytes a word; 4 bytes that are left over make one with zeros
 *   hash    = sum of term(i), modulo 2^64
 *
 * mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection: for one i, different words have different
 * terms. So any change of a single word changes the hash; if several words change, the hashes collide
 * with a probability of about 2^-64. It does not resist adversaries. Addition of integers modulo 2^64 is exact and
 * independent of order, so the hash does not depend on how threads and blocks share the words. */
#ifndef RM_COMPARE_H
#define RM_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/host_device.h"

/* The first difference of a step, in device memory. All zeros: none. */
typedef struct {
    uint64_t now, before;       /* the two hashes */
    int64_t line, piece, again; /* copied from the rm_comparison that found it */
    int64_t found;
} rm_difference;

typedef struct {
    const void *state; /* in device memory, at a multiple of 8 */
    uint64_t bytes;    /* a multiple of 4 */
    uint64_t seed;
    uint64_t *kept;       /* in device memory: the hash of the state when it was first computed */
    rm_difference *first; /* receives the difference, unless it already holds one */
    int64_t line, piece;  /* for the caller: copied to `first` */
    bool again;           /* likewise: the state was recomputed, not read */
    bool keeps;           /* the state was just computed for the first time: store the hash, compare nothing */
} rm_comparison;

RM_HD uint64_t rm_compare_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

RM_HD uint64_t rm_compare_term(uint64_t word, int64_t index, uint64_t seed) {
    return rm_compare_mix(word ^ (seed + ((uint64_t)index + 1) * 0x9E3779B97F4A7C15u));
}

/* Stores or compares the hash. */
RM_HD void rm_compare_settle(const rm_comparison *check, uint64_t now) {
    rm_difference *first = check->first;
    if (check->keeps) *check->kept = now;
    if (now == *check->kept || first->found) return;
    first->now = now;
    first->before = *check->kept;
    first->line = check->line;
    first->piece = check->piece;
    first->again = check->again;
    first->found = 1;
}

#endif

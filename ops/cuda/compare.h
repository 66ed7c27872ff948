/* compare.h: is a state in a device's memory, which the host cannot read, still what it was? A hash of it is made there,
 * kept when the state is first made, and compared later; the first difference is left where the host finds it at the end of
 * the step. For engine/session/verify.c on the device cuda; where the host can read states, engine/hash.h does it.
 *
 *   term(i) = mix(word[i] ^ (seed + (i + 1) g))        8 bytes a word; 4 bytes that are left over make one with zeros
 *   hash    = sum of term(i), modulo 2^64
 *
 * mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection: for one i, other words have other terms. So
 * whatever happens to a single word, one bit or all of them, the hash is another; where several words change, the hashes meet
 * with a chance of about 2^-64. Not for adversaries. Adding integers modulo 2^64 is exact and has no order: every division of
 * the words among threads and blocks gives the same hash. */
#ifndef RM_COMPARE_H
#define RM_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/host_device.h"

/* The first difference of a step, in device memory. All zeros: there is none. */
typedef struct {
    uint64_t now, before;       /* the hashes */
    int64_t line, piece, again; /* of the check that found it */
    int64_t found;
} rm_difference;

typedef struct {
    const void *state; /* in device memory, on a multiple of 8 */
    uint64_t bytes;    /* a multiple of 4 */
    uint64_t seed;
    uint64_t *kept;       /* device memory: its hash when it was first made */
    rm_difference *first; /* is written where it has found nothing yet */
    int64_t line, piece;  /* whatever the caller wants to read there */
    bool again;           /* so is this: it was made again, rather than read */
    bool keeps;           /* it was first made now: nothing is compared */
} rm_comparison;

RM_HD uint64_t rm_compare_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

RM_HD uint64_t rm_compare_term(uint64_t word, int64_t index, uint64_t seed) {
    return rm_compare_mix(word ^ (seed + ((uint64_t)index + 1) * 0x9E3779B97F4A7C15u));
}

/* What is done with the hash. */
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

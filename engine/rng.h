/* rng.h: counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A number is
 * a function of (seed, step, node, timestep, element), so a recomputed stage draws the same numbers, and there is no state to save.
 *
 *   key     = (seed low 32, seed high 32 ^ node)     counter = (element/4, timestep, step low 32, step high 32)
 *   output  word element%4
 *
 * A training pass is numbered by its update and its shard of the batch: `step` has the shard in its high and the update's low 32 bits in its
 * low 32 bits. The update's high 32 bits, usually zero, change the seed (rm_seed_at, rm_step_at).
 */
#ifndef RM_RNG_H
#define RM_RNG_H

#include <stdint.h>

#include "engine/host_device.h"

typedef struct { uint32_t word[4]; } rm_philox;

RM_HD rm_philox rm_philox4x32(rm_philox counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * counter.word[0];
        uint64_t b = (uint64_t)0xCD9E8D57u * counter.word[2];
        rm_philox next = {{(uint32_t)(b >> 32) ^ counter.word[1] ^ key0, (uint32_t)b,
                           (uint32_t)(a >> 32) ^ counter.word[3] ^ key1, (uint32_t)a}};
        counter = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

/* The four words of elements 4*block .. 4*block+3. */
RM_HD rm_philox rm_random4(uint64_t seed, uint64_t step, uint32_t node, uint32_t timestep, uint32_t block) {
    rm_philox counter = {{block, timestep, (uint32_t)step, (uint32_t)(step >> 32)}};
    return rm_philox4x32(counter, (uint32_t)seed, (uint32_t)(seed >> 32) ^ node);
}
RM_HD uint32_t rm_random(uint64_t seed, uint64_t step, uint32_t node, uint32_t timestep, uint64_t element) {
    return rm_random4(seed, step, node, timestep, (uint32_t)(element / 4)).word[element % 4];
}

/* Gives updates with equal low 32 bits different seeds, by a bijection that maps 0 to 0 (MurmurHash3's finaliser). */
static inline uint64_t rm_seed_at(uint64_t seed, uint64_t update) {
    uint64_t high = update >> 32;
    high = (high ^ high >> 33) * 0xFF51AFD7ED558CCDu;
    high = (high ^ high >> 33) * 0xC4CEB9FE1A85EC53u;
    return seed ^ high ^ high >> 33;
}
static inline uint64_t rm_step_at(uint64_t update, uint32_t shard) { return (uint32_t)update | (uint64_t)shard << 32; }

/* Uniform in [0,1), with 24 bits. */
RM_HD float rm_uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

#endif

/* sampler.c: the order of samples: the Mersenne Twister (mt19937: Matsumoto and Nishimura, ACM TOMACS 8(1), 1998) of
 * torch.Generator, and the shuffle of torch.randperm. Main entry: remat_sampler_create. */
#include "dist/large_batch/sampler.h"

#include "engine/abi.h"
#include "memory/host.h"

#include <assert.h>

/* ---- mt19937 ---------------------------------------------------------------------------------------------------- */

enum { WORDS = 624, SHIFT = 397 };

typedef struct {
    uint32_t word[WORDS];
    int next;
} twister;

static void twister_seed(twister *t, uint32_t seed) {
    t->word[0] = seed;
    for (uint32_t i = 1; i < WORDS; i++) t->word[i] = 1812433253u * (t->word[i - 1] ^ (t->word[i - 1] >> 30)) + i;
    t->next = WORDS;
}

static void twister_refill(twister *t) {
    for (int i = 0; i < WORDS; i++) {
        uint32_t joined = (t->word[i] & 0x80000000u) | (t->word[(i + 1) % WORDS] & 0x7fffffffu);
        t->word[i] = t->word[(i + SHIFT) % WORDS] ^ (joined >> 1) ^ ((joined & 1) ? 0x9908b0dfu : 0);
    }
    t->next = 0;
}

static uint32_t twister_draw(twister *t) {
    if (t->next == WORDS) twister_refill(t);
    uint32_t y = t->word[t->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* ---- The order -------------------------------------------------------------------------------------------------- */

struct remat_sampler {
    remat_sampler_config config;
    int64_t count;
    twister random;
    uint32_t order[]; /* n entries */
};

/* torch.randperm has two algorithms, and so must this. Up to this size, each draw of 32 bits selects the sample for the
 * next place among those not placed yet. */
#define WIDE_FROM (UINT32_MAX / 20)

static void shuffle_narrow(twister *random, uint32_t *order, int64_t n) {
    for (int64_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (int64_t i = 0; i < n - 1; i++) {
        int64_t j = i + (int64_t)(twister_draw(random) % (uint64_t)(n - i));
        uint32_t held = order[i];
        order[i] = order[j];
        order[j] = held;
    }
}

/* From this size on, the remainder of a 32-bit draw would be noticeably biased: 64 bits per draw, high word first. Each
 * new element takes the place of an earlier one, which moves to the end ("inside-out"). */
static void shuffle_wide(twister *random, uint32_t *order, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t high = twister_draw(random), draw = high << 32 | twister_draw(random);
        int64_t j = (int64_t)(draw % (uint64_t)(i + 1));
        order[i] = (uint32_t)i;
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}

void remat_sampler_set_epoch(remat_sampler *s, int64_t epoch) {
    if (!s) return;
    assert(epoch >= 0);
    int64_t n = s->config.n;
    if (!s->config.shuffle) {
        for (int64_t i = 0; i < n; i++) s->order[i] = (uint32_t)i;
        return;
    }
    /* Only the low 32 bits of the seed, as in torch */
    twister_seed(&s->random, (uint32_t)((uint64_t)s->config.seed + (uint64_t)epoch));
    (n < WIDE_FROM ? shuffle_narrow : shuffle_wide)(&s->random, s->order, n);
}

static int64_t count_per_rank(const remat_sampler_config *c) {
    return c->drop_last ? c->n / c->replicas : (c->n + c->replicas - 1) / c->replicas;
}

static remat_status check_config(const remat_sampler_config *config) {
    REQUIRE(config->n >= 1, INVALID, "the data set has %lld samples; it needs at least one", (long long)config->n);
    REQUIRE(config->n <= UINT32_MAX, INVALID, "the data set has %lld samples; at most 4294967295 can be shuffled",
            (long long)config->n);
    REQUIRE(config->replicas >= 1 && config->replicas <= INT32_MAX, INVALID,
            "there cannot be %lld replicas; use 1 or more", (long long)config->replicas);
    REQUIRE(config->rank >= 0 && config->rank < config->replicas, INVALID, "rank %lld of %lld does not exist",
            (long long)config->rank, (long long)config->replicas);
    return REMAT_OK;
}

remat_status remat_sampler_create(const remat_sampler_config *config, remat_sampler **out) {
    remat_sampler_config ours;
    NEED(config, "a config");
    NEED(out, "a place for the sampler");
    *out = NULL;
    TRY(rm_take(&ours, sizeof ours, config, "remat_sampler_config"));
    TRY(check_config(&ours));
    remat_sampler *s = rm_malloc(sizeof *s + (size_t)ours.n * sizeof s->order[0]);
    REQUIRE(s, MEMORY, "out of memory for the order of %lld samples (4 bytes each)", (long long)ours.n);
    s->config = ours;
    s->count = count_per_rank(&ours);
    remat_sampler_set_epoch(s, 0);
    *out = s;
    return REMAT_OK;
}

void remat_sampler_free(remat_sampler *s) { rm_free(s); }

int64_t remat_sampler_count(const remat_sampler *s) { return s ? s->count : 0; }

int64_t remat_sampler_at(const remat_sampler *s, int64_t k) {
    if (!s) return -1;
    assert(k >= 0 && k < s->count);
    return s->order[(s->config.rank + k * s->config.replicas) % s->config.n];
}

/* ---- Batches ---------------------------------------------------------------------------------------------------- */

int64_t rm_batch_count(int64_t samples, int64_t batch, bool drop_last) {
    return drop_last ? samples / batch : (samples + batch - 1) / batch;
}

int64_t rm_batch_length(int64_t samples, int64_t batch, int64_t k) {
    return samples - k * batch < batch ? samples - k * batch : batch;
}

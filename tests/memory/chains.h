/* chains.h: made-up chains for the tests of memory/, from a seed. Every kind has something that has gone wrong somewhere:
 * stages unlike each other, skips across many cuts, saved blocks that share a piece with a state, empty objects. */
#ifndef TEST_CHAINS_H
#define TEST_CHAINS_H

#include <string.h>

#include "memory/bytes.h"
#include "memory/problem.h"

typedef struct {
    uint64_t state;
} dice;

/* splitmix64 */
static inline uint64_t roll(dice *d) {
    uint64_t x = d->state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
static inline int64_t roll_below(dice *d, int64_t n) { return (int64_t)(roll(d) % (uint64_t)n); }

typedef struct {
    int64_t n_stages;
    bool unlike;            /* sizes vary from a tenth of the following to all of it; else they are the following */
    uint64_t state_bytes;   /* a state's own piece; 0: states are empty */
    uint64_t saved_bytes;   /* the private block */
    uint64_t scratch_bytes; /* of any run */
    int skips;              /* pieces that belong to the states of many cuts */
    bool shares;            /* saved(s) holds state(s+1)'s own piece too */
    bool lean;              /* a second option, with a fifth of the bytes */
} chain;

static inline uint64_t size_from(dice *d, const chain *c, uint64_t bytes) {
    if (c->unlike) bytes = bytes / 10 + roll(d) % (bytes - bytes / 10 + 1);
    return rm_align_up(bytes);
}

static inline rm_work work_from(dice *d, const chain *c, uint64_t time_ns) {
    return (rm_work){c->unlike ? 1 + roll(d) % time_ns : time_ns, size_from(d, c, c->scratch_bytes)};
}

static inline void stage_from(dice *d, const chain *c, rm_stage *stage) {
    stage->drop = work_from(d, c, 900);
    stage->n_options = 1 + c->lean;
    stage->option[0] =
        (rm_option){"all", size_from(d, c, c->saved_bytes), work_from(d, c, 1000), work_from(d, c, 2000)};
    if (c->lean)
        stage->option[1] = (rm_option){"lean", rm_align_up(stage->option[0].saved_bytes / 5), work_from(d, c, 950),
                                       work_from(d, c, 2300)};
}

/* Pieces: own state(0..S), own dstate(0..S-1), then for each skip one for states and one for dstates. */
static inline remat_status chain_problem(const chain *c, uint64_t seed, rm_problem *problem) {
    dice d = {seed};
    int64_t n = c->n_stages, own = n + 1, skips = c->skips;
    int64_t from[64], to[64];
    for (int64_t k = 0; k < skips; k++) {
        from[k] = 1 + roll_below(&d, n);
        to[k] = from[k] + roll_below(&d, n - from[k] + 1);
    }
    TRY(rm_problem_alloc(problem, n, own + n + 2 * skips, own * (1 + skips), own * (1 + skips), n));
    for (int64_t i = 0; i < own + n; i++)
        problem->piece[i].bytes = i == 0 || i == n || i >= own + n ? 0 : size_from(&d, c, c->state_bytes);
    if (c->unlike) problem->piece[0].bytes = problem->piece[n].bytes = c->state_bytes / 64 * 64;
    for (int64_t k = 0; k < 2 * skips; k++) problem->piece[own + n + k].bytes = size_from(&d, c, c->state_bytes);
    int64_t items[3] = {0};
    for (int64_t cut = 0; cut <= n; cut++) {
        problem->state.item[items[0]++] = (int32_t)cut;
        if (cut < n) problem->dstate.item[items[1]++] = (int32_t)(own + cut);
        if (cut < n && c->shares) problem->saved.item[items[2]++] = (int32_t)(cut + 1);
        for (int64_t k = 0; k < skips; k++) {
            if (cut < from[k] || cut > to[k]) continue;
            problem->state.item[items[0]++] = (int32_t)(own + n + k);
            if (cut < n) problem->dstate.item[items[1]++] = (int32_t)(own + n + skips + k);
        }
        problem->state.start[cut + 1] = items[0];
        problem->dstate.start[cut + 1] = items[1];
        if (cut < n) problem->saved.start[cut + 1] = items[2];
        if (cut < n) stage_from(&d, c, &problem->stage[cut]);
    }
    problem->n_resident = 2;
    problem->resident[0] = (rm_resident){"parameters", 4096};
    problem->resident[1] = (rm_resident){"optimizer state", 8200};
    return rm_problem_check(problem);
}

#endif

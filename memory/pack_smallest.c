/* pack_smallest.c: the smallest block that can be found within a limit: first what is fast (pack_greedy.c), then the exact
 * search (pack_search.c) at one capacity after another. Main entry: rm_pack_smallest.
 *
 *   floor                                                       best so far
 *     |-------------------------------|---------------|---------------|      bytes
 *    1st target                      2nd             3rd                     each with the same work
 *
 * When they come close to the best, all again with twice the work. A placement that is found moves the right end, a proof
 * that there is none the left one. */
#include <string.h>

#include "memory/host.h"
#include "memory/pack_greedy.h"

#define FITS_ROUNDS 100    /* at most, of each order, ... */
#define FITS_WORK 20000000 /* ... and no more than so many comparisons */
#define FITS_MOST 20000    /* items; above it nothing quadratic */
#define FIRST_WORK 5000000 /* for one target; twice as much each time round */

typedef struct {
    const rm_pack_item *item;
    int64_t n;
    const rm_pack_wish *wish;
    uint64_t unit, goal;
    uint64_t *trial;
    rm_packing *out;
} chooser;

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Is there nothing more to gain, or nothing left to gain it with? */
static bool over(const chooser *c) {
    const rm_pack_limit *limit = c->wish->limit;
    return c->out->bytes <= larger(c->goal, c->out->proved_bytes) ||
           (c->wish->capacity && c->out->proved_bytes > c->wish->capacity) || limit->work == 0 ||
           (limit->stop && limit->stop(limit->context));
}

static void keep_trial(chooser *c) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < c->n; i++) bytes = larger(bytes, c->trial[i] + c->item[i].bytes);
    if (bytes >= c->out->bytes) return;
    memcpy(c->out->offset, c->trial, (size_t)c->n * sizeof *c->trial);
    c->out->bytes = bytes;
}

static rm_pack_outcome try_target(chooser *c, uint64_t target, uint64_t work) {
    rm_pack_limit *whole = c->wish->limit, part = *whole;
    if (part.work > work) part.work = work;
    uint64_t given = part.work;
    rm_pack_outcome outcome = rm_pack_fit(c->item, c->n, target, &part, c->trial);
    if (whole->work != RM_PACK_ENDLESS) whole->work -= given - part.work;
    if (outcome == RM_PACK_FITS) keep_trial(c);
    if (outcome == RM_PACK_IMPOSSIBLE)
        c->out->proved_bytes = larger(c->out->proved_bytes, (target / c->unit + 1) * c->unit);
    return outcome;
}

/* One row of targets. false: out of host memory. */
static bool try_targets(chooser *c, uint64_t work) {
    uint64_t target = larger(c->goal, c->out->proved_bytes), gap = (c->out->bytes - target) / 16 + c->unit;
    while (!over(c)) {
        if (try_target(c, target, work) == RM_PACK_NO_MEMORY) return false;
        uint64_t low = target;
        if (c->out->bytes <= low + gap) break;
        target = low + (c->out->bytes - low) / 2 / c->unit * c->unit;
    }
    return true;
}

static bool search(chooser *c) {
    c->trial = rm_malloc((size_t)c->n * sizeof *c->trial);
    bool ok = c->trial != NULL;
    if (ok && c->wish->capacity && !over(c)) /* nothing else is wanted */
        ok = try_target(c, c->goal, RM_PACK_ENDLESS) != RM_PACK_NO_MEMORY;
    for (uint64_t work = FIRST_WORK; ok && !over(c); work *= 2) ok = try_targets(c, work);
    rm_free(c->trial);
    return ok;
}

static bool choose(chooser *c) {
    rm_packing *out = c->out;
    if (out->floor_bytes == UINT64_MAX) return false;
    if (!rm_pack_sweeps(c->item, c->n, c->goal, c->wish->limit, out)) return false;
    int64_t rounds = 1 + FITS_WORK / (c->n * c->n + 1);
    if (rounds > FITS_ROUNDS) rounds = FITS_ROUNDS;
    if (!over(c) && c->n <= FITS_MOST && !rm_pack_fits(c->item, c->n, c->goal, rounds, c->wish->limit, out))
        return false;
    return over(c) || search(c);
}

rm_pack_outcome rm_pack_smallest(const rm_pack_item *item, int64_t n, const rm_pack_wish *wish, rm_packing *out) {
    *out = (rm_packing){.offset = rm_malloc((size_t)n * sizeof *out->offset), .bytes = UINT64_MAX};
    chooser c = {.item = item, .n = n, .wish = wish, .unit = rm_pack_unit(item, n), .out = out};
    out->floor_bytes = out->proved_bytes = rm_pack_floor(item, n);
    c.goal = larger(out->floor_bytes + wish->slack_bytes, wish->capacity);
    if (!out->offset || !choose(&c)) {
        rm_free(out->offset);
        *out = (rm_packing){0};
        return RM_PACK_NO_MEMORY;
    }
    if (out->bytes <= larger(c.goal, out->proved_bytes)) return RM_PACK_FITS;
    return wish->capacity && out->proved_bytes > wish->capacity ? RM_PACK_IMPOSSIBLE : RM_PACK_STOPPED;
}

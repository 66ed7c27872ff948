/* pack_smallest.c: the smallest block that can be found within a work limit. Fast methods come first (pack_greedy.c),
 * then an exact search over the few items that matter (pack_critical.c), then one over all items (pack_search.c), each
 * at one capacity after another. Main entry: rm_pack_smallest.
 *
 *   floor                                                       best so far
 *     |-------------------------------|---------------|---------------|      bytes
 *    1st target                      2nd             3rd                     each with the same work
 *
 * When the targets come close to the best, all are tried again with twice the work. A placement moves the right end, a
 * proof that there is none the left end. */
#include <string.h>

#include "memory/bytes.h"
#include "memory/host.h"
#include "memory/pack_critical.h"
#include "memory/pack_greedy.h"

/* Work is counted in units of about a nanosecond (pack.h). */
#define CRITICAL_WORK 50000000 /* for one target, ... */
#define CRITICAL_WORK_EACH 2000
#define SHARES 3           /* ... but no more than a third of the remaining work */
#define FITS_LEAST 1000    /* items; with fewer, the search does better, ... */
#define FITS_MOST 20000    /* ... with more, nothing quadratic is tried */
#define FITS_ROUNDS 100    /* at most, for each order, ... */
#define FITS_WORK 20000000 /* ... but no more than this number of comparisons */
#define FIRST_WORK 5000000 /* of the search for one target; doubles in each round */

typedef struct {
    const rm_pack_item *item;
    int64_t n;
    const rm_pack_request *request;
    uint64_t unit, goal;
    uint64_t *trial;
    rm_packing *out;
} chooser;

/* Whether there is nothing more to gain, or no work left. */
static bool over(const chooser *c) {
    return c->out->bytes <= rm_larger(c->goal, c->out->proved_bytes) ||
           (c->request->capacity && c->out->proved_bytes > c->request->capacity) || rm_pack_over(c->request->limit);
}

static void keep_trial(chooser *c) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < c->n; i++) bytes = rm_larger(bytes, c->trial[i] + c->item[i].bytes);
    if (bytes >= c->out->bytes) return;
    memcpy(c->out->offset, c->trial, (size_t)c->n * sizeof *c->trial);
    c->out->bytes = bytes;
}

typedef rm_pack_outcome packer(const rm_pack_item *item, int64_t n, uint64_t capacity, rm_pack_limit *limit,
                               uint64_t *offset);

static rm_pack_outcome fit(const rm_pack_item *item, int64_t n, uint64_t capacity, rm_pack_limit *limit,
                           uint64_t *offset) {
    return rm_pack_fit(item, NULL, n, capacity, limit, offset);
}

static rm_pack_outcome try_target(chooser *c, packer *pack, uint64_t target, uint64_t work) {
    rm_pack_limit *whole = c->request->limit, part = *whole;
    if (part.work > work) part.work = work;
    uint64_t given = part.work;
    rm_pack_outcome outcome = pack(c->item, c->n, target, &part, c->trial);
    rm_pack_spend(whole, given - part.work);
    if (outcome == RM_PACK_FITS) keep_trial(c);
    if (outcome == RM_PACK_IMPOSSIBLE)
        c->out->proved_bytes = rm_larger(c->out->proved_bytes, (target / c->unit + 1) * c->unit);
    return outcome;
}

/* Tries one row of targets. Returns false if out of host memory. */
static bool try_targets(chooser *c, uint64_t work) {
    uint64_t target = rm_larger(c->goal, c->out->proved_bytes), gap = (c->out->bytes - target) / 16 + 2 * c->unit;
    while (!over(c)) {
        if (try_target(c, fit, target, work) == RM_PACK_NO_MEMORY) return false;
        uint64_t low = target;
        if (c->out->bytes <= low + gap) break;
        target = low + (c->out->bytes - low) / 2 / c->unit * c->unit;
    }
    return true;
}

static bool search(chooser *c) {
    if (c->request->capacity && !over(c)) /* any block up to this size will do */
        return try_target(c, fit, c->goal, RM_PACK_ENDLESS) != RM_PACK_NO_MEMORY;
    bool ok = true; /* the last row may use all remaining work */
    for (uint64_t work = FIRST_WORK; ok && !over(c) && work / 2 < c->request->limit->work; work *= 2)
        ok = try_targets(c, work);
    return ok;
}

/* Tries the goal, then ever larger targets until one works. */
static bool try_critical(chooser *c) {
    static const double more[] = {0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2};
    for (size_t k = 0; k < sizeof more / sizeof more[0] && !over(c); k++) {
        uint64_t target = c->goal + (uint64_t)(more[k] * (double)c->goal) / c->unit * c->unit;
        if (target >= c->out->bytes || (k > 0 && c->request->capacity)) return true;
        uint64_t most = CRITICAL_WORK + CRITICAL_WORK_EACH * (uint64_t)c->n, share = c->request->limit->work / SHARES;
        rm_pack_outcome outcome = try_target(c, rm_pack_critical, target, share < most ? share : most);
        if (outcome == RM_PACK_NO_MEMORY) return false;
        if (outcome == RM_PACK_FITS) return true;
    }
    return true;
}

static bool try_fits(chooser *c) {
    int64_t rounds = 1 + FITS_WORK / (c->n * c->n);
    return rm_pack_fits(c->item, c->n, c->goal, rounds < FITS_ROUNDS ? rounds : FITS_ROUNDS, c->request->limit, c->out);
}

static bool choose(chooser *c) {
    rm_packing *out = c->out;
    if (out->floor_bytes == UINT64_MAX || !c->trial || !out->offset) return false;
    if (!rm_pack_sweep_floor(c->item, c->n, c->goal, c->request->limit, out)) return false;
    if (!over(c) && !try_critical(c)) return false;
    if (!over(c) && !rm_pack_sweep_above(c->item, c->n, c->goal, c->request->limit, out)) return false;
    if (!over(c) && c->n >= FITS_LEAST && c->n <= FITS_MOST && !try_fits(c)) return false;
    return search(c);
}

rm_pack_outcome rm_pack_smallest(const rm_pack_item *item, int64_t n, const rm_pack_request *request, rm_packing *out) {
    *out = (rm_packing){.offset = rm_malloc((size_t)n * sizeof *out->offset), .bytes = UINT64_MAX};
    chooser c = {.item = item, .n = n, .request = request, .unit = rm_pack_unit(item, n), .out = out};
    out->floor_bytes = out->proved_bytes = rm_pack_floor(item, n);
    c.goal = rm_larger(out->floor_bytes + (uint64_t)(request->slack * (double)out->floor_bytes), request->capacity);
    c.trial = rm_malloc((size_t)n * sizeof *c.trial);
    bool ok = choose(&c);
    rm_free(c.trial);
    if (!ok) {
        rm_free(out->offset);
        *out = (rm_packing){0};
        return RM_PACK_NO_MEMORY;
    }
    if (request->capacity && out->proved_bytes > request->capacity) return RM_PACK_IMPOSSIBLE;
    return out->bytes <= rm_larger(c.goal, out->proved_bytes) ? RM_PACK_FITS : RM_PACK_STOPPED;
}

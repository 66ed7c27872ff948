/* place.c: buffers with known lifetimes into one block (place.h). Finding the smallest block is NP-hard; what a plan asks
 * for is easy, because most of its buffers come and go like a stack. So: try something fast, stop as soon as the block is
 * as small as the floor, and spend more only where that failed.
 *
 *   1. sweeps     through time, as an allocator would, but in a block of given size and with two ends: buffers that
 *                 live long are stacked from the low end, those that live at most K steps hang from the high end.
 *
 *                    | saved 0 | state 1 | saved 1 | ...  ->      free      <- ... | scratch | dstate 2 | dstate 1 |
 *
 *                 Several K are tried, first in a block of exactly the floor, then in larger ones. O(n log n) each.
 *   2. fits       in an order that is not time's (large ones first, ...), each at the lowest place that is free all its
 *                 life. O(n^2), so for small plans alone. An exact search for hard cases would come after these.
 *
 * Main entry: rm_place. rm_placement_check, the second opinion, is in place_check.c.
 */
#include "memory/place.h"

#include <stdlib.h>
#include <string.h>

#include "engine/tensor.h"
#include "memory/holes.h"
#include "memory/host.h"

#define SMALL_PLAN 4000   /* buffers; above it nothing quadratic */
#define MOST_ROUNDS 1000  /* of fits in each order, */
#define FIT_WORK 30000000 /* and no more than so many comparisons */

typedef struct {
    const rm_lifetime *item;
    int64_t n;
    int32_t *by_end; /* n: buffers by `last` */
    uint64_t *trial; /* n: offsets of the attempt that is being made */
    uint64_t *best;  /* n: offsets of the best so far */
    uint64_t best_bytes, floor_bytes;
    rm_holes holes;
} packer;

typedef enum { FITS, TOO_SMALL, NO_MEMORY } outcome;

static uint64_t size_of(const rm_lifetime *item) { return rm_align_up(item->bytes); }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* A trial succeeded: remember it if nothing better is known. */
static void keep_if_better(packer *p, uint64_t bytes) {
    if (bytes >= p->best_bytes) return;
    uint64_t *swap = p->best;
    p->best = p->trial;
    p->trial = swap;
    p->best_bytes = bytes;
}

static bool perfect(const packer *p) { return p->best_bytes == p->floor_bytes; }

/* In a large plan, a thousandth is not worth more sweeps of a million buffers. */
static bool good_enough(const packer *p) {
    uint64_t allowed = p->n > SMALL_PLAN ? p->floor_bytes / 1000 : 0;
    return p->best_bytes - p->floor_bytes <= allowed;
}

/* ---- What is known before anything is placed ---------------------------------------------------- */

static remat_status require_sense(const rm_lifetimes *lifetimes) {
    REQUIRE(lifetimes->count < INT32_MAX, INVALID, "%lld buffers are more than can be placed",
            (long long)lifetimes->count);
    uint64_t sum = 0;
    for (int64_t i = 0; i < lifetimes->count; i++) {
        const rm_lifetime *item = &lifetimes->item[i];
        REQUIRE(item->first >= 0 && item->first <= item->last, INVALID, "buffer %lld lives from step %lld to step %lld",
                (long long)i, (long long)item->first, (long long)item->last);
        REQUIRE(i == 0 || item->first >= item[-1].first, INVALID, "buffer %lld begins before the one listed before it",
                (long long)i);
        REQUIRE(item->bytes < (uint64_t)1 << 60 && (sum += size_of(item)) < (uint64_t)1 << 61, INVALID,
                "the buffers' bytes add up to more than 2^60");
    }
    return REMAT_OK;
}

/* Buffers by `last`, those that end together in the order they began: counting sort, 11 bits at a time. */
static bool order_by_end(packer *p) {
    enum { BITS = 11, BUCKETS = 1 << BITS };
    int32_t *from = p->by_end, *to = rm_malloc((size_t)p->n * sizeof *to);
    if (!to) return false;
    int64_t latest = 0;
    for (int64_t i = 0; i < p->n; i++) {
        from[i] = (int32_t)i;
        if (p->item[i].last > latest) latest = p->item[i].last;
    }
    for (int shift = 0; shift < 63 && latest >> shift > 0; shift += BITS) {
        int32_t start[BUCKETS + 1] = {0};
        for (int64_t i = 0; i < p->n; i++) start[(p->item[from[i]].last >> shift & (BUCKETS - 1)) + 1]++;
        for (int b = 0; b < BUCKETS; b++) start[b + 1] += start[b];
        for (int64_t i = 0; i < p->n; i++) to[start[p->item[from[i]].last >> shift & (BUCKETS - 1)]++] = from[i];
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    p->by_end = from;
    rm_free(to);
    return true;
}

static uint64_t most_alive(const packer *p) {
    uint64_t alive = 0, most = 0;
    for (int64_t i = 0, ended = 0; i < p->n; i++) {
        for (; p->item[p->by_end[ended]].last < p->item[i].first; ended++) alive -= size_of(&p->item[p->by_end[ended]]);
        alive += size_of(&p->item[i]);
        most = larger(most, alive);
    }
    return most;
}

/* ---- Sweeps ------------------------------------------------------------------------------------- */

/* Into a block of `limit` bytes; those that live at most `short_steps` from the high end. */
static outcome sweep(packer *p, uint64_t limit, int64_t short_steps, uint64_t *bytes) {
    *bytes = 0;
    if (!rm_holes_begin(&p->holes, limit)) return NO_MEMORY;
    for (int64_t i = 0, ended = 0; i < p->n; i++) {
        const rm_lifetime *item = &p->item[i];
        for (; p->item[p->by_end[ended]].last < item->first; ended++) {
            int32_t old = p->by_end[ended];
            if (!rm_holes_give(&p->holes, p->trial[old], size_of(&p->item[old]))) return NO_MEMORY;
        }
        bool high = item->last - item->first < short_steps;
        bool placed = (high ? rm_holes_take_high : rm_holes_take_low)(&p->holes, size_of(item), &p->trial[i]);
        if (!placed) return TOO_SMALL;
        *bytes = larger(*bytes, p->trial[i] + size_of(item));
    }
    return FITS;
}

static outcome try_sweep(packer *p, uint64_t limit, int64_t short_steps) {
    uint64_t bytes;
    outcome outcome = sweep(p, limit, short_steps, &bytes);
    if (outcome == FITS) keep_if_better(p, bytes);
    return outcome;
}

static const int64_t short_steps[] = {1, 8, 16, 64, 512, 4096};
enum { N_SHORT = sizeof short_steps / sizeof short_steps[0] };

/* The smallest block, to about a 64th of what is to be gained, in which this sweep works. */
static outcome bisect(packer *p, int64_t steps) {
    uint64_t too_small = p->floor_bytes, gap = (p->best_bytes - p->floor_bytes) / 64 + RM_ALIGN;
    outcome outcome = FITS;
    for (uint64_t most = p->best_bytes; outcome != NO_MEMORY && most > too_small + gap;) {
        uint64_t limit = (too_small + (most - too_small) / 2) & ~(uint64_t)(RM_ALIGN - 1);
        outcome = try_sweep(p, limit, steps);
        *(outcome == FITS ? &most : &too_small) = limit;
    }
    return outcome;
}

static outcome try_sweeps(packer *p) {
    /* From one end there is always room; also the upper limit for everything that follows. */
    outcome outcome = try_sweep(p, (uint64_t)1 << 62, 0);
    for (int k = 0; k < N_SHORT && outcome != NO_MEMORY && !good_enough(p); k++)
        outcome = try_sweep(p, p->floor_bytes, short_steps[k]);
    for (int k = 0; k < N_SHORT && outcome != NO_MEMORY && !good_enough(p); k++) outcome = bisect(p, short_steps[k]);
    return outcome;
}

/* ---- Fits --------------------------------------------------------------------------------------- */

typedef struct {
    int32_t id;
    double rank; /* placed from the highest down */
} turn;

static int by_rank(const void *a, const void *b) {
    const turn *x = a, *y = b;
    if (x->rank != y->rank) return x->rank > y->rank ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Each in its turn at the lowest place that is free during its whole life. placed[0..count-1]: the buffers that have
 * their place, by offset. */
static uint64_t fit(packer *p, const turn *turns, int32_t *placed) {
    uint64_t bytes = 0;
    for (int64_t count = 0; count < p->n; count++) {
        int32_t id = turns[count].id;
        const rm_lifetime *item = &p->item[id];
        uint64_t at = 0;
        for (int64_t k = 0; k < count; k++) {
            const rm_lifetime *other = &p->item[placed[k]];
            if (other->last < item->first || other->first > item->last) continue;
            if (p->trial[placed[k]] >= at + size_of(item)) break;
            at = larger(at, p->trial[placed[k]] + size_of(other));
        }
        p->trial[id] = at;
        bytes = larger(bytes, at + size_of(item));
        int64_t k = count;
        for (; k > 0 && p->trial[placed[k - 1]] > at; k--) placed[k] = placed[k - 1];
        placed[k] = id;
    }
    return bytes;
}

typedef enum { BY_SIZE, BY_AREA, BY_LIFE, N_ORDERS } order;

static double rank_in(order order, const rm_lifetime *item) {
    double size = (double)size_of(item), life = (double)(item->last - item->first + 1);
    return order == BY_SIZE ? size + life * 1e-9 : order == BY_AREA ? size * life : life + size * 1e-18;
}

/* A fraction of the whole order, different in each round so that the same orders do not come round again. */
static double leap(int64_t round) { return 0.05 + (double)(round * 37 % 101) / 101; }

/* Where the block came out too large, the buffers that stick out had their turn too late: they move up, and everything is
 * placed again (Joslin and Clements, "Squeaky wheel optimization", 1999). */
static void fit_in_order(packer *p, order order, turn *turns, int32_t *placed, int64_t rounds) {
    for (int64_t i = 0; i < p->n; i++) turns[i] = (turn){(int32_t)i, rank_in(order, &p->item[i])};
    for (int64_t r = 0; r < rounds && !perfect(p); r++) {
        qsort(turns, (size_t)p->n, sizeof *turns, by_rank);
        uint64_t bytes = fit(p, turns, placed);
        for (int64_t i = 0; i < p->n; i++) {
            int32_t id = turns[i].id;
            bool sticks_out = p->trial[id] + size_of(&p->item[id]) > p->floor_bytes;
            turns[i].rank = (double)(p->n - i) + (sticks_out ? leap(r) * (double)p->n : 0);
        }
        keep_if_better(p, bytes);
    }
}

static outcome try_fits(packer *p) {
    turn *turns = rm_malloc((size_t)p->n * sizeof *turns);
    int32_t *placed = rm_malloc((size_t)p->n * sizeof *placed);
    int64_t rounds = 1 + FIT_WORK / (p->n * p->n + 1);
    if (rounds > MOST_ROUNDS) rounds = MOST_ROUNDS;
    for (order order = BY_SIZE; turns && placed && order < N_ORDERS && !perfect(p); order++)
        fit_in_order(p, order, turns, placed, rounds);
    outcome outcome = turns && placed ? FITS : NO_MEMORY;
    rm_free(turns);
    rm_free(placed);
    return outcome;
}

/* ---- All together ------------------------------------------------------------------------------- */

remat_status rm_place(const rm_lifetimes *lifetimes, rm_placement *out) {
    *out = (rm_placement){0};
    TRY(require_sense(lifetimes));
    size_t n = (size_t)lifetimes->count;
    packer p = {.item = lifetimes->item, .n = lifetimes->count, .best_bytes = UINT64_MAX};
    p.by_end = rm_malloc(n * sizeof *p.by_end);
    p.trial = rm_malloc(n * sizeof *p.trial);
    p.best = rm_malloc(n * sizeof *p.best);
    outcome outcome = p.by_end && p.trial && p.best && order_by_end(&p) ? FITS : NO_MEMORY;
    if (outcome == FITS) {
        p.floor_bytes = most_alive(&p);
        outcome = try_sweeps(&p);
        if (outcome != NO_MEMORY && !perfect(&p) && p.n <= SMALL_PLAN) outcome = try_fits(&p);
    }
    rm_holes_free(&p.holes);
    rm_free(p.by_end);
    rm_free(p.trial);
    *out = (rm_placement){.offset = p.best, .bytes = p.best_bytes, .floor_bytes = p.floor_bytes};
    if (outcome != NO_MEMORY) return REMAT_OK;
    rm_placement_free(out);
    FAIL(MEMORY, "out of host memory to place %zu buffers", n);
}

void rm_placement_free(rm_placement *placement) {
    rm_free(placement->offset);
    *placement = (rm_placement){0};
}

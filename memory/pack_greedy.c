/* pack_greedy.c: placements made in a single pass. Finding the smallest block is NP-hard, but plans are easy instances,
 * because most of their buffers come and go like a stack.
 *
 *   1. sweeps     through time, as an allocator would, but in a block of given size and from two ends: long-lived buffers
 *                 stack from the low end, those that live at most K steps from the high end.
 *
 *                    | saved 0 | state 1 | saved 1 | ...  ->      free      <- ... | scratch | dstate 2 | dstate 1 |
 *
 *                 Several K are tried, first in a block of exactly the floor, then in larger ones. O(n log n) each.
 *   2. fits       in another order (large ones first, ...), each at the lowest place that is free during its whole
 *                 lifetime. O(n^2).
 *
 * Where both fail, pack_search.c goes on. Main entries: rm_pack_floor, rm_pack_sweeps, rm_pack_fits. */
#include "memory/pack_greedy.h"

#include <stdlib.h>
#include <string.h>

#include "memory/bytes.h"
#include "memory/holes.h"
#include "memory/host.h"

typedef struct {
    const rm_pack_item *item;
    int64_t n;
    int32_t *by_end; /* length n: items by `last` */
    uint64_t *trial; /* length n: offsets of the current attempt */
    uint64_t unit;   /* divides all sizes */
    uint64_t goal_bytes;
    rm_pack_limit *limit;
    rm_packing *best;
    rm_holes holes;
} packer;

#define SPEND_EVERY 64

typedef enum { FITS, TOO_SMALL, NO_MEMORY } outcome;

/* Records a successful trial if it is better than the best so far. */
static void keep_if_better(packer *p, uint64_t bytes) {
    if (bytes >= p->best->bytes) return;
    memcpy(p->best->offset, p->trial, (size_t)p->n * sizeof *p->trial);
    p->best->bytes = bytes;
}

static bool enough(const packer *p) { return p->best->bytes <= p->goal_bytes || rm_pack_over(p->limit); }

/* ---- Before anything is placed ------------------------------------------------------------------ */

/* Items by `last`, ties in the order in which they begin: a counting sort, 11 bits at a time. */
static int32_t *order_by_end(const rm_pack_item *item, int64_t n) {
    enum { BITS = 11, BUCKETS = 1 << BITS };
    int32_t *from = rm_malloc((size_t)n * sizeof *from), *to = rm_malloc((size_t)n * sizeof *to);
    int64_t latest = 0;
    for (int64_t i = 0; i < n && from && to; i++) {
        from[i] = (int32_t)i;
        if (item[i].last > latest) latest = item[i].last;
    }
    for (int shift = 0; shift < 63 && latest >> shift > 0; shift += BITS) {
        int32_t start[BUCKETS + 1] = {0};
        for (int64_t i = 0; i < n; i++) start[(item[from[i]].last >> shift & (BUCKETS - 1)) + 1]++;
        for (int b = 0; b < BUCKETS; b++) start[b + 1] += start[b];
        for (int64_t i = 0; i < n; i++) to[start[item[from[i]].last >> shift & (BUCKETS - 1)]++] = from[i];
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    rm_free(to);
    if (to) return from;
    rm_free(from);
    return NULL;
}

static uint64_t most_alive(const rm_pack_item *item, int64_t n, const int32_t *by_end) {
    uint64_t alive = 0, most = 0;
    for (int64_t i = 0, ended = 0; i < n; i++) {
        for (; item[by_end[ended]].last < item[i].first; ended++) alive -= item[by_end[ended]].bytes;
        alive += item[i].bytes;
        most = rm_larger(most, alive);
    }
    return most;
}

uint64_t rm_pack_floor(const rm_pack_item *item, int64_t n) {
    int32_t *by_end = order_by_end(item, n);
    uint64_t most = by_end ? most_alive(item, n, by_end) : UINT64_MAX;
    rm_free(by_end);
    return most;
}

uint64_t rm_pack_unit(const rm_pack_item *item, int64_t n) {
    uint64_t unit = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t a = item[i].bytes;
        while (unit) { /* Euclid's algorithm */
            uint64_t rest = a % unit;
            a = unit;
            unit = rest;
        }
        unit = a;
    }
    return unit;
}

/* ---- Sweeps ------------------------------------------------------------------------------------- */

/* Places into a block of `limit` bytes; items that live at most `short_steps` hang from the high end. */
static outcome sweep(packer *p, uint64_t limit, int64_t short_steps, uint64_t *bytes) {
    *bytes = 0;
    if (!rm_holes_begin(&p->holes, limit)) return NO_MEMORY;
    for (int64_t i = 0, ended = 0; i < p->n; i++) {
        if (i % SPEND_EVERY == 0) rm_pack_spend(p->limit, 50 * SPEND_EVERY);
        const rm_pack_item *item = &p->item[i];
        for (; p->item[p->by_end[ended]].last < item->first; ended++) {
            int32_t old = p->by_end[ended];
            if (!rm_holes_give(&p->holes, p->trial[old], p->item[old].bytes)) return NO_MEMORY;
        }
        bool high = item->last - item->first < short_steps;
        bool placed = (high ? rm_holes_take_high : rm_holes_take_low)(&p->holes, item->bytes, &p->trial[i]);
        if (!placed) return TOO_SMALL;
        *bytes = rm_larger(*bytes, p->trial[i] + item->bytes);
    }
    return FITS;
}

static outcome try_sweep(packer *p, uint64_t limit, int64_t short_steps) {
    uint64_t bytes;
    outcome outcome = sweep(p, limit, short_steps, &bytes);
    if (outcome == FITS) keep_if_better(p, bytes);
    return outcome;
}

static const int64_t short_steps[] = {1, 4, 8, 16, 64, 512, 4096};
enum { N_SHORT = sizeof short_steps / sizeof short_steps[0] };
/* items; with more, the first sweep that reaches the goal is taken, since a search would take half a second */
enum { MANY = 100000 };

/* The smallest block in which this sweep works, to about 1/64 of the possible gain. */
static outcome bisect(packer *p, int64_t steps) {
    uint64_t too_small = p->best->floor_bytes, gap = (p->best->bytes - too_small) / 64 + p->unit;
    outcome outcome = FITS;
    for (uint64_t most = p->best->bytes; outcome != NO_MEMORY && most > too_small + gap;) {
        uint64_t limit = too_small + (most - too_small) / 2 / p->unit * p->unit;
        outcome = try_sweep(p, limit, steps);
        *(outcome == FITS ? &most : &too_small) = limit;
    }
    return outcome;
}

static outcome sweep_floor(packer *p) {
    /* one end alone always works; this is also the upper limit for all later attempts */
    outcome outcome = try_sweep(p, (uint64_t)1 << 62, 0);
    for (int k = 0; k < N_SHORT && outcome != NO_MEMORY && !enough(p); k++)
        outcome = try_sweep(p, p->best->floor_bytes, short_steps[k]);
    if (p->n <= MANY) return outcome;
    uint64_t goal = p->goal_bytes / p->unit * p->unit;
    for (int k = 0; k < N_SHORT && outcome != NO_MEMORY && !enough(p); k++)
        outcome = try_sweep(p, goal, short_steps[k]);
    return outcome;
}

static outcome sweep_above(packer *p) {
    outcome outcome = TOO_SMALL;
    for (int k = 0; k < N_SHORT && outcome != NO_MEMORY && !enough(p); k++) outcome = bisect(p, short_steps[k]);
    return outcome;
}

static bool run_sweeps(outcome (*run)(packer *), const rm_pack_item *item, int64_t n, uint64_t goal_bytes,
                       rm_pack_limit *limit, rm_packing *out) {
    packer p = {.item = item, .n = n, .goal_bytes = goal_bytes, .limit = limit, .best = out};
    p.unit = rm_pack_unit(item, n);
    p.by_end = order_by_end(item, n);
    p.trial = rm_malloc((size_t)n * sizeof *p.trial);
    bool ok = p.by_end && p.trial && run(&p) != NO_MEMORY;
    rm_holes_free(&p.holes);
    rm_free(p.by_end);
    rm_free(p.trial);
    return ok;
}

bool rm_pack_sweep_floor(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, rm_pack_limit *limit,
                         rm_packing *out) {
    return run_sweeps(sweep_floor, item, n, goal_bytes, limit, out);
}

bool rm_pack_sweep_above(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, rm_pack_limit *limit,
                         rm_packing *out) {
    return run_sweeps(sweep_above, item, n, goal_bytes, limit, out);
}

/* ---- Fits --------------------------------------------------------------------------------------- */

typedef struct {
    int32_t id;
    double rank; /* highest rank first */
} turn;

static int by_rank(const void *a, const void *b) {
    const turn *x = a, *y = b;
    if (x->rank != y->rank) return x->rank > y->rank ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Places each item in turn at the lowest place that is free during its whole lifetime. placed[0..count-1]: the items
 * placed so far, by offset. */
static uint64_t fit(packer *p, const turn *turns, int32_t *placed) {
    uint64_t bytes = 0;
    for (int64_t count = 0; count < p->n; count++) {
        int32_t id = turns[count].id;
        const rm_pack_item *item = &p->item[id];
        uint64_t at = 0;
        for (int64_t k = 0; k < count; k++) {
            const rm_pack_item *other = &p->item[placed[k]];
            if (other->last < item->first || other->first > item->last) continue;
            if (p->trial[placed[k]] >= at + item->bytes) break;
            at = rm_larger(at, p->trial[placed[k]] + other->bytes);
        }
        p->trial[id] = at;
        bytes = rm_larger(bytes, at + item->bytes);
        int64_t k = count;
        for (; k > 0 && p->trial[placed[k - 1]] > at; k--) placed[k] = placed[k - 1];
        placed[k] = id;
    }
    return bytes;
}

typedef enum { BY_SIZE, BY_AREA, BY_LIFE, N_ORDERS } order;

static double rank_in(order order, const rm_pack_item *item) {
    double size = (double)item->bytes, life = (double)(item->last - item->first + 1);
    return order == BY_SIZE ? size + life * 1e-9 : order == BY_AREA ? size * life : life + size * 1e-18;
}

/* A fraction of the whole order. It differs between rounds, so that orders do not repeat. */
static double leap(int64_t round) { return 0.05 + (double)(round * 37 % 101) / 101; }

/* If the block is too large, the items that stick out were placed too late. They move forward in the order, and
 * everything is placed again (Joslin and Clements, "Squeaky wheel optimization", 1999). */
static void fit_in_order(packer *p, order order, turn *turns, int32_t *placed, int64_t rounds) {
    for (int64_t i = 0; i < p->n; i++) turns[i] = (turn){(int32_t)i, rank_in(order, &p->item[i])};
    uint64_t cost = 2 * (uint64_t)(p->n * p->n);
    for (int64_t r = 0; r < rounds && p->limit->work >= cost && !enough(p); r++) {
        qsort(turns, (size_t)p->n, sizeof *turns, by_rank);
        uint64_t bytes = fit(p, turns, placed);
        rm_pack_spend(p->limit, cost);
        for (int64_t i = 0; i < p->n; i++) {
            int32_t id = turns[i].id;
            bool sticks_out = p->trial[id] + p->item[id].bytes > p->best->floor_bytes;
            turns[i].rank = (double)(p->n - i) + (sticks_out ? leap(r) * (double)p->n : 0);
        }
        keep_if_better(p, bytes);
    }
}

bool rm_pack_fits(const rm_pack_item *item, int64_t n, uint64_t goal_bytes, int64_t rounds, rm_pack_limit *limit,
                  rm_packing *out) {
    packer p = {.item = item, .n = n, .goal_bytes = goal_bytes, .limit = limit, .best = out};
    p.trial = rm_malloc((size_t)n * sizeof *p.trial);
    turn *turns = rm_malloc((size_t)n * sizeof *turns);
    int32_t *placed = rm_malloc((size_t)n * sizeof *placed);
    bool ok = p.trial && turns && placed;
    for (order order = BY_SIZE; ok && order < N_ORDERS && !enough(&p); order++)
        fit_in_order(&p, order, turns, placed, rounds);
    rm_free(p.trial);
    rm_free(turns);
    rm_free(placed);
    return ok;
}

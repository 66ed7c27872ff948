/* pack_critical.c: places many items by an exact search over a few of them. Most of a long plan is far below the peak,
 * so few items decide how large the block must be. The exact search places these; all other items go around them, each
 * as low as possible, the longest-lived first. If one of them finds no room, the items alive with it become critical
 * too, and everything is placed again.
 *
 *    bytes ^        .--.   <- these moments decide          1. items alive at the highest moments: rm_pack_fit
 *          |  .--.  |  |      .-.                           2. all others, by length of life
 *          | _|  |__|  |_.--._| |__                         3. one does not fit? 1. again, with the items alive there
 *          +----------------------> time
 *
 * Where thousands of items are alive together, most of their lifetimes are nested, and they stack without gaps. These
 * form the ground, which is placed first. pack_search.c, in contrast, decides about every item and suits a few hundred;
 * a hundred thousand are placed here in a fraction of a second. Main entry: rm_pack_critical. */
#include "memory/pack_critical.h"

#include <stdlib.h>
#include <string.h>

#include "memory/host.h"
#include "memory/pack_moments.h"

#define FIRST_CRITICAL 40    /* about how many items are critical at first */
#define MOST_CRITICAL 600    /* gives up with more critical items */
#define MOST_ALIVE 100       /* items at the highest moment that are not part of the ground */
#define MOST_STUCK 6         /* unplaced items considered in each round */
#define SEARCH_WORK 10000000 /* units of about a nanosecond for the search of each round, ... */
#define SEARCHES 4           /* ... but no more than a quarter of the total */

typedef enum { OTHER, GROUND, CRITICAL } role;

typedef struct {
    const rm_pack_item *item;
    int32_t n;
    uint64_t capacity;
    rm_pack_limit *limit;
    uint64_t search_work; /* limit of each search */
    uint64_t *offset;
    rm_pack_moments moments;
    uint8_t *role;     /* by item */
    int32_t *longest;  /* items, longest-lived first */
    int32_t *critical; /* the critical items, ascending */
    int32_t n_critical, n_ground;
} packer;

/* ---- Creation ----------------------------------------------------------------------------------- */

typedef struct {
    int64_t life;
    uint64_t bytes;
    int32_t i;
} turn;

static int longest_first(const void *a, const void *b) {
    const turn *x = a, *y = b;
    if (x->life != y->life) return x->life > y->life ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return (x->i > y->i) - (x->i < y->i);
}

static bool order_by_life(packer *p) {
    turn *turns = rm_malloc((size_t)p->n * sizeof *turns);
    if (!turns) return false;
    for (int32_t i = 0; i < p->n; i++) turns[i] = (turn){rm_pack_life(&p->item[i]), p->item[i].bytes, i};
    qsort(turns, (size_t)p->n, sizeof *turns, longest_first);
    for (int32_t i = 0; i < p->n; i++) p->longest[i] = turns[i].i;
    rm_free(turns);
    return true;
}

static bool create(packer *p) {
    size_t n = (size_t)p->n;
    p->role = rm_calloc(n, sizeof *p->role);
    p->longest = rm_malloc(n * sizeof *p->longest);
    p->critical = rm_malloc(n * sizeof *p->critical);
    return p->role && p->longest && p->critical && rm_pack_moments_create(&p->moments, p->item, p->n) &&
           order_by_life(p);
}

static void destroy(packer *p) {
    rm_pack_moments_free(&p->moments);
    rm_free(p->role);
    rm_free(p->longest);
    rm_free(p->critical);
}

static int32_t highest_moment(const packer *p, int32_t begin, int32_t end) {
    const uint64_t *load = p->moments.load;
    int32_t best = begin;
    for (int32_t k = begin; k < end; k++)
        if (load[k] > load[best]) best = k;
    return best;
}

/* ---- The ground --------------------------------------------------------------------------------- */

/* Returns n_long: all but MOST_ALIVE of the items alive at the highest moment are among longest[0..n_long-1]. */
static int32_t count_long(const packer *p) {
    int32_t moment = highest_moment(p, 0, p->n), alive = 0, n_long = p->n;
    while (n_long > 0) {
        int32_t i = p->longest[n_long - 1];
        alive += i <= moment && moment < p->moments.end[i];
        if (alive > MOST_ALIVE) break;
        n_long--;
    }
    return n_long;
}

/* Adds one at `moment`; returns the sum up to and including it (Fenwick, "A new data structure for cumulative frequency
 * tables", 1994). */
static void count_one(int32_t *tree, int32_t n, int32_t moment) {
    for (int32_t k = moment + 1; k <= n; k += k & -k) tree[k]++;
}
static int32_t counted(const int32_t *tree, int32_t moment) {
    int32_t sum = 0;
    for (int32_t k = moment + 1; k > 0; k -= k & -k) sum += tree[k];
    return sum;
}

/* Items with nested lifetimes stack without gaps. An item that begins inside many others and outlives them does not.
 * The ground therefore consists of those of longest[0..n_long-1] that cross at most sqrt(n_long) others. Returns false
 * if out of memory. */
static bool choose_ground(packer *p, int32_t n_long) {
    const int32_t *end = p->moments.end;
    int32_t *ends = rm_calloc((size_t)p->n + 2, sizeof *ends);
    if (!ends) return false;
    for (int32_t k = 0; k < n_long; k++) p->role[p->longest[k]] = GROUND;
    for (int32_t i = 0; i < p->n; i++) {
        if (p->role[i] != GROUND) continue;
        int64_t crossed = counted(ends, end[i] - 1) - counted(ends, i); /* number that end inside its lifetime */
        count_one(ends, p->n + 1, end[i]);
        if (crossed * crossed > n_long) p->role[i] = OTHER;
    }
    rm_free(ends);
    return true;
}

/* Returns false if it does not fit. */
static bool lay_ground(packer *p, int32_t n_long) {
    for (int32_t k = 0; k < n_long; k++) {
        int32_t i = p->longest[k];
        if (p->role[i] != GROUND) continue;
        p->offset[i] = rm_pack_ground(&p->moments, i);
        uint64_t top = p->offset[i] + p->item[i].bytes;
        if (top > p->capacity) return false;
        rm_pack_raise_ground(&p->moments, i, top);
        p->n_ground++;
    }
    rm_pack_spend(p->limit, 200 * (uint64_t)n_long);
    return true;
}

/* ---- Critical items ----------------------------------------------------------------------------- */

static void matters(packer *p, int32_t i) {
    if (p->role[i] != OTHER) return;
    p->role[i] = CRITICAL;
    int32_t to = p->n_critical++;
    for (; to > 0 && p->critical[to - 1] > i; to--) p->critical[to] = p->critical[to - 1];
    p->critical[to] = i;
}

static void moment_matters(packer *p, int32_t moment) {
    for (int32_t k = 0; k <= moment; k++)
        if (p->moments.end[k] > moment) matters(p, k);
    rm_pack_spend(p->limit, (uint64_t)moment);
}

/* Takes the highest moments, one after another, until enough items are alive in them. */
static void choose_first(packer *p) {
    enum { TOP = 32 };
    const uint64_t *load = p->moments.load;
    int32_t top[TOP], n_top = 0;
    for (int32_t k = 0; k < p->n; k++) {
        if (k + 1 < p->n && load[k + 1] >= load[k]) continue; /* the load is still rising */
        if (n_top == TOP && load[k] <= load[top[TOP - 1]]) continue;
        int32_t to = n_top < TOP ? n_top++ : TOP - 1;
        for (; to > 0 && load[top[to - 1]] < load[k]; to--) top[to] = top[to - 1];
        top[to] = k;
    }
    for (int32_t t = 0; t < n_top && p->n_critical < FIRST_CRITICAL; t++) moment_matters(p, top[t]);
}

/* ---- All items ---------------------------------------------------------------------------------- */

static rm_pack_outcome search_critical(packer *p, rm_pack_item *item, uint64_t *above, uint64_t *offset) {
    for (int32_t c = 0; c < p->n_critical; c++) {
        item[c] = p->item[p->critical[c]];
        above[c] = rm_pack_ground(&p->moments, p->critical[c]);
    }
    rm_pack_limit part = *p->limit;
    if (part.work > p->search_work) part.work = p->search_work;
    uint64_t given = part.work;
    rm_pack_outcome outcome = rm_pack_fit(item, above, p->n_critical, p->capacity, &part, offset);
    rm_pack_spend(p->limit, given - part.work);
    bool proof = p->n_ground == 0; /* no proof with a ground, which could have been placed differently */
    return outcome == RM_PACK_IMPOSSIBLE && !proof ? RM_PACK_STOPPED : outcome;
}

static rm_pack_outcome place_critical(packer *p) {
    size_t n = (size_t)p->n_critical;
    rm_pack_item *item = rm_malloc(n * sizeof *item);
    uint64_t *above = rm_malloc(n * sizeof *above), *offset = rm_malloc(n * sizeof *offset);
    bool ok = item && above && offset;
    rm_pack_outcome outcome = ok ? search_critical(p, item, above, offset) : RM_PACK_NO_MEMORY;
    rm_pack_clear_others(&p->moments);
    for (int32_t c = 0; c < p->n_critical && outcome == RM_PACK_FITS; c++) {
        p->offset[p->critical[c]] = offset[c];
        if (!rm_pack_put_other(&p->moments, p->critical[c])) outcome = RM_PACK_NO_MEMORY;
    }
    rm_free(item);
    rm_free(above);
    rm_free(offset);
    return outcome;
}

/* Places all other items. stuck[0..*n_stuck-1]: the first items that found no room; they are left out. */
static rm_pack_outcome place_others(packer *p, int32_t *stuck, int *n_stuck) {
    *n_stuck = 0;
    for (int32_t k = 0; k < p->n && *n_stuck < MOST_STUCK; k++) {
        int32_t i = p->longest[k];
        if (p->role[i] != OTHER) continue;
        if (k % 1024 == 0 && rm_pack_over(p->limit)) return RM_PACK_STOPPED;
        p->offset[i] = rm_pack_lowest_room(&p->moments, i, p->offset, p->critical, p->n_critical);
        rm_pack_spend(p->limit, 100 + 20 * (uint64_t)p->moments.n_spans);
        if (p->offset[i] + p->item[i].bytes > p->capacity)
            stuck[(*n_stuck)++] = i;
        else if (!rm_pack_put_other(&p->moments, i))
            return RM_PACK_NO_MEMORY;
    }
    return RM_PACK_FITS;
}

static rm_pack_outcome pack(packer *p) {
    int32_t n_long = count_long(p);
    if (!choose_ground(p, n_long)) return RM_PACK_NO_MEMORY;
    if (!lay_ground(p, n_long)) return RM_PACK_STOPPED;
    choose_first(p);
    while (p->n_critical <= MOST_CRITICAL && !rm_pack_over(p->limit)) {
        int32_t stuck[MOST_STUCK];
        int n_stuck = 0;
        rm_pack_outcome outcome = place_critical(p);
        if (outcome == RM_PACK_FITS) outcome = place_others(p, stuck, &n_stuck);
        if (outcome != RM_PACK_FITS || n_stuck == 0) return outcome;
        for (int k = 0; k < n_stuck; k++) {
            matters(p, stuck[k]);
            moment_matters(p, highest_moment(p, stuck[k], p->moments.end[stuck[k]]));
        }
    }
    return RM_PACK_STOPPED;
}

rm_pack_outcome rm_pack_critical(const rm_pack_item *item, int64_t n, uint64_t capacity, rm_pack_limit *limit,
                                 uint64_t *offset) {
    if (n == 0) return RM_PACK_FITS;
    if (n > RM_PACK_MOMENTS_MOST) return RM_PACK_STOPPED;
    packer p = {.item = item, .n = (int32_t)n, .capacity = capacity, .limit = limit, .offset = offset};
    p.search_work = limit->work / SEARCHES < SEARCH_WORK ? limit->work / SEARCHES : SEARCH_WORK;
    rm_pack_outcome outcome = create(&p) ? pack(&p) : RM_PACK_NO_MEMORY;
    destroy(&p);
    return outcome;
}

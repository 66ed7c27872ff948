/* pack_critical.c: most of a long plan is nowhere near the peak: few items decide how large the block must be. Those are
 * placed by the exact search, all others around them, each as low as it can, the longest-lived first. Where one of those
 * finds no room, what is alive with it matters too, and everything is done again.
 *
 *    bytes ^        .--.   <- these moments decide          1. items alive at the highest moments: rm_pack_fit
 *          |  .--.  |  |      .-.                           2. all others, by length of life
 *          | _|  |__|  |_.--._| |__                         3. one sticks out? 1. again, with what is alive there
 *          +----------------------> time
 *
 * Where thousands are alive together, most of them have lives nested in each other, and lie on each other without a gap:
 * that is the ground, laid first. Differs from pack_search.c, which decides about every item and is for a few hundred; a
 * hundred thousand are placed here in a fraction of a second. Main entry: rm_pack_critical. */
#include "memory/pack_critical.h"

#include <stdlib.h>
#include <string.h>

#include "memory/host.h"
#include "memory/pack_moments.h"

#define FIRST_CRITICAL 40    /* items, about */
#define MOST_CRITICAL 600    /* then it gives up */
#define MOST_ALIVE 100       /* at the highest moment, beside the ground */
#define MOST_STUCK 6         /* looked into each time round */
#define SEARCH_WORK 10000000 /* about nanoseconds, each time round, ... */
#define SEARCHES 4           /* ... and no more than a quarter of all */

typedef enum { OTHER, GROUND, CRITICAL } role;

typedef struct {
    const rm_pack_item *item;
    int32_t n;
    uint64_t capacity;
    rm_pack_limit *limit;
    uint64_t search_work; /* for each search */
    uint64_t *offset;
    rm_pack_moments moments;
    uint8_t *role;     /* of each item */
    int32_t *longest;  /* items, the longest-lived first */
    int32_t *critical; /* those, ascending */
    int32_t n_critical, n_ground;
} packer;

/* ---- Making one --------------------------------------------------------------------------------- */

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

/* How many of `longest` live so long that all but MOST_ALIVE of those alive at the highest moment do. */
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

/* Adds one at `moment`; or the sum up to and with it (Fenwick, "A new data structure for cumulative frequency tables",
 * 1994). */
static void count_one(int32_t *tree, int32_t n, int32_t moment) {
    for (int32_t k = moment + 1; k <= n; k += k & -k) tree[k]++;
}
static int32_t counted(const int32_t *tree, int32_t moment) {
    int32_t sum = 0;
    for (int32_t k = moment + 1; k > 0; k -= k & -k) sum += tree[k];
    return sum;
}

/* Lives that are nested lie on each other without a gap; one that begins inside many others and outlives them does not. So
 * the ground is those of longest[0..n_long-1] that do not cross more than the root of how many there are. false: out of
 * memory. */
static bool choose_ground(packer *p, int32_t n_long) {
    const int32_t *end = p->moments.end;
    int32_t *ends = rm_calloc((size_t)p->n + 2, sizeof *ends);
    if (!ends) return false;
    for (int32_t k = 0; k < n_long; k++) p->role[p->longest[k]] = GROUND;
    for (int32_t i = 0; i < p->n; i++) {
        if (p->role[i] != GROUND) continue;
        int64_t crossed = counted(ends, end[i] - 1) - counted(ends, i); /* that end inside its life */
        count_one(ends, p->n + 1, end[i]);
        if (crossed * crossed > n_long) p->role[i] = OTHER;
    }
    rm_free(ends);
    return true;
}

/* false: it does not fit. */
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

/* ---- What matters ------------------------------------------------------------------------------- */

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

/* The highest moments of all, one after another, until enough items are alive in them. */
static void choose_first(packer *p) {
    enum { TOP = 32 };
    const uint64_t *load = p->moments.load;
    int32_t top[TOP], n_top = 0;
    for (int32_t k = 0; k < p->n; k++) {
        if (k + 1 < p->n && load[k + 1] >= load[k]) continue; /* it is still rising */
        if (n_top == TOP && load[k] <= load[top[TOP - 1]]) continue;
        int32_t to = n_top < TOP ? n_top++ : TOP - 1;
        for (; to > 0 && load[top[to - 1]] < load[k]; to--) top[to] = top[to - 1];
        top[to] = k;
    }
    for (int32_t t = 0; t < n_top && p->n_critical < FIRST_CRITICAL; t++) moment_matters(p, top[t]);
}

/* ---- All together ------------------------------------------------------------------------------- */

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
    bool proof = p->n_ground == 0; /* the ground might have been laid otherwise */
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

/* All others. stuck[0..*n_stuck-1]: the first that found no room; they are left out. */
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

/* pack_state.c: sections, floors and inference on them (pack_state.h has a picture). This file makes no choices: the
 * search says what to place and learns whether a solution is still possible and where to branch next. */
#include "memory/pack_state.h"

#include <stdlib.h>
#include <string.h>

#include "memory/host.h"

#define MOST_UNITS ((uint64_t)1 << 29)

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* ---- Creation ----------------------------------------------------------------------------------- */

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int32_t units(const rm_pack_state *s, uint64_t bytes) { return (int32_t)((bytes + s->unit - 1) / s->unit); }

static void choose_unit(rm_pack_state *s, const rm_pack_item *item, const uint64_t *above, uint64_t capacity) {
    s->unit = rm_pack_unit(item, s->n);
    for (int32_t i = 0; i < s->n && above; i++) s->unit = common_divisor(above[i], s->unit);
    uint64_t whole = s->unit;
    while (capacity / s->unit > MOST_UNITS) s->unit *= 2;
    s->exact = s->unit == whole;
    s->capacity = (int32_t)(capacity / s->unit);
    for (int32_t i = 0; i < s->n; i++) {
        s->box[i].size = units(s, item[i].bytes);
        s->box[i].above = above ? units(s, above[i]) : 0;
    }
}

typedef struct {
    int64_t key[3]; /* sorted by these keys, */
    int32_t i;      /* then by this */
} entry;

static int by_keys(const void *a, const void *b) {
    const entry *x = a, *y = b;
    for (int k = 0; k < 3; k++)
        if (x->key[k] != y->key[k]) return x->key[k] < y->key[k] ? -1 : 1;
    return (x->i > y->i) - (x->i < y->i);
}

/* A section ends when an item ends after another began. No other set of items that are alive together is larger. */
static void cut_sections(rm_pack_state *s, const rm_pack_item *item, entry *by_end) {
    for (int32_t i = 0; i < s->n; i++) by_end[i] = (entry){{item[i].last}, i};
    qsort(by_end, (size_t)s->n, sizeof *by_end, by_keys);
    int32_t section = 0, ended = 0;
    bool began = false;
    for (int32_t i = 0; i <= s->n; i++) {
        for (; ended < s->n && (i == s->n || by_end[ended].key[0] < item[i].first); ended++) {
            section += began;
            began = false;
            s->box[by_end[ended].i].end = section;
        }
        if (i < s->n) s->box[i].begin = section;
        began = true;
    }
    s->n_sections = section;
}

static void find_twins(rm_pack_state *s, entry *sorted) {
    for (int32_t i = 0; i < s->n; i++)
        sorted[i] = (entry){{s->box[i].begin, s->box[i].end, (int64_t)s->box[i].size << 32 | s->box[i].above}, i};
    qsort(sorted, (size_t)s->n, sizeof *sorted, by_keys);
    for (int32_t k = 0; k < s->n; k++) {
        bool same = k > 0 && !memcmp(sorted[k].key, sorted[k - 1].key, sizeof sorted[k].key);
        s->box[sorted[k].i].twin = same ? sorted[k - 1].i : -1;
    }
}

static bool reserve_trail(rm_pack_state *s, int64_t more) {
    return rm_grow(&s->trail, &s->trail_capacity, s->n_trail + more, sizeof *s->trail);
}

static bool create_sections(rm_pack_state *s) {
    enum { COLUMNS = 6 };
    size_t n = (size_t)s->n_sections + 1; /* one more, for the end of the last section */
    int32_t *all = rm_calloc(n * COLUMNS, sizeof *all);
    s->section_name = rm_malloc(n * sizeof *s->section_name);
    s->floor = all; /* owns all the arrays */
    if (!all || !s->section_name || !reserve_trail(s, 16 * (int64_t)n)) return false;
    s->left = all + n;
    s->reach = all + 2 * n;
    s->lowest = all + 3 * n;
    s->count = all + 4 * n;
    s->niche = all + 5 * n;
    uint64_t seed = 7;
    for (size_t k = 0; k < n; k++) s->section_name[k] = rm_pack_random(&seed) | 1;
    for (int32_t i = 0; i < s->n; i++) s->box[i].name = rm_pack_random(&seed);
    return true;
}

bool rm_pack_state_create(rm_pack_state *s, const rm_pack_item *item, const uint64_t *above, int32_t n,
                          uint64_t capacity) {
    *s = (rm_pack_state){.n = n};
    entry *sorted = rm_malloc((size_t)n * sizeof *sorted);
    s->box = rm_calloc((size_t)n, sizeof *s->box);
    s->open = rm_malloc((size_t)n * sizeof *s->open);
    bool ok = sorted && s->box && s->open;
    if (ok) {
        choose_unit(s, item, above, capacity);
        cut_sections(s, item, sorted);
        find_twins(s, sorted);
        ok = create_sections(s);
    }
    rm_free(sorted);
    if (!ok) rm_pack_state_free(s);
    return ok;
}

void rm_pack_state_free(rm_pack_state *s) {
    rm_free(s->box);
    rm_free(s->open);
    rm_free(s->floor);
    rm_free(s->section_name);
    rm_free(s->trail);
    *s = (rm_pack_state){0};
}

void rm_pack_state_clear(rm_pack_state *s) {
    size_t bytes = (size_t)s->n_sections * sizeof *s->floor;
    memset(s->floor, 0, bytes);
    memset(s->left, 0, bytes);
    for (int32_t i = 0; i < s->n; i++) {
        s->open[i] = i;
        s->box[i].placed = false;
        for (int32_t k = s->box[i].begin; k < s->box[i].end; k++) s->left[k] += s->box[i].size;
    }
    s->n_open = s->n;
    s->n_trail = 0;
}

/* ---- Placing and undoing ------------------------------------------------------------------------ */

static void set_floor(rm_pack_state *s, int32_t section, int32_t floor) {
    s->trail[s->n_trail++] = (rm_pack_change){section, s->floor[section]};
    s->floor[section] = floor;
}

void rm_pack_state_raise(rm_pack_state *s, int32_t section, int32_t floor) {
    if (!reserve_trail(s, 1))
        s->no_memory = true;
    else
        set_floor(s, section, floor);
}

void rm_pack_state_place(rm_pack_state *s, int32_t i, int32_t height) {
    rm_pack_box *box = &s->box[i];
    if (!reserve_trail(s, box->end - box->begin)) {
        s->no_memory = true;
        return;
    }
    for (int32_t k = box->begin; k < box->end; k++) {
        s->left[k] -= box->size;
        set_floor(s, k, height + box->size);
    }
    box->placed = true;
    box->height = height;
    int32_t at = 0;
    while (s->open[at] != i) at++;
    s->n_open--;
    memmove(s->open + at, s->open + at + 1, (size_t)(s->n_open - at) * sizeof *s->open);
}

void rm_pack_state_unplace(rm_pack_state *s, int32_t i) {
    rm_pack_box *box = &s->box[i];
    box->placed = false;
    s->open[s->n_open++] = i;
    for (int32_t k = box->begin; k < box->end; k++) s->left[k] += box->size;
}

void rm_pack_state_undo(rm_pack_state *s, int64_t n_trail) {
    while (s->n_trail > n_trail) {
        s->n_trail--;
        s->floor[s->trail[s->n_trail].section] = s->trail[s->n_trail].was;
    }
}

/* ---- Inference ---------------------------------------------------------------------------------- */

/* Computes the lowest height of each open item, and the minimum of these in each section. */
static bool find_lowest(rm_pack_state *s) {
    const int32_t *floor = s->floor;
    int32_t *lowest = s->lowest;
    for (int32_t k = 0; k < s->n_sections; k++) lowest[k] = s->capacity;
    for (int32_t o = 0; o < s->n_open; o++) {
        rm_pack_box *box = &s->box[s->open[o]];
        int32_t most = box->above;
        for (int32_t k = box->begin; k < box->end; k++) most = larger(most, floor[k]);
        for (int32_t k = box->begin; k < box->end; k++) lowest[k] = smaller(lowest[k], most);
        box->lowest = most;
        if (most + box->size > s->capacity) return false;
        s->work += 8 + (uint64_t)(box->end - box->begin) / 2;
    }
    return true;
}

static void sort_open(rm_pack_state *s) {
    for (int32_t o = 1; o < s->n_open; o++) {
        int32_t i = s->open[o], lowest = s->box[i].lowest, to = o;
        for (; to > 0 && s->box[s->open[to - 1]].lowest > lowest; to--) s->open[to] = s->open[to - 1];
        s->open[to] = i;
    }
}

/* In one section, the open items are jobs on one machine: none starts before its `lowest`, and the machine must finish
 * by `capacity`. It finishes earliest if the jobs run in order of `lowest`. All sections are checked at once. */
static bool all_can_end(rm_pack_state *s) {
    int32_t *reach = s->reach, most = 0;
    memcpy(reach, s->floor, (size_t)s->n_sections * sizeof *reach);
    for (int32_t o = 0; o < s->n_open; o++) {
        const rm_pack_box *box = &s->box[s->open[o]];
        int32_t lowest = box->lowest, size = box->size;
        for (int32_t k = box->begin; k < box->end; k++) reach[k] = larger(reach[k], lowest) + size;
    }
    for (int32_t k = 0; k < s->n_sections; k++) most = larger(most, reach[k]);
    return most <= s->capacity;
}

bool rm_pack_state_infer(rm_pack_state *s) {
    s->work += 50 + (uint64_t)s->n_sections;
    if (!find_lowest(s)) return false;
    if (!reserve_trail(s, s->n_sections)) {
        s->no_memory = true;
        return false;
    }
    /* Raises the floor to the lowest item that can still come, or to the top. This raises no item's `lowest`, so one
     * pass is enough. */
    for (int32_t k = 0; k < s->n_sections; k++)
        if (s->floor[k] != s->lowest[k]) set_floor(s, k, s->lowest[k]);
    sort_open(s);
    return all_can_end(s);
}

/* ---- Where to branch ---------------------------------------------------------------------------- */

/* niche[k]: the first section of the niche that contains k; -1: none. */
static void find_niches(rm_pack_state *s) {
    const int32_t *floor = s->floor;
    for (int32_t k = 0, end; k < s->n_sections; k = end) {
        for (end = k + 1; end < s->n_sections && floor[end] == floor[k];) end++;
        bool walled = (k == 0 || floor[k - 1] > floor[k]) && (end == s->n_sections || floor[end] > floor[k]);
        for (int32_t at = k; at < end; at++) s->niche[at] = walled && floor[k] < s->capacity ? k : -1;
    }
}

static bool lies_in(const rm_pack_state *s, const rm_pack_box *box, int32_t niche) {
    return niche >= 0 && s->niche[box->begin] == niche && s->niche[box->end - 1] == niche;
}

static bool waits_for_twin(const rm_pack_state *s, const rm_pack_box *box) {
    return box->twin >= 0 && !s->box[box->twin].placed;
}

/* count[k]: the number of items that could lie on the floor of section k, which is in a niche. */
static void count_choices(rm_pack_state *s) {
    memset(s->count, 0, (size_t)(s->n_sections + 1) * sizeof *s->count);
    for (int32_t o = 0; o < s->n_open; o++) {
        const rm_pack_box *box = &s->box[s->open[o]];
        if (!lies_in(s, box, s->niche[box->begin]) || box->lowest > s->floor[box->begin]) continue;
        if (waits_for_twin(s, box)) continue;
        s->count[box->begin]++;
        s->count[box->end]--;
    }
    for (int32_t k = 0; k < s->n_sections; k++) s->count[k + 1] += s->count[k];
}

/* Among sections with equally few choices, takes the highest niche: it is decided before its surroundings (ten times
 * faster on hard instances). */
static int32_t fewest_choices(const rm_pack_state *s) {
    int32_t best = -1, fewest = INT32_MAX;
    for (int32_t k = 0; k < s->n_sections; k++) {
        if (s->niche[k] < 0) continue;
        bool may_stay_empty = s->floor[k] + s->left[k] < s->capacity;
        int32_t choices = 2 * s->count[k] + may_stay_empty;
        if (choices > fewest || (choices == fewest && s->floor[k] <= s->floor[best])) continue;
        fewest = choices;
        best = k;
    }
    return best;
}

/* If nothing lies on this floor, the lowest item lies on an item that does, on the niche's edge, or at its own lower
 * limit. */
static int32_t least_raise(const rm_pack_state *s, const rm_pack_spot *spot) {
    int32_t edge = s->capacity;
    if (spot->niche_begin > 0) edge = smaller(edge, s->floor[spot->niche_begin - 1]);
    if (spot->niche_end < s->n_sections) edge = smaller(edge, s->floor[spot->niche_end]);
    int32_t raise = edge - spot->height;
    for (int32_t o = 0; o < s->n_open; o++) {
        const rm_pack_box *box = &s->box[s->open[o]];
        if (!lies_in(s, box, spot->niche_begin)) continue;
        bool covers = box->begin <= spot->section && spot->section < box->end;
        if (!covers)
            raise = smaller(raise, box->size);
        else if (box->lowest > spot->height)
            raise = smaller(raise, box->lowest - spot->height);
    }
    return spot->height + raise + s->left[spot->section] <= s->capacity ? raise : 0;
}

static void find_part(rm_pack_state *s, rm_pack_spot *spot) {
    int32_t *links = s->reach; /* at k: number of open items that link sections k-1 and k */
    memset(links, 0, (size_t)(s->n_sections + 1) * sizeof *links);
    for (int32_t o = 0; o < s->n_open; o++) {
        const rm_pack_box *box = &s->box[s->open[o]];
        links[box->begin]++;
        links[box->end]--;
    }
    /* Running sums, then the number of items alive in k: those that do not begin there come from k-1. */
    for (int32_t k = 0; k < s->n_sections; k++) links[k + 1] += links[k];
    for (int32_t o = 0; o < s->n_open; o++) links[s->box[s->open[o]].begin]--;
    spot->part_begin = spot->section;
    spot->part_end = spot->section + 1;
    while (spot->part_begin > 0 && links[spot->part_begin] > 0) spot->part_begin--;
    while (spot->part_end < s->n_sections && links[spot->part_end] > 0) spot->part_end++;
}

static uint64_t name_of_part(const rm_pack_state *s, const rm_pack_spot *spot) {
    uint64_t name = 0;
    for (int32_t o = 0; o < s->n_open; o++) {
        const rm_pack_box *box = &s->box[s->open[o]];
        if (box->begin >= spot->part_begin && box->end <= spot->part_end) name ^= box->name;
    }
    for (int32_t k = spot->part_begin; k < spot->part_end; k++)
        name += s->section_name[k] * (uint64_t)(s->floor[k] + 1);
    return name ^ name >> 29;
}

rm_pack_spot rm_pack_state_spot(rm_pack_state *s) {
    find_niches(s);
    count_choices(s);
    rm_pack_spot spot = {.section = fewest_choices(s)};
    spot.height = s->floor[spot.section];
    spot.niche_begin = spot.niche_end = s->niche[spot.section];
    while (spot.niche_end < s->n_sections && s->niche[spot.niche_end] == spot.niche_begin) spot.niche_end++;
    spot.raise = least_raise(s, &spot);
    find_part(s, &spot);
    spot.name = name_of_part(s, &spot);
    return spot;
}

bool rm_pack_state_choice(const rm_pack_state *s, const rm_pack_spot *spot, int32_t i) {
    const rm_pack_box *box = &s->box[i];
    return box->begin <= spot->section && spot->section < box->end && box->begin >= spot->niche_begin &&
           box->end <= spot->niche_end && box->lowest == spot->height && !waits_for_twin(s, box);
}

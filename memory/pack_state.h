/* pack_state.h: a partial placement as the exact search sees it (pack_search.c), and what follows from it by inference.
 * Used only by pack_search.c.
 *
 *   height ^        +----+                 Time is cut into sections, one for each maximal set of items that are alive
 *          |  ######|####|  ##             together. In each section, placed items reach up to `floor` (the ####), and
 *          |  ######|####|####             `left` is the total size of the open (unplaced) items. A niche is a run of
 *          |  ######  niche ##             sections with one floor between two higher ones: an item on its ground lies
 *          +--0-1-2-3-4-5-6-7--> section   entirely inside it.
 *
 * Heights are in units of the greatest common divisor of all sizes, so that they fit into 32 bits. */
#ifndef RM_PACK_STATE_H
#define RM_PACK_STATE_H

#include "memory/pack.h"

typedef struct {
    int32_t begin, end; /* in sections begin..end-1 */
    int32_t size;       /* in units */
    int32_t above;      /* lower limit of the item's height */
    int32_t lowest;     /* while open: the lower limit, or the highest floor under it if that is higher */
    int32_t height;     /* once placed */
    int32_t twin;       /* the previous item with the same sections and size; -1: none */
    bool placed;
    uint64_t name; /* random */
    double rank;   /* among the items that could be placed, the highest rank is tried first */
} rm_pack_box;

typedef struct {
    int32_t section, was;
} rm_pack_change;

/* Where to branch, and what is known about the place. */
typedef struct {
    int32_t section, height;        /* the question: which item lies on the floor of this section, if any */
    int32_t niche_begin, niche_end; /* its niche */
    int32_t part_begin, part_end;   /* the surrounding sections that no open item links to others */
    int32_t raise;                  /* if no item does, the floor rises by at least this much; 0: that would not fit */
    uint64_t name;                  /* hash of everything that decides whether the part can be solved */
} rm_pack_spot;

typedef struct {
    int32_t n, n_sections, capacity;
    uint64_t unit; /* in bytes */
    bool exact;    /* all sizes are whole units; otherwise they were rounded up, and failure proves nothing */
    rm_pack_box *box;
    int32_t *open; /* the unplaced items, roughly sorted by `lowest` */
    int32_t n_open;
    int32_t *floor, *left;                   /* by section */
    int32_t *reach, *lowest, *count, *niche; /* scratch, by section */
    uint64_t *section_name;
    rm_pack_change *trail; /* records the changes of floors for undo */
    int64_t n_trail, trail_capacity;
    bool no_memory;
    uint64_t work; /* work done so far */
} rm_pack_state;

/* Needs n from 1 to RM_PACK_STATE_MOST. Returns false if out of host memory. */
#define RM_PACK_STATE_MOST 100000
bool rm_pack_state_create(rm_pack_state *state, const rm_pack_item *item, const uint64_t *above, int32_t n,
                          uint64_t capacity);
void rm_pack_state_free(rm_pack_state *state);
void rm_pack_state_clear(rm_pack_state *state); /* makes all items open and all floors 0 */

/* Raises floors to the height that no open item can lie below. Returns false if the open items no longer fit. */
bool rm_pack_state_infer(rm_pack_state *state);

/* The spot with the fewest choices among all niches. Requires an open item and a successful rm_pack_state_infer. */
rm_pack_spot rm_pack_state_spot(rm_pack_state *state);

/* Whether the open item i may lie on the floor there. */
bool rm_pack_state_choice(const rm_pack_state *state, const rm_pack_spot *spot, int32_t i);

void rm_pack_state_raise(rm_pack_state *state, int32_t section, int32_t floor);
void rm_pack_state_place(rm_pack_state *state, int32_t i, int32_t height); /* places item i */
/* reverts rm_pack_state_place, except for the floors, which undo restores */
void rm_pack_state_unplace(rm_pack_state *state, int32_t i);
void rm_pack_state_undo(rm_pack_state *state, int64_t n_trail);

/* splitmix64 (Steele, Lea, Flood, 2014). */
static inline uint64_t rm_pack_random(uint64_t *state) {
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

#endif

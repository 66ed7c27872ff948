/* pack_state.h: a half-finished placement as the exact search sees it (pack_search.c), and what follows from it without
 * trying anything. Used by pack_search.c alone.
 *
 *   height ^        +----+                 Time is cut into sections, one for each largest set of items that are alive
 *          |  ######|####|  ##             together. Over each stands a column: what is placed reaches up to `floor`
 *          |  ######|####|####             (the ####), what is open is `left` units. A niche is a run of sections of one
 *          |  ######  niche ##             floor between two higher ones: whatever comes to lie on its ground lies
 *          +--0-1-2-3-4-5-6-7--> section   wholly inside it.
 *
 * Heights are in units, the greatest common divisor of all sizes, so that they fit into 32 bits. */
#ifndef RM_PACK_STATE_H
#define RM_PACK_STATE_H

#include "memory/pack.h"

typedef struct {
    int32_t begin, end; /* sections begin..end-1 */
    int32_t size;       /* units */
    int32_t above;      /* it may not lie lower */
    int32_t lowest;     /* while open: that, or the highest floor under it */
    int32_t height;     /* once placed */
    int32_t twin;       /* the item before it with the same sections and size; -1: none */
    bool placed;
    uint64_t name; /* random */
    double rank;   /* of several that could be placed, the highest is tried first */
} rm_pack_box;

typedef struct {
    int32_t section, was;
} rm_pack_change;

/* Where to branch, and what is known of the place. */
typedef struct {
    int32_t section, height;        /* something lies on the floor of this section, or nothing does */
    int32_t niche_begin, niche_end; /* its niche */
    int32_t part_begin, part_end;   /* the sections around it that no open item links to others */
    int32_t raise;                  /* if nothing does, the floor is at least so much higher; 0: that would not fit */
    uint64_t name;                  /* of everything that decides what becomes of the part */
} rm_pack_spot;

typedef struct {
    int32_t n, n_sections, capacity;
    uint64_t unit; /* bytes */
    bool exact;    /* sizes are whole units; else they were rounded up, and nothing is proved */
    rm_pack_box *box;
    int32_t *open; /* the items that are not placed, roughly by `lowest` */
    int32_t n_open;
    int32_t *floor, *left;                   /* by section */
    int32_t *reach, *lowest, *count, *niche; /* by section: scratch */
    uint64_t *section_name;
    rm_pack_change *trail; /* how to undo the floors */
    int64_t n_trail, trail_capacity;
    bool no_memory;
    uint64_t work; /* done so far */
} rm_pack_state;

/* false: out of host memory. Needs `n` from 1 to RM_PACK_STATE_MOST. */
#define RM_PACK_STATE_MOST 100000
bool rm_pack_state_create(rm_pack_state *state, const rm_pack_item *item, const uint64_t *above, int32_t n,
                          uint64_t capacity);
void rm_pack_state_free(rm_pack_state *state);
void rm_pack_state_clear(rm_pack_state *state); /* everything open, all floors at 0 */

/* Raises floors where nothing open can lie lower. false: what is open cannot fit any more. */
bool rm_pack_state_infer(rm_pack_state *state);

/* The spot with the fewest choices, of niches all over. Needs an open item and a state that was inferred. */
rm_pack_spot rm_pack_state_spot(rm_pack_state *state);

/* May item i, which is open, lie on the floor there? */
bool rm_pack_state_choice(const rm_pack_state *state, const rm_pack_spot *spot, int32_t i);

void rm_pack_state_raise(rm_pack_state *state, int32_t section, int32_t floor);
void rm_pack_state_place(rm_pack_state *state, int32_t i, int32_t height); /* item i */
void rm_pack_state_unplace(rm_pack_state *state, int32_t i); /* ... but for the floors, which undo puts back */
void rm_pack_state_undo(rm_pack_state *state, int64_t n_trail);

/* splitmix64 (Steele, Lea, Flood, 2014). */
static inline uint64_t rm_pack_random(uint64_t *state) {
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

#endif

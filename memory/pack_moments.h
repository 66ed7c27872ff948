/* pack_moments.h: many items in time, and where the placed ones lie. Time is counted in items: item i begins at moment
 * i and lives in moments i .. end[i]-1, since the set of live items changes at no other time. Used only by
 * pack_critical.c.
 *
 * Placed items are stored in two segment trees over moments, because there are two kinds of queries:
 *
 *   the ground    the height below which nothing may be placed any more; only the maximum over a lifetime matters
 *   the others    single items with gaps between them; each node lists the items that live through all its moments
 */
#ifndef RM_PACK_MOMENTS_H
#define RM_PACK_MOMENTS_H

#include "memory/pack.h"

typedef struct {
    uint64_t begin, end;
} rm_pack_span;

typedef struct {
    const rm_pack_item *item;
    int32_t n, leaves;
    int32_t *end;
    uint64_t *load;               /* by moment: live bytes */
    uint64_t *top, *raised;       /* the ground, by node */
    int32_t *head, *next, *entry; /* the others: head by node; next, entry by link; 0 ends a list */
    int32_t n_links;
    int64_t link_capacity;
    rm_pack_span *span; /* length n+1: ranges occupied by other items */
    int32_t n_spans;
} rm_pack_moments;

#define RM_PACK_MOMENTS_MOST 20000000 /* items */

/* Returns false if out of host memory. 1 <= n <= RM_PACK_MOMENTS_MOST. */
bool rm_pack_moments_create(rm_pack_moments *moments, const rm_pack_item *item, int32_t n);
void rm_pack_moments_free(rm_pack_moments *moments);

/* The first returns the highest ground in item i's lifetime, the second raises the ground to `height` throughout it. */
uint64_t rm_pack_ground(const rm_pack_moments *moments, int32_t i);
void rm_pack_raise_ground(rm_pack_moments *moments, int32_t i, uint64_t height);

void rm_pack_clear_others(rm_pack_moments *moments);
/* Item i now lies at offset[i]. Returns false if out of host memory. */
bool rm_pack_put_other(rm_pack_moments *moments, int32_t i);

/* The lowest place for item i above the ground and between the other items, which lie at `offset`. Each of these must
 * live at least as long as i or be one of early[0..n_early-1], which is ascending. */
uint64_t rm_pack_lowest_room(rm_pack_moments *moments, int32_t i, const uint64_t *offset, const int32_t *early,
                             int32_t n_early);

static inline int64_t rm_pack_life(const rm_pack_item *item) { return item->last - item->first; }

#endif

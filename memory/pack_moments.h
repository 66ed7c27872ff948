/* pack_moments.h: many items in time, and what of them is placed where. Time is counted in items: item i begins at moment i,
 * and lives in moments i .. end[i]-1; nothing else ever changes what is alive. Used by pack_critical.c alone.
 *
 * What is placed lies in two segment trees over moments, because it is asked for in two ways:
 *
 *   the ground    the height up to which nothing may be placed any more; only the highest in a life matters
 *   the others    items by themselves, with gaps between them; each node lists those that live all through it
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
    uint64_t *load;               /* by moment: bytes alive */
    uint64_t *top, *raised;       /* the ground, by node */
    int32_t *head, *next, *entry; /* the others: head by node; next, entry by link; 0 ends a list */
    int32_t n_links;
    int64_t link_capacity;
    rm_pack_span *span; /* n and one: what is in the way */
    int32_t n_spans;
} rm_pack_moments;

#define RM_PACK_MOMENTS_MOST 20000000 /* items */

/* false: out of host memory. 1 <= n <= RM_PACK_MOMENTS_MOST. */
bool rm_pack_moments_create(rm_pack_moments *moments, const rm_pack_item *item, int32_t n);
void rm_pack_moments_free(rm_pack_moments *moments);

/* The highest ground in item i's life, and making it so high all through its life. */
uint64_t rm_pack_ground(const rm_pack_moments *moments, int32_t i);
void rm_pack_raise_ground(rm_pack_moments *moments, int32_t i, uint64_t height);

void rm_pack_clear_others(rm_pack_moments *moments);
/* Item i lies at offset[i] now. false: out of host memory. */
bool rm_pack_put_other(rm_pack_moments *moments, int32_t i);

/* Where item i can lie lowest, above the ground and beside the others, which lie at `offset`. All of these must live as
 * long as i, or be among early[0..n_early-1], which is in ascending order. */
uint64_t rm_pack_lowest_room(rm_pack_moments *moments, int32_t i, const uint64_t *offset, const int32_t *early,
                             int32_t n_early);

static inline int64_t rm_pack_life(const rm_pack_item *item) { return item->last - item->first; }

#endif

/* family.h: a family of plans for one problem, from the smallest to the fastest: what `optimal` chooses from. Making the
 * family costs little; a plan is written out only when it is wanted. A family does not depend on the budget. So the
 * choice (schedule.c: the fastest that fits) is monotone: more bytes never give a slower step, nor a smaller peak; and the
 * smallest member is the exact least that this family can do with.
 *
 *   recompute   nested segments to any depth, several sweeps, each stage kept in one of its options or not at all:
 *               Rotor's recurrence (Herrmann, Beaumont et al. 2019), see recompute.c
 *   evict       where states skip: plans that let go of one object at a time and make it again, see evict.c
 *   spill       saved blocks and states moved to the second tier and fetched back, alone and mixed with recomputation
 */
#ifndef RM_FAMILY_H
#define RM_FAMILY_H

#include "memory/strategy.h"

typedef struct {
    uint64_t peak_bytes;  /* resident not counted: the most alive at once; where objects share pieces, not below that */
    uint64_t time_ns;     /* predicted, of the whole step */
    int64_t runs;         /* forward runs */
    uint64_t table_bytes; /* what rm_schedule_bytes adds to the block, or less; 0: unknown */
    bool exact;           /* peak_bytes is what the judge will find */
} rm_member;

typedef struct rm_family {
    int64_t count;
    /* From the smallest to the fastest, once or, where kinds of plans are hard to compare, once a kind. */
    rm_member *member;
    /* Appends member i to the empty *plan. */
    remat_status (*write)(const struct rm_family *, const rm_problem *, int64_t i, rm_plan *, rm_proposal *);
    void (*free_own)(struct rm_family *);
    void *own;
} rm_family;

/* Fill the zeroed *family. MEMORY. A family may be empty (spill without a second tier). The wish's `segments` and
 * `budget_bytes` are not looked at. */
remat_status rm_family_recompute(const rm_problem *problem, const rm_wish *wish, rm_family *family);
/* Up to so many stages it begins at the plans that recompute, too, and holds what is best of them. */
#define RM_EVICT_STAGES 512
remat_status rm_family_evict(const rm_problem *problem, const rm_wish *wish, rm_family *family);
remat_status rm_family_spill(const rm_problem *problem, const rm_wish *wish, rm_family *family);
void rm_family_free(rm_family *family); /* zeroed allowed */

#endif

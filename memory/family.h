/* family.h: a family of plans for one problem, from the smallest to the fastest. The strategy `optimal` chooses among
 * families. Making a family is cheap, because a plan is written out only when it is needed. A family does not depend on
 * the budget. The choice (schedule.c: the fastest plan that fits) is therefore monotone: a larger budget never gives a
 * slower step, nor a smaller peak. The smallest member is the exact minimum of the family.
 *
 *   recompute   nested segments to any depth, several sweeps, each stage kept in one of its options or not at all:
 *               Rotor's recurrence (Herrmann, Beaumont et al. 2019), see recompute.c
 *   evict       for skip connections: plans that free one object at a time and recompute it, see evict.c
 *   spill       saved blocks and states moved to the second tier and back, alone and mixed with recomputation */
#ifndef RM_FAMILY_H
#define RM_FAMILY_H

#include "memory/strategy.h"

typedef struct {
    /* the most bytes alive at once, without resident bytes; an upper bound where objects share pieces */
    uint64_t peak_bytes;
    uint64_t time_ns;     /* predicted time of the whole step */
    int64_t runs;         /* number of forward runs */
    uint64_t table_bytes; /* a lower bound of what rm_schedule_bytes adds to the block; 0: unknown */
    bool exact;           /* the judge will find exactly peak_bytes */
} rm_member;

typedef struct rm_family {
    int64_t count;
    /* From the smallest to the fastest. Kinds of plans that are hard to compare form one such sequence each. */
    rm_member *member;
    /* Appends member i to the empty *plan. */
    remat_status (*write)(const struct rm_family *, const rm_problem *, int64_t i, rm_plan *, rm_proposal *);
    void (*free_own)(struct rm_family *);
    void *own;
} rm_family;

/* Each fills the zeroed *family. MEMORY. A family may be empty (spill without a second tier). The plan request's
 * `segments` and `budget_bytes` are ignored. */
remat_status rm_family_recompute(const rm_problem *problem, const rm_plan_request *request, rm_family *family);
/* Up to this number of stages, the family also starts from the plans of rm_family_recompute and includes the best of
 * them. */
#define RM_EVICT_STAGES 512
remat_status rm_family_evict(const rm_problem *problem, const rm_plan_request *request, rm_family *family);
remat_status rm_family_spill(const rm_problem *problem, const rm_plan_request *request, rm_family *family);
void rm_family_free(rm_family *family); /* accepts a zeroed family */

#endif

/* check.h: the judge. It simulates a plan against its problem and trusts nothing. Every object that is read must be
 * alive, and every object that was made must be freed. Stages run for the first time in their order; each is
 * differentiated exactly once, last stage first; nothing is alive at the end. The judge shares no code with the
 * strategies. It also records the lifetime of every buffer, which place.h needs.
 *
 * Beyond what memory safety requires, the judge rejects work that serves no purpose. saved(s) is made exactly once in a
 * plan, so that side effects of a keeping run, such as adding up the loss, happen once (a LOAD makes nothing new). A
 * stage that has been differentiated is not run again. SAVE and LOAD are rejected if the problem has no second tier.
 *
 * Time: the judge advances two clocks, one for the computation and one for the second tier (problem.h, rm_tier).
 * wait_ns is the time that the computation waits for transfers. */
#ifndef RM_CHECK_H
#define RM_CHECK_H

#include "memory/plan.h"

typedef enum { RM_BUFFER_PIECE, RM_BUFFER_SAVED, RM_BUFFER_SCRATCH } rm_buffer_kind;

/* One buffer, alive in the steps first..last inclusive. A piece that is freed and made again has several lifetimes. */
typedef struct {
    uint8_t kind;  /* rm_buffer_kind */
    int32_t index; /* PIECE: the piece; SAVED: the stage of the saved block; SCRATCH: the stage */
    int64_t first, last;
    uint64_t bytes; /* rounded up to a multiple of RM_ALIGN; > 0, since empty buffers are left out */
} rm_lifetime;

typedef struct {
    rm_lifetime *item; /* sorted by `first`; buffers that start at the same step: pieces, saved, scratch */
    int64_t count, capacity;
} rm_lifetimes;
void rm_lifetimes_free(rm_lifetimes *lifetimes);

typedef struct {
    uint64_t peak_bytes; /* the most bytes alive at once without resident bytes: the lower bound of any placement */
    int64_t peak_step;   /* the first step that reaches peak_bytes */
    /* first forward run of each stage; repeated forward runs; backward runs */
    uint64_t forward_ns, recompute_ns, backward_ns;
    int64_t recomputed_stages;                      /* number of forward runs beyond the first of each stage */
    double recompute_factor;                        /* (forward_ns + recompute_ns) / forward_ns; 1 if that is 0 */
    uint64_t save_bytes, load_bytes; /* moved to and from the second tier; save_bytes is also the space it needs */
    uint64_t transfer_ns, wait_ns;   /* busy time of the second tier; time that the computation waits for it or is
                                      * slowed down by it */
    uint64_t total_ns;               /* forward + recompute + backward + wait */
    int64_t buffers;                 /* number of lifetimes */
} rm_verdict;

/* Number of plan steps that this thread has judged. It measures planning work in a unit that is the same on every
 * machine. */
uint64_t rm_judged_steps(void);

/* INTERNAL names the first step that is wrong and why ("step 12 (run backward 3): saved 3 is not alive"). On success
 * fills *lifetimes (zeroed or freed before), which may be NULL. */
remat_status rm_plan_check(const rm_problem *problem, const rm_plan *plan, rm_verdict *verdict,
                           rm_lifetimes *lifetimes);

/* The same for an evaluation: every stage must run forward, and no stage is differentiated. */
remat_status rm_plan_check_forward(const rm_problem *problem, const rm_plan *plan, rm_verdict *verdict,
                                   rm_lifetimes *lifetimes);

/* The start time of each step of a plan that passed, on the computation's clock and before any wait: n_steps times,
 * relative to the first step. MEMORY. */
remat_status rm_plan_times(const rm_problem *problem, const rm_plan *plan, bool forward_only, uint64_t *begin_ns);

#endif

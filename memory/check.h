/* check.h: the judge. Simulates a plan against its problem and trusts nothing: every read must be alive, every object
 * that was made is freed, stages run for the first time in their order, each is differentiated exactly once, last first,
 * and nothing is left over. It shares no code with the strategies. It also writes down every buffer's lifetime, which is what place.h needs.
 *
 * Beyond what memory demands, it objects to work that cannot serve any purpose: saved(s) is made exactly once in a
 * plan (so what a keeping run does besides, such as adding up the loss, is done once; a LOAD makes nothing new), and a
 * stage that has been differentiated is not run again. SAVE and LOAD are refused where the problem has no second tier.
 *
 * Time. Two clocks run: the computation's, and the second tier's (problem.h, rm_tier). What they make of waits is
 * wait_ns. */
#ifndef RM_CHECK_H
#define RM_CHECK_H

#include "memory/plan.h"

typedef enum { RM_BUFFER_PIECE, RM_BUFFER_SAVED, RM_BUFFER_SCRATCH } rm_buffer_kind;

/* One buffer, alive in the steps first..last inclusive. A piece that is freed and made again has several. */
typedef struct {
    uint8_t kind;  /* rm_buffer_kind */
    int32_t index; /* PIECE: the piece; SAVED: the stage's private block; SCRATCH: the stage */
    int64_t first, last;
    uint64_t bytes; /* a multiple of RM_ALIGN, rounded up to it; > 0: empty buffers are left out */
} rm_lifetime;

typedef struct {
    rm_lifetime *item; /* in order of `first`; of buffers that start together: pieces, saved, scratch */
    int64_t count, capacity;
} rm_lifetimes;
void rm_lifetimes_free(rm_lifetimes *lifetimes);

typedef struct {
    uint64_t peak_bytes; /* the most alive at once, resident bytes not counted: no placement can be below */
    int64_t peak_step;   /* the first step at which it is reached */
    uint64_t forward_ns, recompute_ns, backward_ns; /* first forward of each stage; repeats; backwards */
    int64_t recomputed_stages;                      /* forward runs beyond the first, counted */
    double recompute_factor;                        /* (forward_ns + recompute_ns) / forward_ns; 1 if that is 0 */
    uint64_t save_bytes, load_bytes; /* moved to and from the second tier; save_bytes is also the room it needs */
    uint64_t transfer_ns, wait_ns;   /* the second tier's busy time; how long the computation waits for it or is
                                        held up by it */
    uint64_t total_ns;               /* forward + recompute + backward + wait */
    int64_t buffers;                 /* lifetimes, counted */
} rm_verdict;

/* Steps of all plans that this thread has judged: how much has been planned, counted, so that it is the same on every machine. */
uint64_t rm_judged_steps(void);

/* INTERNAL names the first step that is wrong and why ("step 12 (run backward 3): saved 3 is not alive"). On success
 * *lifetimes (zeroed or freed before) is filled; it may be NULL. */
remat_status rm_plan_check(const rm_problem *problem, const rm_plan *plan, rm_verdict *verdict,
                           rm_lifetimes *lifetimes);

/* The same for an evaluation: every stage must run forward, and none is differentiated. */
remat_status rm_plan_check_forward(const rm_problem *problem, const rm_plan *plan, rm_verdict *verdict,
                                   rm_lifetimes *lifetimes);

/* When each step of a plan that passed begins, on the computation's clock, before it waits for anything: n_steps moments
 * since the first. MEMORY. */
remat_status rm_plan_times(const rm_problem *problem, const rm_plan *plan, bool forward_only, uint64_t *begin_ns);

#endif

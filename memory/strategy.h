/* strategy.h: a strategy proposes a plan; check.h disposes. To add one: a file strategy_NAME.c that ends in a
 * `const rm_strategy rm_strategy_NAME`, and a line STRATEGY(NAME) in strategies.def. It sees numbers only. */
#ifndef RM_STRATEGY_H
#define RM_STRATEGY_H

#include "memory/plan.h"

typedef struct {
    int64_t segments;           /* "segments": as asked, >= 1 */
    uint64_t budget_bytes;      /* of rm_schedule_bytes (schedule.h); 0: no limit */
    bool no_recompute;          /* run no stage forward twice */
    uint64_t least_block_bytes; /* the block is at least so large: something else lives in it at other times */
} rm_wish;

typedef struct {
    int64_t segments; /* that the plan has; 1 when everything is kept */
} rm_proposal;

struct rm_schedule;

typedef struct {
    const char *name, *doc;
    /* Appends a whole step to the empty *plan. INVALID: the wish makes no sense. INFEASIBLE: nothing fits. */
    remat_status (*propose)(const rm_problem *problem, const rm_wish *wish, rm_plan *plan, rm_proposal *proposal);
    /* For strategies that choose among many plans: rm_schedule_propose (schedule.h), done their way. NULL for those that
     * have only one. */
    remat_status (*choose)(const rm_problem *problem, const rm_wish *wish, struct rm_schedule *schedule);
} rm_strategy;

extern const rm_strategy *const rm_strategies[];
extern const int rm_n_strategies;
const rm_strategy *rm_strategy_find(const char *name); /* NULL: no such strategy */

/* Appends the forward runs of [begin,end), dropping. */
remat_status rm_plan_sweep(rm_plan *plan, int64_t begin, int64_t end);

/* The uniform schedule over given segment starts (ascending, start[0] == 0): shared by segments, sqrt and none.
 * Forward drops inside every segment but the last, keeping what crosses the cut at start[i]; each segment is then run
 * again to keep, last first, and differentiated. Every object is freed as soon as nothing reads it any more. A segment with
 * nothing to differentiate is not run again. */
remat_status rm_plan_from_segments(const rm_problem *problem, const int64_t *start, int64_t n_segments, rm_plan *plan);

/* No stage of [begin,end) keeps anything or has gradients: it is in front of all that is trained. */
bool rm_nothing_to_differentiate(const rm_problem *problem, int64_t begin, int64_t end);

/* The same with starts chosen here: n_segments (INVALID below 1; at most one per stage) of as nearly the same kept bytes
 * as whole stages allow. Of stages that are alike, the numbers of stages differ by at most one. */
remat_status rm_plan_evenly(const rm_problem *problem, int64_t n_segments, rm_plan *plan, rm_proposal *proposal);

/* Those starts alone: n_segments of them, 1 <= n_segments <= n_stages. */
void rm_cut_evenly(const rm_problem *problem, int64_t n_segments, int64_t *start);

#endif

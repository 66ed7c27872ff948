/* strategy.h: a strategy proposes a plan, and check.h judges it. To add one, write a file strategy_NAME.c that defines
 * `const rm_strategy rm_strategy_NAME`, and add a line STRATEGY(NAME) to strategies.def. A strategy sees only
 * numbers. */
#ifndef RM_STRATEGY_H
#define RM_STRATEGY_H

#include "memory/plan.h"

typedef struct {
    int64_t segments;           /* for "segments": the requested number, >= 1 */
    uint64_t budget_bytes;      /* limit of rm_schedule_bytes (schedule.h); 0: none */
    bool no_recompute;          /* runs no stage forward twice */
    uint64_t least_block_bytes; /* the minimum size of the block, since other data use it at other times */
} rm_plan_request;

typedef struct {
    int64_t segments; /* the number of segments; 1 if everything is kept */
} rm_proposal;

struct rm_schedule;

/* What of a request changes a strategy's plan: it has one plan for a problem, one for each number of segments, or one
 * for each budget. */
typedef enum { RM_ONE_PLAN, RM_PLANS_BY_SEGMENTS, RM_PLANS_BY_BUDGET } rm_strategy_plans;

typedef struct {
    const char *name, *doc;
    rm_strategy_plans plans;
    /* Appends a whole step to the empty *plan. INVALID: the plan request makes no sense. INFEASIBLE: nothing fits. */
    remat_status (*propose)(const rm_problem *problem, const rm_plan_request *request, rm_plan *plan,
                            rm_proposal *proposal);
    /* For strategies that choose among many plans: their own version of rm_schedule_propose (schedule.h). NULL for
     * strategies with a single plan. */
    remat_status (*choose)(const rm_problem *problem, const rm_plan_request *request, struct rm_schedule *schedule);
} rm_strategy;

extern const rm_strategy *const rm_strategies[];
extern const int rm_n_strategies;
const rm_strategy *rm_strategy_find(const char *name); /* NULL: no such strategy */

/* Appends forward runs of [begin,end) that drop. */
remat_status rm_plan_sweep(rm_plan *plan, int64_t begin, int64_t end);

/* The uniform schedule for given segment starts (ascending, start[0] == 0), shared by segments, sqrt and none. Forward
 * drops inside every segment except the last and keeps the states that cross the cut at start[i]. Then each segment,
 * last first, runs again to keep, and is differentiated. Every object is freed as soon as nothing reads it any more. A
 * segment with nothing to differentiate does not run again. */
remat_status rm_plan_from_segments(const rm_problem *problem, const int64_t *start, int64_t n_segments, rm_plan *plan);

/* Whether no stage of [begin,end) keeps anything or has gradients, because it comes before all trainable layers. */
bool rm_nothing_to_differentiate(const rm_problem *problem, int64_t begin, int64_t end);

/* The same, with n_segments segments (INVALID below 1; at most one per stage) whose kept bytes are as equal as whole
 * stages allow. For equal stages, segment lengths differ by at most one stage. */
remat_status rm_plan_evenly(const rm_problem *problem, int64_t n_segments, rm_plan *plan, rm_proposal *proposal);

/* Only computes these starts: n_segments of them, 1 <= n_segments <= n_stages. */
void rm_cut_evenly(const rm_problem *problem, int64_t n_segments, int64_t *start);

#endif

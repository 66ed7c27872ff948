/* schedule.h: a plan together with everything that is decided about it: judged, placed and compared with a budget. It
 * is the only way from a problem and a plan request to something that can run. */
#ifndef RM_SCHEDULE_H
#define RM_SCHEDULE_H

#include "memory/place.h"
#include "memory/strategy.h"
#include "memory/transfers.h"

typedef struct rm_schedule {
    rm_plan plan;
    rm_proposal proposal;
    rm_verdict verdict;
    rm_lifetimes lifetimes;
    rm_placement placement;
    rm_transfers transfers;     /* to and from the second tier */
    uint64_t least_block_bytes; /* as in the plan request */
} rm_schedule;
void rm_schedule_free(rm_schedule *schedule); /* leaves it zeroed */

/* The bytes that the schedule needs besides the resident ones: its block (placement.bytes, or the requested minimum if
 * that is larger), and the tables on the host that describe it at run time (steps, lifetimes, offsets, transfers). This
 * is what a budget limits. */
uint64_t rm_schedule_bytes(const rm_schedule *schedule);
uint64_t rm_schedule_table_bytes(const rm_schedule *schedule); /* the part that is tables */
uint64_t rm_table_bytes(int64_t n_steps, int64_t n_lifetimes); /* these tables without transfers */

/* Judges and places the plan that is in *schedule, and checks the placement independently. */
remat_status rm_schedule_settle(const rm_problem *problem, bool forward_only, rm_schedule *schedule);

/* Proposes and settles a strategy's plan in the zeroed *schedule. If the plan request has a budget, `optimal` takes the
 * fastest plan that fits; other strategies have only one plan. INFEASIBLE: no plan fits, and *schedule holds the plan
 * that needs the fewest bytes (a budget of exactly its rm_schedule_bytes works, one byte less does not). The message is
 * general; a caller that knows names replaces it. Other failures leave *schedule zeroed. */
remat_status rm_schedule_propose(const rm_problem *problem, const rm_strategy *strategy, const rm_plan_request *request,
                                 rm_schedule *schedule);

#endif

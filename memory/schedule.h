/* schedule.h: a plan with everything decided about it: judged, placed, weighed against a budget. The one way from a
 * problem and a wish to something that can run. */
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
    uint64_t least_block_bytes; /* as in the wish */
} rm_schedule;
void rm_schedule_free(rm_schedule *schedule); /* frees what is inside, leaves it zeroed */

/* What the schedule asks of a machine beside what is resident: its block (placement.bytes, or
 * what was wished for at least), and the tables on the host
 * that describe it while it runs (steps, lifetimes, offsets, transfers). This is what a budget limits. */
uint64_t rm_schedule_bytes(const rm_schedule *schedule);
uint64_t rm_schedule_table_bytes(const rm_schedule *schedule); /* of it, the tables */
uint64_t rm_table_bytes(int64_t n_steps, int64_t n_lifetimes); /* of them, without transfers */

/* Judges, places, and asks the second opinion, for a schedule whose plan is there. */
remat_status rm_schedule_settle(const rm_problem *problem, bool forward_only, rm_schedule *schedule);

/* The plan of a strategy, settled, into the zeroed *schedule. With a budget in the wish `optimal` takes the fastest plan
 * that fits; other strategies have only one. INFEASIBLE: it does not fit, and *schedule then holds the plan that needs
 * least (a budget of exactly rm_schedule_bytes of it works, one byte less does not); the sentence is general, for the
 * caller to replace by one that knows names. Other failures leave *schedule zeroed. */
remat_status rm_schedule_propose(const rm_problem *problem, const rm_strategy *strategy, const rm_wish *wish,
                                 rm_schedule *schedule);

#endif

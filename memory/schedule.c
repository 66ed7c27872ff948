/* schedule.c: see schedule.h. */
#include "memory/schedule.h"

#include <string.h>

void rm_schedule_free(rm_schedule *schedule) {
    rm_plan_free(&schedule->plan);
    rm_lifetimes_free(&schedule->lifetimes);
    rm_placement_free(&schedule->placement);
    rm_transfers_free(&schedule->transfers);
    memset(schedule, 0, sizeof *schedule);
}

uint64_t rm_table_bytes(int64_t n_steps, int64_t n_lifetimes) {
    return (uint64_t)n_steps * sizeof(rm_step) + (uint64_t)n_lifetimes * (sizeof(rm_lifetime) + sizeof(uint64_t));
}

uint64_t rm_schedule_table_bytes(const rm_schedule *schedule) {
    return rm_table_bytes(schedule->plan.n_steps, schedule->lifetimes.count) + schedule->transfers.table_bytes;
}

uint64_t rm_schedule_bytes(const rm_schedule *schedule) {
    uint64_t placed = schedule->placement.bytes, least = schedule->least_block_bytes;
    return (placed > least ? placed : least) + rm_schedule_table_bytes(schedule);
}

remat_status rm_schedule_settle(const rm_problem *problem, bool forward_only, rm_schedule *schedule) {
    rm_plan_shrink(&schedule->plan);
    TRY((forward_only ? rm_plan_check_forward : rm_plan_check)(problem, &schedule->plan, &schedule->verdict,
                                                               &schedule->lifetimes));
    TRY(rm_place(&schedule->lifetimes, &schedule->placement));
    TRY(rm_transfers_find(problem, &schedule->plan, &schedule->transfers));
    return rm_placement_check(&schedule->lifetimes, &schedule->placement);
}

remat_status rm_schedule_propose(const rm_problem *problem, const rm_strategy *strategy, const rm_plan_request *request,
                                 rm_schedule *schedule) {
    if (strategy->choose) return strategy->choose(problem, request, schedule);
    schedule->least_block_bytes = request->least_block_bytes;
    remat_status status = strategy->propose(problem, request, &schedule->plan, &schedule->proposal);
    if (!status) status = rm_schedule_settle(problem, false, schedule);
    if (status) {
        rm_schedule_free(schedule);
        return status;
    }
    if (!request->budget_bytes || rm_schedule_bytes(schedule) <= request->budget_bytes) return REMAT_OK;
    FAIL(INFEASIBLE, "the plan needs %llu bytes, but the budget is %llu",
         (unsigned long long)rm_schedule_bytes(schedule), (unsigned long long)request->budget_bytes);
}

/* strategy_none.c: keeps everything in one segment and runs nothing twice. The fastest plan, and the largest. */
#include "memory/strategy.h"

static remat_status propose(const rm_problem *problem, const rm_plan_request *request, rm_plan *plan,
                            rm_proposal *proposal) {
    (void)request;
    proposal->segments = 1;
    return rm_plan_from_segments(problem, (const int64_t[]){0}, 1, plan);
}

const rm_strategy rm_strategy_none = {
    .name = "none",
    .doc = "keep every activation; nothing is recomputed",
    .propose = propose,
};

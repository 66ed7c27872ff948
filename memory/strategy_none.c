/* strategy_none.c: keep everything; one segment, nothing is run twice. The fastest, and the largest. */
#include "memory/strategy.h"

static remat_status propose(const rm_problem *problem, const rm_wish *wish, rm_plan *plan, rm_proposal *proposal) {
    (void)wish;
    proposal->segments = 1;
    return rm_plan_from_segments(problem, (const int64_t[]){0}, 1, plan);
}

const rm_strategy rm_strategy_none = {
    .name = "none",
    .doc = "keep every activation; nothing is recomputed",
    .propose = propose,
};

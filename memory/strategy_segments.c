/* strategy_segments.c: as many segments as the user asks for, at most one per stage. */
#include "memory/strategy.h"

static remat_status propose(const rm_problem *problem, const rm_plan_request *request, rm_plan *plan,
                            rm_proposal *proposal) {
    return rm_plan_evenly(problem, request->segments, plan, proposal);
}

const rm_strategy rm_strategy_segments = {
    .name = "segments",
    .doc = "N even segments; all but the last are recomputed, one at a time",
    .plans = RM_PLANS_BY_SEGMENTS,
    .propose = propose,
};

/* strategy_sqrt.c: sqrt(S) segments of S stages. With N checkpoints and S/N stages kept at a time, N + S/N is smallest
 * at N = sqrt(S) if a checkpoint costs as much as a stage (Chen et al., "Training deep nets with sublinear memory
 * cost", 2016). A recurrent net's checkpoints are far smaller than its stages, so more segments save more memory there:
 * see `segments`. */
#include "memory/strategy.h"

#include <math.h>

static remat_status propose(const rm_problem *problem, const rm_plan_request *request, rm_plan *plan,
                            rm_proposal *proposal) {
    (void)request;
    return rm_plan_evenly(problem, llround(sqrt((double)problem->n_stages)), plan, proposal);
}

const rm_strategy rm_strategy_sqrt = {
    .name = "sqrt",
    .doc = "as many even segments as the square root of the number of stages",
    .propose = propose,
};

/* strategy_lean.c: keeps every stage in its option "lean". Nothing runs forward twice, and the step takes as little
 * memory as this allows. At the end of the chain the most bytes are alive, and few remain to be made: the last stages
 * keep everything as long as the peak does not rise. */
#include "memory/strategy.h"

#include <string.h>

#include "memory/host.h"
#include "memory/lean.h"

static int lean_option(const rm_stage *stage) {
    for (int k = 0; k < stage->n_options; k++)
        if (!strcmp(stage->option[k].name, "lean")) return k;
    return 0;
}

static uint64_t most_alive(rm_kept kept) {
    return kept.forward_bytes > kept.backward_bytes ? kept.forward_bytes : kept.backward_bytes;
}

/* Sets option 0 for as many of the last stages as the peak allows. */
static void relax_the_last(const rm_footprint *footprint, int8_t *option) {
    if (!footprint->exact) return;
    const rm_foot *foot = footprint->foot;
    rm_kept all = {0}, tail = {0}; /* tail: the stages after s, as they are kept now */
    for (int64_t s = 0; s < footprint->problem->n_stages; s++) all = rm_kept_then(all, foot[s].kept[option[s]]);
    rm_kept before = {.held_bytes = all.held_bytes};
    for (int64_t s = footprint->problem->n_stages - 1; s >= 0; s--) {
        before.held_bytes -= foot[s].kept[option[s]].held_bytes;
        tail = rm_kept_then(foot[s].kept[0], tail);
        if (most_alive(rm_kept_then(before, tail)) > most_alive(all)) return;
        option[s] = 0;
    }
}

void rm_lean_options(const rm_footprint *footprint, int8_t *option) {
    const rm_problem *problem = footprint->problem;
    for (int64_t s = 0; s < problem->n_stages; s++) option[s] = (int8_t)lean_option(&problem->stage[s]);
    relax_the_last(footprint, option);
}

remat_status rm_plan_keep_all(const rm_problem *problem, const int8_t *option, rm_plan *plan) {
    int64_t n = problem->n_stages;
    for (int64_t s = 0; s < n; s++) TRY(rm_plan_run_forward(plan, s, option[s]));
    for (int64_t s = n - 1; s >= 0; s--) TRY(rm_plan_run_backward(plan, s));
    return rm_plan_free_dead(problem, plan);
}

static remat_status propose(const rm_problem *problem, const rm_plan_request *request, rm_plan *plan,
                            rm_proposal *proposal) {
    (void)request;
    proposal->segments = 1;
    rm_footprint footprint = {0};
    TRY(rm_footprint_make(problem, &footprint));
    int8_t *option = rm_malloc((size_t)problem->n_stages);
    remat_status status = REMAT_OK;
    if (option) {
        rm_lean_options(&footprint, option);
        status = rm_plan_keep_all(problem, option, plan);
    } else {
        status = rm_fail(REMAT_MEMORY, "out of host memory to plan for %lld stages", (long long)problem->n_stages);
    }
    rm_free(option);
    rm_footprint_free(&footprint);
    return status;
}

const rm_strategy rm_strategy_lean = {
    .name = "lean",
    .doc = "keep less of every stage and rebuild the rest in backward; nothing is run twice",
    .propose = propose,
};

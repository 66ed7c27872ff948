/* lean.h: the options of the strategy `lean` (strategy_lean.c), for callers that need its cost without writing the
 * plan. */
#ifndef RM_LEAN_H
#define RM_LEAN_H

#include "memory/footprint.h"
#include "memory/plan.h"

/* Fills option[0..n_stages-1]: "lean" for each stage that has it, except for as many of the last stages as can keep
 * everything without raising the peak. */
void rm_lean_options(const rm_footprint *footprint, int8_t *option);

/* Appends a whole step that runs every stage once, kept in these options. */
remat_status rm_plan_keep_all(const rm_problem *problem, const int8_t *option, rm_plan *plan);

#endif

/* plans.h: random plans from a seed, over the chains of chains.h: nested segments, stages kept in either option, and
 * lifetimes as they are with a second tier. They test and benchmark memory/place.h, which must also cope with plans
 * that no strategy makes yet. */
#ifndef TEST_PLANS_H
#define TEST_PLANS_H

#include <stdlib.h>

#include "memory/check.h"
#include "memory/strategy.h"
#include "tests/memory/chains.h"

/* Keeps [begin,end), each stage in a random option, and differentiates it. */
static inline remat_status leaf_plan(dice *d, const rm_problem *problem, int64_t begin, int64_t end, rm_plan *plan) {
    for (int64_t s = begin; s < end; s++)
        TRY(rm_plan_run_forward(plan, s, (int)roll_below(d, problem->stage[s].n_options)));
    for (int64_t s = end - 1; s >= begin; s--) TRY(rm_plan_run_backward(plan, s));
    return REMAT_OK;
}

/* Sweeps to a split, solves the part to the right of it, then the part to the left. `leaf`: the most stages kept at
 * once. Splits in the middle, or anywhere if `ragged`. */
static inline remat_status nested_part(dice *d, const rm_problem *problem, int64_t begin, int64_t end, int64_t leaf,
                                       bool ragged, rm_plan *plan) {
    while (end - begin > leaf) {
        int64_t split = begin + (ragged ? 1 + roll_below(d, end - begin - 1) : (end - begin) / 2);
        TRY(rm_plan_sweep(plan, begin, split));
        TRY(nested_part(d, problem, split, end, leaf, ragged, plan));
        end = split;
    }
    return leaf_plan(d, problem, begin, end, plan);
}

static inline remat_status nested_plan(dice *d, const rm_problem *problem, int64_t leaf, bool ragged, rm_plan *plan) {
    TRY(nested_part(d, problem, 0, problem->n_stages, leaf, ragged, plan));
    return rm_plan_free_dead(problem, plan);
}

static inline int by_first(const void *a, const void *b) {
    const rm_lifetime *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Every `one_in`th long-lived buffer is written out soon after it was made, and is loaded up to `ahead` steps before
 * its end. */
static inline void spill_some(dice *d, int64_t one_in, int64_t ahead, rm_lifetimes *l) {
    rm_lifetime *item = realloc(l->item, (size_t)(2 * l->count + 1) * sizeof *item);
    if (!item) abort();
    l->item = item;
    for (int64_t i = 0, n = l->count; i < n; i++) {
        int64_t room = item[i].last - item[i].first;
        if (room < 4 || roll_below(d, one_in)) continue;
        rm_lifetime back = item[i];
        int64_t out = 1 + roll_below(d, room / 4 + 1 < ahead ? room / 4 + 1 : ahead);
        int64_t in = 1 + roll_below(d, room / 4 + 1 < ahead ? room / 4 + 1 : ahead);
        item[i].last = item[i].first + out;
        back.first = back.last - in;
        item[l->count++] = back;
    }
    l->capacity = l->count;
    qsort(item, (size_t)l->count, sizeof *item, by_first); /* the order of equal elements does not matter */
}

#endif

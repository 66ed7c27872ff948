/* strategy_optimal.c: the fastest plan that fits the budget, of all families (family.h). Main entry: choose.
 *
 * All members stand in one order, the fastest first, that has nothing to do with the budget; the first whose
 * rm_schedule_bytes fit is taken. So a larger budget never gives a slower plan, nor one that takes less. What a member
 * takes is known for certain only when it has been written, judged and placed. But no placement is below the peak, and
 * the tables can be counted: that floor spares writing what cannot fit. */
#include "memory/schedule.h"

#include <stdlib.h>

#include "memory/family.h"
#include "memory/host.h"

typedef struct {
    uint64_t time_ns;
    uint64_t floor_bytes; /* of rm_schedule_bytes; 0: unknown */
    int32_t family;
    int64_t index;
} choice;

enum { FAMILIES = 2 };

typedef struct {
    const rm_problem *problem;
    rm_family family[FAMILIES];
    choice *choice;
    int64_t count;
} menu;

static int by_time(const void *a, const void *b) {
    const choice *x = a, *y = b;
    if (x->time_ns != y->time_ns) return x->time_ns < y->time_ns ? -1 : 1;
    if (x->floor_bytes != y->floor_bytes) return x->floor_bytes < y->floor_bytes ? -1 : 1;
    if (x->family != y->family) return x->family - y->family;
    return (x->index > y->index) - (x->index < y->index);
}

static int by_floor(const void *a, const void *b) {
    const choice *x = a, *y = b;
    if (x->floor_bytes != y->floor_bytes) return x->floor_bytes < y->floor_bytes ? -1 : 1;
    return by_time(a, b);
}

static void close_menu(menu *m) {
    for (int i = 0; i < FAMILIES; i++) rm_family_free(&m->family[i]);
    rm_free(m->choice);
}

static remat_status open_menu(const rm_problem *problem, const rm_wish *wish, menu *m) {
    m->problem = problem;
    TRY(rm_family_recompute(problem, wish, &m->family[0]));
    TRY(rm_family_spill(problem, wish, &m->family[1]));
    for (int i = 0; i < FAMILIES; i++) m->count += m->family[i].count;
    m->choice = rm_malloc((size_t)m->count * sizeof *m->choice);
    REQUIRE(m->choice, MEMORY, "out of host memory to choose among %lld plans", (long long)m->count);
    choice *next = m->choice;
    for (int f = 0; f < FAMILIES; f++)
        for (int64_t i = 0; i < m->family[f].count; i++) {
            const rm_member *member = &m->family[f].member[i];
            uint64_t floor = member->exact ? member->peak_bytes + member->table_bytes : 0;
            *next++ = (choice){member->time_ns, floor, f, i};
        }
    return REMAT_OK;
}

/* The schedule of a choice, if it takes no more than `limit`; else *schedule is left zeroed. */
static remat_status settle(const menu *m, const choice *choice, uint64_t limit, rm_schedule *schedule) {
    const rm_family *family = &m->family[choice->family];
    *schedule = (rm_schedule){0};
    remat_status status = REMAT_OK;
    TRY_GOTO(status, refused, family->write(family, m->problem, choice->index, &schedule->plan, &schedule->proposal));
    TRY_GOTO(status, refused, rm_plan_check(m->problem, &schedule->plan, &schedule->verdict, &schedule->lifetimes));
    uint64_t tables = rm_table_bytes(schedule->plan.n_steps, schedule->lifetimes.count);
    if (schedule->verdict.peak_bytes + tables > limit) goto refused;
    TRY_GOTO(status, refused, rm_place(&schedule->lifetimes, &schedule->placement));
    TRY_GOTO(status, refused, rm_transfers_find(m->problem, &schedule->plan, &schedule->transfers));
    if (rm_schedule_bytes(schedule) > limit) goto refused;
    return REMAT_OK;
refused:
    rm_schedule_free(schedule);
    return status;
}

static bool settled(const rm_schedule *schedule) { return schedule->plan.n_steps > 0; }

static remat_status take_fastest(menu *m, uint64_t limit, rm_schedule *schedule) {
    qsort(m->choice, (size_t)m->count, sizeof *m->choice, by_time);
    for (int64_t i = 0; i < m->count && !settled(schedule); i++)
        if (m->choice[i].floor_bytes <= limit) TRY(settle(m, &m->choice[i], limit, schedule));
    return settled(schedule) ? rm_placement_check(&schedule->lifetimes, &schedule->placement) : REMAT_OK;
}

static remat_status take_least(menu *m, rm_schedule *schedule) {
    qsort(m->choice, (size_t)m->count, sizeof *m->choice, by_floor);
    uint64_t least = UINT64_MAX;
    for (int64_t i = 0; i < m->count && m->choice[i].floor_bytes < least; i++) {
        rm_schedule better;
        TRY(settle(m, &m->choice[i], least - 1, &better));
        if (!settled(&better)) continue;
        rm_schedule_free(schedule);
        *schedule = better;
        least = rm_schedule_bytes(schedule);
    }
    return REMAT_OK;
}

static remat_status choose_from(menu *m, const rm_wish *wish, rm_schedule *schedule) {
    TRY(take_fastest(m, wish->budget_bytes ? wish->budget_bytes : UINT64_MAX, schedule));
    if (settled(schedule)) return REMAT_OK;
    TRY(take_least(m, schedule));
    FAIL(INFEASIBLE, "no plan fits the budget of %llu bytes; the least that works is %llu",
         (unsigned long long)wish->budget_bytes, (unsigned long long)rm_schedule_bytes(schedule));
}

static remat_status choose(const rm_problem *problem, const rm_wish *wish, rm_schedule *schedule) {
    menu m = {0};
    *schedule = (rm_schedule){0};
    remat_status status = open_menu(problem, wish, &m);
    if (!status) status = choose_from(&m, wish, schedule);
    if (status && status != REMAT_INFEASIBLE) rm_schedule_free(schedule);
    close_menu(&m);
    return status;
}

/* The plan alone. */
static remat_status propose(const rm_problem *problem, const rm_wish *wish, rm_plan *plan, rm_proposal *proposal) {
    rm_schedule schedule;
    remat_status status = choose(problem, wish, &schedule);
    if (!status) {
        *plan = schedule.plan;
        *proposal = schedule.proposal;
        schedule.plan = (rm_plan){0};
    }
    rm_schedule_free(&schedule);
    return status;
}

const rm_strategy rm_strategy_optimal = {
    .name = "optimal",
    .doc = "the fastest plan that fits the memory budget",
    .propose = propose,
    .choose = choose,
};

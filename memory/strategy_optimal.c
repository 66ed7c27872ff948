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
    uint64_t floor_bytes; /* of rm_schedule_bytes */
    uint64_t bytes;       /* rm_schedule_bytes; 0: not placed yet */
    int32_t family;
    int64_t index;
} choice;

enum { FAMILIES = 3, LEAST_TRIES = 8, LEAST_BUFFERS = 40000 };

typedef struct {
    const rm_problem *problem;
    uint64_t least_block_bytes;
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

static bool is_large(const rm_problem *problem) { return problem->n_stages >= 1000; }

/* What planning needs for a moment must not add up: the next to be written would take new pages beside the old ones. */
static void give_back(const rm_problem *problem) {
    if (is_large(problem)) rm_host_trim();
}

/* What a block takes at least that holds so many bytes. */
static uint64_t block_bytes(const menu *m, uint64_t peak_bytes) {
    return peak_bytes > m->least_block_bytes ? peak_bytes : m->least_block_bytes;
}

/* What a member's rm_schedule_bytes cannot be below: as it says, or as the judge finds. */
static remat_status find_floor(const menu *m, int f, int64_t i, uint64_t *floor_bytes) {
    const rm_family *family = &m->family[f];
    const rm_member *member = &family->member[i];
    *floor_bytes = block_bytes(m, member->peak_bytes) + member->table_bytes;
    if (member->exact) return REMAT_OK;
    rm_plan plan = {0};
    rm_proposal unused;
    rm_verdict verdict;
    remat_status status = family->write(family, m->problem, i, &plan, &unused);
    if (!status) status = rm_plan_check(m->problem, &plan, &verdict, NULL);
    if (!status) *floor_bytes = block_bytes(m, verdict.peak_bytes) + rm_table_bytes(plan.n_steps, 0);
    rm_plan_free(&plan);
    return status;
}

static remat_status open_menu(const rm_problem *problem, const rm_wish *wish, menu *m) {
    m->problem = problem;
    m->least_block_bytes = wish->least_block_bytes;
    TRY(rm_family_evict(problem, wish, &m->family[1]));
    bool covered = m->family[1].count && problem->n_stages <= RM_EVICT_STAGES;
    if (!covered) TRY(rm_family_recompute(problem, wish, &m->family[0]));
    TRY(rm_family_spill(problem, wish, &m->family[2]));
    give_back(problem);
    for (int i = 0; i < FAMILIES; i++) m->count += m->family[i].count;
    m->choice = rm_malloc((size_t)m->count * sizeof *m->choice);
    REQUIRE(m->choice, MEMORY, "out of host memory to choose among %lld plans", (long long)m->count);
    choice *next = m->choice;
    for (int f = 0; f < FAMILIES; f++)
        for (int64_t i = 0; i < m->family[f].count; i++, next++) {
            *next = (choice){.time_ns = m->family[f].member[i].time_ns, .family = f, .index = i};
            TRY(find_floor(m, f, i, &next->floor_bytes));
        }
    return REMAT_OK;
}

/* The schedule of a choice, if it takes no more than `limit`; else *schedule is left zeroed. */
static remat_status settle(const menu *m, choice *choice, uint64_t limit, rm_schedule *schedule) {
    const rm_family *family = &m->family[choice->family];
    *schedule = (rm_schedule){.least_block_bytes = m->least_block_bytes};
    remat_status status = REMAT_OK;
    TRY_GOTO(status, refused, family->write(family, m->problem, choice->index, &schedule->plan, &schedule->proposal));
    rm_plan_shrink(&schedule->plan);
    TRY_GOTO(status, refused, rm_plan_check(m->problem, &schedule->plan, &schedule->verdict, &schedule->lifetimes));
    uint64_t tables = rm_table_bytes(schedule->plan.n_steps, schedule->lifetimes.count);
    if (block_bytes(m, schedule->verdict.peak_bytes) + tables > limit) goto refused;
    TRY_GOTO(status, refused, rm_place(&schedule->lifetimes, &schedule->placement));
    TRY_GOTO(status, refused, rm_transfers_find(m->problem, &schedule->plan, &schedule->transfers));
    choice->bytes = rm_schedule_bytes(schedule);
    if (choice->bytes > limit) goto refused;
    return REMAT_OK;
refused:
    rm_schedule_free(schedule);
    give_back(m->problem);
    return status;
}

static bool settled(const rm_schedule *schedule) { return schedule->plan.n_steps > 0; }

static remat_status take_fastest(menu *m, uint64_t limit, rm_schedule *schedule, choice *chosen) {
    qsort(m->choice, (size_t)m->count, sizeof *m->choice, by_time);
    for (int64_t i = 0; i < m->count && !settled(schedule); i++) {
        if (m->choice[i].floor_bytes > limit) continue;
        TRY(settle(m, &m->choice[i], limit, schedule));
        *chosen = m->choice[i];
    }
    return settled(schedule) ? rm_placement_check(&schedule->lifetimes, &schedule->placement) : REMAT_OK;
}

static uint64_t lowest_floor(const menu *m) {
    uint64_t lowest = UINT64_MAX;
    for (int64_t i = 0; i < m->count; i++)
        if (m->choice[i].floor_bytes < lowest) lowest = m->choice[i].floor_bytes;
    return lowest;
}

/* The least there is, of the few whose floors are lowest. That it is the least is a promise as well as a finding: a budget
 * below it is refused (choose_from), even if some other plan happened to fit. More than a few are tried only until one is
 * found that takes at most twice the lowest floor: so what takes twice that is certain to be no less than the least.
 * One that is within the budget is as good as the least, and ends the search. */
static remat_status take_least(menu *m, uint64_t budget_bytes, rm_schedule *schedule, uint64_t *bytes) {
    qsort(m->choice, (size_t)m->count, sizeof *m->choice, by_floor);
    uint64_t least = UINT64_MAX, lowest = lowest_floor(m);
    int64_t placed = 0; /* buffers */
    for (int64_t i = 0; i < m->count && m->choice[i].floor_bytes < least && budget_bytes < least; i++) {
        choice *next = &m->choice[i];
        rm_schedule better;
        if (least / 2 <= lowest && (i >= LEAST_TRIES || placed > LEAST_BUFFERS)) break;
        if (next->bytes && next->bytes <= budget_bytes) return *bytes = next->bytes, REMAT_OK;
        TRY(settle(m, next, least - 1, &better));
        placed += m->family[next->family].member[next->index].runs * 4;
        if (!settled(&better)) continue;
        rm_schedule_free(schedule);
        *schedule = better;
        least = next->bytes;
    }
    *bytes = least;
    return REMAT_OK;
}

/* Is it certain that the least is no more than this? */
static bool above_least(const menu *m, const rm_schedule *schedule) {
    return (rm_schedule_bytes(schedule) - 1) / 2 >= lowest_floor(m);
}

/* Refuses a budget below the least: *schedule becomes the least then. */
static remat_status require_least(menu *m, const rm_wish *wish, rm_schedule *schedule) {
    rm_schedule least = {0};
    uint64_t least_bytes = 0;
    remat_status status = take_least(m, wish->budget_bytes, &least, &least_bytes);
    if (!status && least_bytes > wish->budget_bytes)
        status = rm_fail(REMAT_INFEASIBLE, "no plan fits the budget of %llu bytes; the least that works is %llu",
                         (unsigned long long)wish->budget_bytes, (unsigned long long)least_bytes);
    if (status == REMAT_INFEASIBLE) {
        rm_schedule_free(schedule);
        *schedule = least;
    } else {
        rm_schedule_free(&least);
    }
    return status;
}

/* A large schedule is not kept while the least is looked for, but made once more: two would be more than a budget that is
 * near the least allows the process. */
static remat_status choose_from(menu *m, const rm_wish *wish, rm_schedule *schedule) {
    choice chosen = {0};
    TRY(take_fastest(m, wish->budget_bytes ? wish->budget_bytes : UINT64_MAX, schedule, &chosen));
    if (settled(schedule) && (!wish->budget_bytes || above_least(m, schedule))) return REMAT_OK;
    bool again = settled(schedule) && is_large(m->problem);
    if (again) rm_schedule_free(schedule);
    give_back(m->problem);
    TRY(require_least(m, wish, schedule));
    give_back(m->problem);
    return again ? settle(m, &chosen, wish->budget_bytes, schedule) : REMAT_OK;
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

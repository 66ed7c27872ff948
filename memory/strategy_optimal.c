/* strategy_optimal.c: the fastest plan that fits the budget, from all families (family.h). Main entry: choose.
 *
 * All members are sorted by speed, fastest first, independently of the budget; the first member whose rm_schedule_bytes
 * fit is taken. A larger budget therefore never gives a slower plan, nor a plan that takes less. The exact bytes of a
 * member are known only after it has been written, judged and placed. But no placement is below the peak, and the
 * tables can be counted. This floor saves writing plans that cannot fit. */
#include "memory/schedule.h"

#include <stdlib.h>

#include "memory/family.h"
#include "memory/host.h"

typedef struct {
    uint64_t time_ns;
    uint64_t floor_bytes; /* a lower bound of rm_schedule_bytes */
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

/* Temporary memory of planning must not add up: the next plan would take new pages in addition to the old ones. */
static void give_back(const rm_problem *problem) {
    if (is_large(problem)) rm_host_trim();
}

/* The smallest block that can hold so many bytes. */
static uint64_t block_bytes(const menu *m, uint64_t peak_bytes) {
    return peak_bytes > m->least_block_bytes ? peak_bytes : m->least_block_bytes;
}

/* A lower bound of a member's rm_schedule_bytes, from its own figures or from the judge. */
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

static remat_status open_menu(const rm_problem *problem, const rm_plan_request *request, menu *m) {
    m->problem = problem;
    m->least_block_bytes = request->least_block_bytes;
    TRY(rm_family_evict(problem, request, &m->family[1]));
    bool covered = m->family[1].count && problem->n_stages <= RM_EVICT_STAGES;
    if (!covered) TRY(rm_family_recompute(problem, request, &m->family[0]));
    TRY(rm_family_spill(problem, request, &m->family[2]));
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

/* Makes the schedule of a choice if it takes at most `limit` bytes; otherwise *schedule is left zeroed. */
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

/* Takes the smallest of the few plans with the lowest floors. This minimum is also a promise: a budget below it is
 * refused (choose_from), even if some other plan would fit. More than a few are tried only until one takes at most
 * twice the lowest floor, so that any plan of twice that size is certainly no smaller than the minimum. A plan within
 * the budget is as good as the smallest and ends the search. */
static remat_status take_least(menu *m, uint64_t budget_bytes, rm_schedule *schedule, uint64_t *bytes) {
    qsort(m->choice, (size_t)m->count, sizeof *m->choice, by_floor);
    uint64_t least = UINT64_MAX, lowest = lowest_floor(m);
    int64_t placed = 0; /* number of buffers placed */
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

/* Whether this schedule is certain to take at least the minimum. */
static bool above_least(const menu *m, const rm_schedule *schedule) {
    return (rm_schedule_bytes(schedule) - 1) / 2 >= lowest_floor(m);
}

/* Refuses a budget below the minimum; *schedule then becomes the smallest plan. */
static remat_status require_least(menu *m, const rm_plan_request *request, rm_schedule *schedule) {
    rm_schedule least = {0};
    uint64_t least_bytes = 0;
    remat_status status = take_least(m, request->budget_bytes, &least, &least_bytes);
    if (!status && least_bytes > request->budget_bytes)
        status = rm_fail(REMAT_INFEASIBLE, "no plan fits the budget of %llu bytes; the least that works is %llu",
                         (unsigned long long)request->budget_bytes, (unsigned long long)least_bytes);
    if (status == REMAT_INFEASIBLE) {
        rm_schedule_free(schedule);
        *schedule = least;
    } else {
        rm_schedule_free(&least);
    }
    return status;
}

/* A large schedule is discarded and made again while the minimum is searched: with a budget near the minimum, the
 * process has no room for two. */
static remat_status choose_from(menu *m, const rm_plan_request *request, rm_schedule *schedule) {
    choice chosen = {0};
    TRY(take_fastest(m, request->budget_bytes ? request->budget_bytes : UINT64_MAX, schedule, &chosen));
    if (settled(schedule) && (!request->budget_bytes || above_least(m, schedule))) return REMAT_OK;
    bool again = settled(schedule) && is_large(m->problem);
    if (again) rm_schedule_free(schedule);
    give_back(m->problem);
    TRY(require_least(m, request, schedule));
    give_back(m->problem);
    return again ? settle(m, &chosen, request->budget_bytes, schedule) : REMAT_OK;
}

static remat_status choose(const rm_problem *problem, const rm_plan_request *request, rm_schedule *schedule) {
    menu m = {0};
    *schedule = (rm_schedule){0};
    remat_status status = open_menu(problem, request, &m);
    if (!status) status = choose_from(&m, request, schedule);
    if (status && status != REMAT_INFEASIBLE) rm_schedule_free(schedule);
    close_menu(&m);
    return status;
}

/* Writes only the plan. */
static remat_status propose(const rm_problem *problem, const rm_plan_request *request, rm_plan *plan,
                            rm_proposal *proposal) {
    rm_schedule schedule;
    remat_status status = choose(problem, request, &schedule);
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
    .plans = RM_PLANS_BY_BUDGET,
    .propose = propose,
    .choose = choose,
};

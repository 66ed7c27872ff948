/* test_spill_plans.c: the family of plans that spill. Members have the figures that they claim. With both families,
 * `optimal` is never slower than the better of the two alone, at 50 budgets (10 under sanitizers) on many kinds of
 * chains. */
#include <time.h>

#include "memory/family.h"
#include "memory/host.h"
#include "memory/schedule.h"
#include "tests/cases.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"
#include "tests/suite.h"

/* Processor time, which does not depend on what else runs. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A chain like the tiles of a recurrent net, with a channel that moves a block in `block_ns` and thereby delays the
 * computation by `cost_ns`. */
static void tiles(int64_t n, bool unlike, uint64_t block_ns, uint64_t cost_ns, rm_problem *problem) {
    chain c = {
        .n_stages = n, .unlike = unlike, .state_bytes = 256, .saved_bytes = 64000, .scratch_bytes = 9000, .lean = true};
    ck_ok(chain_problem(&c, (uint64_t)n + block_ns, problem));
    problem->tier.load_bytes_per_s = 64000u * 1000000000ull / block_ns;
    problem->tier.save_bytes_per_s = problem->tier.load_bytes_per_s * 5 / 4;
    problem->tier.latency_ns = 10;
    problem->tier.cost_ns_per_mib = cost_ns * (1 << 20) / 64000;
}

static void some_chain(uint64_t seed, rm_problem *problem) {
    chain c = {.n_stages = 1 + (int64_t)(seed % 13),
               .unlike = seed % 2,
               .state_bytes = seed % 3 * 128,
               .saved_bytes = 4000,
               .scratch_bytes = 999,
               .skips = (int)(seed % 4),
               .shares = seed % 5 < 2,
               .lean = seed % 7 < 3};
    ck_ok(chain_problem(&c, seed, problem));
    problem->tier =
        (rm_tier){1000000ull << seed % 14, 700000ull << seed % 15, seed % 2 ? 0 : 100, seed % 3 << 15, seed % 11 << 9};
}

static void is_as_it_says(const rm_problem *problem, bool no_recompute) {
    rm_family family;
    int kinds = 0;
    ck_ok(rm_family_spill(problem, &(rm_plan_request){.no_recompute = no_recompute}, &family));
    ck_assert_int_gt(family.count, 0);
    for (int64_t i = 0; i < family.count; i++) {
        const rm_member *member = &family.member[i];
        rm_schedule schedule = {0};
        ck_ok(family.write(&family, problem, i, &schedule.plan, &schedule.proposal));
        ck_ok(rm_schedule_settle(problem, false, &schedule));
        ck_assert_uint_eq(schedule.verdict.peak_bytes, member->peak_bytes);
        ck_assert_uint_eq(schedule.verdict.total_ns, member->time_ns);
        ck_assert_int_eq(schedule.verdict.recomputed_stages, member->runs - problem->n_stages);
        ck_assert_uint_eq(rm_schedule_bytes(&schedule) - schedule.placement.bytes, member->table_bytes);
        if (no_recompute) ck_assert_int_eq(member->runs, problem->n_stages);
        uint64_t bytes = member->peak_bytes + member->table_bytes;
        bool slower = i > 0 && member->time_ns >= member[-1].time_ns;
        bool smaller = i > 0 && bytes <= member[-1].peak_bytes + member[-1].table_bytes;
        kinds += i == 0 || slower || smaller;
        rm_schedule_free(&schedule);
    }
    ck_assert_int_le(kinds, 2); /* with states in memory, with states spilled */
    rm_family_free(&family);
}

START_TEST(members_have_the_figures_they_claim) {
    for (int seed = 0, seeds = rm_cases(100, 40); seed < seeds; seed++) {
        rm_problem problem;
        some_chain((uint64_t)seed, &problem);
        is_as_it_says(&problem, false);
        is_as_it_says(&problem, true);
        rm_problem_free(&problem);
    }
}
END_TEST

/* The last stage reads a leaf that the first stage made, in its backward run only. */
START_TEST(leaves_read_far_from_their_maker_are_planned) {
    rm_problem problem;
    tiles(8, false, 900, 0, &problem);
    int64_t last = problem.n_stages - 1, at = problem.keeps.start[last], end = problem.keeps.start[last + 1]++;
    memmove(problem.keeps.item + at + 1, problem.keeps.item + at, (size_t)(end - at) * sizeof *problem.keeps.item);
    problem.keeps.item[at] = 0;
    ck_ok(rm_problem_check(&problem));
    is_as_it_says(&problem, false);
    rm_problem_free(&problem);
}
END_TEST

static uint64_t least_of(const rm_problem *problem) {
    rm_schedule schedule = {0};
    ck_assert_int_eq(
        rm_schedule_propose(problem, rm_strategy_find("optimal"), &(rm_plan_request){.budget_bytes = 1}, &schedule),
        REMAT_INFEASIBLE);
    uint64_t bytes = rm_schedule_bytes(&schedule);
    rm_schedule_free(&schedule);
    return bytes;
}

/* The memory of the tier itself does not count for plans that do not use it. (Some plans of this family move nothing
 * and may take fewer bytes than others where states skip stages.) */
START_TEST(second_tier_never_makes_plans_worse) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        rm_problem problem;
        some_chain(seed, &problem);
        uint64_t with = least_of(&problem);
        problem.tier.host_bytes = 1 << 30;
        uint64_t with_a_greedy_one = least_of(&problem);
        problem.tier = (rm_tier){0};
        uint64_t without = least_of(&problem);
        ck_assert_uint_le(with, without);
        ck_assert_uint_le(with_a_greedy_one, without);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(without_second_tier_the_family_is_empty) {
    rm_problem problem;
    rm_family family;
    some_chain(5, &problem);
    problem.tier = (rm_tier){0};
    ck_ok(rm_family_spill(&problem, &(rm_plan_request){0}, &family));
    ck_assert_int_eq(family.count, 0);
    rm_family_free(&family);
    rm_problem_free(&problem);
}
END_TEST

/* ---- Never slower than the better family ----------------------------------------------------------- */

typedef struct {
    uint64_t bytes[400], time_ns[400]; /* of settled plans */
    int64_t n;
} plans;

/* Settles the plan in *schedule, records it, and frees it. */
static void note(const rm_problem *problem, rm_schedule *schedule, plans *plans) {
    ck_ok(rm_schedule_settle(problem, false, schedule));
    ck_assert_int_lt(plans->n, 400);
    plans->bytes[plans->n] = rm_schedule_bytes(schedule);
    plans->time_ns[plans->n++] = schedule->verdict.total_ns;
    rm_schedule_free(schedule);
}

/* The time of the fastest plan that fits; UINT64_MAX: none does. */
static uint64_t best_of(const plans *plans, uint64_t budget) {
    uint64_t best = UINT64_MAX;
    for (int64_t i = 0; i < plans->n; i++)
        if (plans->bytes[i] <= budget && plans->time_ns[i] < best) best = plans->time_ns[i];
    return best;
}

static void all_of(const rm_family *family, const rm_problem *problem, plans *plans) {
    for (int64_t i = 0; i < family->count; i++) {
        rm_schedule schedule = {0};
        ck_ok(family->write(family, problem, i, &schedule.plan, &schedule.proposal));
        note(problem, &schedule, plans);
    }
}

/* Hand-written plans of no family: every stage before the tail is kept, saved at once, freed after the next stage's
 * run, and loaded `ahead` stages early. The tail has any length. */
static void by_hand(const rm_problem *p, int option, int64_t ahead, plans *plans) {
    for (int64_t tail = 0; tail < p->n_stages; tail++) {
        rm_schedule schedule = {0};
        rm_plan *plan = &schedule.plan;
        for (int64_t s = 0; s < p->n_stages; s++) {
            ck_ok(rm_plan_run_forward(plan, s, option));
            if (s > 0 && s - 1 < tail) ck_ok(rm_plan_free_object(plan, RM_SAVED, s - 1));
            if (s < tail) ck_ok(rm_plan_save(plan, RM_SAVED, s));
        }
        int64_t next = tail - 1;
        for (int64_t s = p->n_stages - 1; s >= 0; s--) {
            while (next >= 0 && next >= s - ahead) ck_ok(rm_plan_load(plan, RM_SAVED, next--));
            ck_ok(rm_plan_run_backward(plan, s));
        }
        ck_ok(rm_plan_free_dead(p, plan));
        note(p, &schedule, plans);
    }
}

static void never_slower(const rm_problem *problem, int budgets) {
    rm_family recompute, spill;
    plans *own = calloc(2, sizeof *own), *hand = calloc(1, sizeof *hand);
    ck_ok(rm_family_recompute(problem, &(rm_plan_request){0}, &recompute));
    ck_ok(rm_family_spill(problem, &(rm_plan_request){0}, &spill));
    all_of(&recompute, problem, &own[0]);
    all_of(&spill, problem, &own[1]);
    for (int option = 0; option < 2; option++)
        for (int64_t ahead = 0; ahead < 3; ahead++) by_hand(problem, option, ahead, hand);
    double least = (double)recompute.member[0].peak_bytes * 0.5;
    double most = (double)recompute.member[recompute.count - 1].peak_bytes * 1.3;
    for (int i = 0; i <= budgets; i++) {
        rm_plan_request request = {.budget_bytes = (uint64_t)(least + (most - least) * (i * i) / (budgets * budgets))};
        uint64_t better = best_of(&own[0], request.budget_bytes), other = best_of(&own[1], request.budget_bytes);
        rm_schedule schedule = {0};
        remat_status status = rm_schedule_propose(problem, rm_strategy_find("optimal"), &request, &schedule);
        if (other < better) better = other;
        ck_assert_int_eq(status, better == UINT64_MAX ? REMAT_INFEASIBLE : REMAT_OK);
        if (!status) {
            double time_ns = (double)schedule.verdict.total_ns, by_hand = (double)best_of(hand, request.budget_bytes);
            ck_assert_uint_le(schedule.verdict.total_ns, better);
            ck_assert_uint_le(rm_schedule_bytes(&schedule), request.budget_bytes);
            ck_assert_msg(time_ns <= by_hand * 1.02, "budget %d: %.0f, and %.0f with the hand-written plan", i, time_ns,
                          by_hand);
        }
        rm_schedule_free(&schedule);
    }
    rm_family_free(&recompute);
    rm_family_free(&spill);
    free(own);
    free(hand);
}

/* The channel hides everything, or is too slow to be of use. Its cost to the computation is nothing, a part of the time
 * of recomputing a stage, or more than that. */
enum { KINDS = 15 };
START_TEST(optimal_is_never_slower_than_the_better_family) {
    static const uint64_t block_ns[] = {100, 900, 1500, 4000, 30000}, cost_ns[] = {0, 150, 2500};
    rm_problem problem;
    int kind = rm_cases(_i, _i * 4) % KINDS; /* out of five: every channel, every cost */
    tiles(60, kind % 2, block_ns[kind % 5], cost_ns[kind / 5], &problem);
    never_slower(&problem, rm_cases(50, 10));
    rm_problem_free(&problem);
}
END_TEST

/* At how many of 20 budgets a plan that moves something is chosen. */
static int that_spill(const rm_problem *problem) {
    rm_family recompute;
    ck_ok(rm_family_recompute(problem, &(rm_plan_request){0}, &recompute));
    uint64_t most = recompute.member[recompute.count - 1].peak_bytes;
    int found = 0;
    for (uint64_t i = 1; i <= 20; i++) {
        rm_schedule schedule = {0};
        rm_plan_request request = {.budget_bytes = 60000 + most / 20 * i};
        ck_ok(rm_schedule_propose(problem, rm_strategy_find("optimal"), &request, &schedule));
        found += schedule.verdict.save_bytes > 0;
        rm_schedule_free(&schedule);
    }
    rm_family_free(&recompute);
    return found;
}

/* A disk that hides all transfers is used where memory is short. It is not used once its copying delays the computation
 * as much as recomputing a stage, or as keeping it lean. */
START_TEST(spilling_is_used_only_where_it_pays) {
    static const uint64_t cost_ns[] = {0, 20, 100000};
    int found[3];
    for (int i = 0; i < 3; i++) {
        rm_problem problem;
        tiles(60, false, 100, cost_ns[i], &problem);
        found[i] = that_spill(&problem);
        rm_problem_free(&problem);
    }
    ck_assert_int_gt(found[0], 10);
    ck_assert_int_le(found[1], found[0]);
    ck_assert_int_eq(found[2], 0);
}
END_TEST

START_TEST(four_thousand_stages_are_planned_quickly) {
    rm_problem problem;
    rm_family family;
    tiles(4000, true, 4000, 0, &problem);
    double start = now();
    ck_ok(rm_family_spill(&problem, &(rm_plan_request){0}, &family));
    double seconds = now() - start;
    ck_assert_int_gt(family.count, 5);
    ck_assert_msg(seconds < 2, "%.3f s", seconds); /* 0.03 in general */
    rm_family_free(&family);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(every_failed_allocation_is_handled) {
    rm_problem problem;
    rm_family family;
    some_chain(12, &problem);
    for (int n = 1;; n++) {
        rm_host_fail_at(n);
        remat_status status = rm_family_spill(&problem, &(rm_plan_request){0}, &family);
        rm_host_fail_at(0);
        if (!status) {
            ck_assert_int_gt(n, 4);
            break;
        }
        ck_assert_int_eq(status, REMAT_MEMORY);
        rm_family_free(&family);
    }
    rm_family_free(&family);
    rm_problem_free(&problem);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("plans that spill");
    tcase_set_timeout(tcase, 300);
    tcase_add_test(tcase, second_tier_never_makes_plans_worse);
    tcase_add_test(tcase, members_have_the_figures_they_claim);
    tcase_add_test(tcase, leaves_read_far_from_their_maker_are_planned);
    tcase_add_test(tcase, without_second_tier_the_family_is_empty);
    tcase_add_loop_test(tcase, optimal_is_never_slower_than_the_better_family, 0, rm_cases(KINDS, 5));
    tcase_add_test(tcase, spilling_is_used_only_where_it_pays);
    tcase_add_test(tcase, four_thousand_stages_are_planned_quickly);
    tcase_add_test(tcase, every_failed_allocation_is_handled);
    return run_cases("memory/spill_plans", tcase);
}

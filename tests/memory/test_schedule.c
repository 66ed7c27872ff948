/* test_schedule.c: from a problem and a budget to a plan that fits it. The plan is the fastest that fits and monotone
 * in the budget; the minimum budget is exact to the byte, in both directions; every plan is judged and placed. */
#include "memory/schedule.h"

#include "memory/family.h"
#include "memory/host.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"
#include "tests/sanitized.h"

static const rm_strategy *optimal(void) { return rm_strategy_find("optimal"); }

static void random_problem(uint64_t seed, rm_problem *problem) {
    dice d = {seed * 7919};
    chain c = {.n_stages = 1 + roll_below(&d, 24),
               .unlike = seed % 3 > 0,
               .state_bytes = (uint64_t)roll_below(&d, 4) * 3000,
               .saved_bytes = 1000 + (uint64_t)roll_below(&d, 40000),
               .scratch_bytes = (uint64_t)roll_below(&d, 3) * 4000,
               .skips = seed % 6 == 0 ? 2 : 0,
               .shares = seed % 4 == 0,
               .lean = seed % 2};
    ck_ok(chain_problem(&c, seed, problem));
    if (seed % 5 == 0) problem->tier = (rm_tier){40000000000, 50000000000, 20, 0, 0};
}

/* The schedule fits, and its figures are right. */
static void ck_fits(const rm_problem *problem, const rm_schedule *s, uint64_t budget) {
    if (budget) ck_assert_uint_le(rm_schedule_bytes(s), budget);
    rm_verdict again;
    ck_ok(rm_plan_check(problem, &s->plan, &again, NULL));
    ck_assert_uint_eq(again.peak_bytes, s->verdict.peak_bytes);
    ck_assert_uint_ge(s->placement.bytes, again.peak_bytes);
    ck_ok(rm_placement_check(&s->lifetimes, &s->placement));
}

/* The bytes of the smallest schedule, found by asking with a budget that is too small. */
static uint64_t least_of(const rm_problem *problem, uint64_t budget) {
    rm_schedule s = {0};
    rm_plan_request request = {.budget_bytes = budget};
    ck_fails(rm_schedule_propose(problem, optimal(), &request, &s), INFEASIBLE, "budget");
    uint64_t least = rm_schedule_bytes(&s);
    ck_fits(problem, &s, least);
    rm_schedule_free(&s);
    return least;
}

START_TEST(minimum_budget_is_exact_to_the_byte) {
    for (uint64_t seed = 0; seed < 200; seed += SANITIZED ? 5 : 1) {
        rm_problem problem;
        random_problem(seed, &problem);
        uint64_t least = least_of(&problem, 1);
        ck_assert_uint_eq(least_of(&problem, least - 1), least);
        ck_assert_uint_eq(least_of(&problem, 1 + least / 3), least);
        rm_schedule s = {0};
        rm_plan_request request = {.budget_bytes = least};
        ck_ok(rm_schedule_propose(&problem, optimal(), &request, &s));
        ck_assert_uint_eq(rm_schedule_bytes(&s), least);
        ck_fits(&problem, &s, least);
        rm_schedule_free(&s);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(larger_budget_is_never_slower) {
    for (uint64_t seed = 0; seed < 60; seed += SANITIZED ? 5 : 1) {
        rm_problem problem;
        random_problem(seed + 1000, &problem);
        rm_schedule free_of_limits = {0};
        ck_ok(rm_schedule_propose(&problem, optimal(), &(rm_plan_request){0}, &free_of_limits));
        uint64_t budget = least_of(&problem, 1), most = rm_schedule_bytes(&free_of_limits);
        uint64_t bytes = 0, time = UINT64_MAX, peak = 0;
        for (; budget <= most + 1000; budget += 1 + (most - budget / 2) / 25) {
            rm_schedule s = {0};
            rm_plan_request request = {.budget_bytes = budget};
            ck_ok(rm_schedule_propose(&problem, optimal(), &request, &s));
            ck_fits(&problem, &s, budget);
            ck_assert_uint_le(s.verdict.total_ns, time);
            ck_assert_uint_ge(rm_schedule_bytes(&s), bytes);
            if (problem.tier.save_bytes_per_s == 0) ck_assert_uint_ge(s.verdict.peak_bytes, peak);
            time = s.verdict.total_ns;
            bytes = rm_schedule_bytes(&s);
            peak = s.verdict.peak_bytes;
            rm_schedule_free(&s);
        }
        ck_assert_uint_ge(time, free_of_limits.verdict.total_ns);
        rm_schedule_free(&free_of_limits);
        rm_problem_free(&problem);
    }
}
END_TEST

/* With the bytes of another strategy's plan as its budget, `optimal` is at least as fast. */
static void no_worse_than(const rm_problem *problem, const char *name, int64_t segments) {
    rm_schedule other = {0}, s = {0};
    ck_ok(rm_schedule_propose(problem, rm_strategy_find(name), &(rm_plan_request){.segments = segments}, &other));
    rm_plan_request request = {.budget_bytes = rm_schedule_bytes(&other)};
    ck_ok(rm_schedule_propose(problem, optimal(), &request, &s));
    ck_assert_msg(s.verdict.total_ns <= other.verdict.total_ns, "%lld stages: %s, %lld segments: %llu against %llu ns",
                  (long long)problem->n_stages, name, (long long)segments, (unsigned long long)s.verdict.total_ns,
                  (unsigned long long)other.verdict.total_ns);
    rm_schedule_free(&other);
    rm_schedule_free(&s);
}

START_TEST(optimal_is_never_worse_than_named_strategies) {
    static const int64_t stages[] = {1, 2, 3, 7, 20, 60, 99, 130, 500};
    for (uint64_t seed = 0; seed < 36; seed += SANITIZED ? 5 : 1) {
        chain c = {.n_stages = stages[seed % 9],
                   .unlike = seed / 9 % 2,
                   .state_bytes = seed / 18 ? 3000 : 256,
                   .saved_bytes = 40000,
                   .scratch_bytes = 5000,
                   .lean = seed % 2};
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        no_worse_than(&problem, "none", 0);
        no_worse_than(&problem, "lean", 0);
        no_worse_than(&problem, "sqrt", 0);
        for (int64_t n = 1; n <= 8 && n <= c.n_stages; n++) no_worse_than(&problem, "segments", n);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(without_a_budget_the_fastest_plan_is_taken) {
    for (uint64_t seed = 0; seed < 30; seed++) {
        rm_problem problem;
        random_problem(seed + 2000, &problem);
        rm_schedule s = {0};
        ck_ok(rm_schedule_propose(&problem, optimal(), &(rm_plan_request){0}, &s));
        for (int i = 0; i < rm_n_strategies; i++) {
            rm_schedule other = {0};
            ck_ok(rm_schedule_propose(&problem, rm_strategies[i], &(rm_plan_request){.segments = 1}, &other));
            ck_assert_uint_le(s.verdict.total_ns, other.verdict.total_ns);
            rm_schedule_free(&other);
        }
        rm_schedule_free(&s);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(no_recompute_runs_no_stage_twice) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        rm_problem problem;
        random_problem(seed + 3000, &problem);
        for (uint64_t budget = 4000; budget < 4000000; budget *= 2) {
            rm_schedule s = {0};
            rm_plan_request request = {.budget_bytes = budget, .no_recompute = true};
            remat_status status = rm_schedule_propose(&problem, optimal(), &request, &s);
            ck_assert(status == REMAT_OK || status == REMAT_INFEASIBLE);
            ck_assert_int_eq(s.verdict.recomputed_stages, 0);
            if (!status) ck_fits(&problem, &s, budget);
            rm_schedule_free(&s);
        }
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(other_strategies_refuse_a_budget_below_their_plan) {
    rm_problem problem;
    random_problem(7, &problem);
    for (int i = 0; i < rm_n_strategies; i++) {
        if (rm_strategies[i]->choose) continue;
        rm_schedule s = {0};
        rm_plan_request request = {.segments = 2};
        ck_ok(rm_schedule_propose(&problem, rm_strategies[i], &request, &s));
        uint64_t bytes = rm_schedule_bytes(&s);
        ck_assert_uint_eq(bytes, s.placement.bytes + rm_table_bytes(s.plan.n_steps, s.lifetimes.count));
        rm_schedule_free(&s);
        request.budget_bytes = bytes;
        ck_ok(rm_schedule_propose(&problem, rm_strategies[i], &request, &s));
        rm_schedule_free(&s);
        request.budget_bytes = bytes - 1;
        ck_fails(rm_schedule_propose(&problem, rm_strategies[i], &request, &s), INFEASIBLE, "budget");
        ck_assert_uint_eq(rm_schedule_bytes(&s), bytes);
        rm_schedule_free(&s);
    }
    rm_problem_free(&problem);
}
END_TEST

START_TEST(every_failed_allocation_is_handled) {
    chain c = {.n_stages = 120, .state_bytes = 256, .saved_bytes = 4000, .scratch_bytes = 500, .lean = true};
    for (int unlike = 0; unlike < 2; unlike++) {
        c.unlike = unlike;
        rm_problem problem;
        ck_ok(chain_problem(&c, 1, &problem));
        rm_plan_request request = {.budget_bytes = 60000};
        for (int64_t n = 1;; n += 1 + n / 20) {
            rm_schedule s = {0};
            rm_host_fail_at(n);
            remat_status status = rm_schedule_propose(&problem, optimal(), &request, &s);
            rm_host_fail_at(0);
            rm_schedule_free(&s);
            if (!status) break;
            ck_assert_int_eq(status, REMAT_MEMORY);
        }
        rm_problem_free(&problem);
    }
}
END_TEST

RUN_TESTS("memory/schedule", minimum_budget_is_exact_to_the_byte, larger_budget_is_never_slower,
          optimal_is_never_worse_than_named_strategies, without_a_budget_the_fastest_plan_is_taken,
          no_recompute_runs_no_stage_twice, other_strategies_refuse_a_budget_below_their_plan,
          every_failed_allocation_is_handled)

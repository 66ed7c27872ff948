/* test_strategies.c: every strategy's plan passes the judge, matches the description in the strategy's file, and is
 * made fast. */
#include "memory/strategy.h"

#include <math.h>
#include <time.h>

#include "memory/check.h"
#include "memory/host.h"
#include "memory/lean.h"
#include "memory/place.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"
#include "tests/sanitized.h"

static void propose(const char *name, const rm_problem *problem, int64_t segments, rm_plan *plan,
                    rm_proposal *proposal) {
    rm_plan_request request = {.segments = segments};
    ck_ok(rm_strategy_find(name)->propose(problem, &request, plan, proposal));
}

static rm_verdict judged(const rm_problem *problem, const rm_plan *plan) {
    rm_verdict verdict;
    ck_ok(rm_plan_check(problem, plan, &verdict, NULL));
    return verdict;
}

START_TEST(strategies_are_listed_and_found_by_name) {
    ck_assert_int_ge(rm_n_strategies, 3);
    for (int i = 0; i < rm_n_strategies; i++) {
        ck_assert_ptr_eq(rm_strategy_find(rm_strategies[i]->name), rm_strategies[i]);
        ck_assert_uint_gt(strlen(rm_strategies[i]->doc), 0);
    }
    ck_assert_ptr_null(rm_strategy_find("best"));
    ck_assert_ptr_null(rm_strategy_find(""));
}
END_TEST

START_TEST(two_segments_of_four_stages_match_the_expected_text) {
    rm_problem problem;
    read_problem(RM_SOURCE_DIR "/tests/problems/four_tiles.problem", &problem);
    rm_plan plan = {0};
    ck_ok(rm_plan_from_segments(&problem, (int64_t[]){0, 2}, 2, &plan));
    char *text = text_of(file, rm_plan_write(&problem, &plan, file));
    ck_assert_str_eq(text, "run forward 0 drop\nrun forward 1 drop\nfree state 0\n"
                           "run forward 2 all\nrun forward 3 all\nfree state 3\n"
                           "run backward 3\nfree saved 3\nfree state 2\n"
                           "run backward 2\nfree saved 2\nfree state 1\nfree dstate 2\n"
                           "run forward 0 all\nrun forward 1 all\nfree state 1\n"
                           "run backward 1\nfree saved 1\nfree state 0\nfree dstate 1\n"
                           "run backward 0\nfree saved 0\nfree dstate 0\n");
    free(text);
    rm_verdict v = judged(&problem, &plan);
    ck_assert_uint_eq(v.forward_ns, 90 + 90 + 100 + 35);
    ck_assert_uint_eq(v.recompute_ns, 100 + 100);
    ck_assert_uint_eq(v.backward_ns, 200 * 3 + 70);
    ck_assert_int_eq(v.recomputed_stages, 2);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

/* A chain whose first stages are frozen: they keep nothing, and no gradient reaches them. */
static void freeze_front(rm_problem *p, int64_t frozen) {
    rm_lists *lists[] = {&p->keeps, &p->adds};
    for (int l = 0; l < 2; l++) { /* the state that the first trained stage reads has no gradient but is kept */
        int64_t cut = lists[l]->start[frozen + (l == 1)], n = lists[l]->start[p->n_stages];
        memmove(lists[l]->item, lists[l]->item + cut, (size_t)(n - cut) * sizeof *lists[l]->item);
        for (int64_t s = 0; s <= p->n_stages; s++)
            lists[l]->start[s] = lists[l]->start[s] > cut ? lists[l]->start[s] - cut : 0;
    }
    int64_t first = p->dstate[0], gone = p->dstate[p->made[frozen]] - first;
    memmove(p->piece + first, p->piece + first + gone, (size_t)(p->n_pieces - first - gone) * sizeof *p->piece);
    for (int64_t i = 0; i <= p->n_states; i++) p->dstate[i] = p->dstate[i] > first + gone ? p->dstate[i] - gone : first;
    p->n_pieces -= gone;
    for (int64_t s = 0; s < frozen; s++) p->stage[s].option[0].saved_bytes = 0;
    ck_ok(rm_problem_check(p));
}

START_TEST(frozen_segments_run_once) {
    chain c = {.n_stages = 16, .state_bytes = 640, .saved_bytes = 6400, .scratch_bytes = 320};
    rm_problem problem;
    ck_ok(chain_problem(&c, 1, &problem));
    freeze_front(&problem, 10);
    /* Only [8,12) has something to differentiate and is not the last segment */
    int64_t start[] = {0, 4, 8, 12}, again = 4;
    rm_plan plan = {0};
    ck_ok(rm_plan_from_segments(&problem, start, 4, &plan));
    ck_assert_int_eq(judged(&problem, &plan).recomputed_stages, again);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

/* ---- Every strategy on everything ---------------------------------------------------------------- */

/* Only `segments` reads how many are asked for. */
static void try_all(const char *what, const rm_problem *problem) {
    for (int i = 0; i < rm_n_strategies; i++) {
        int64_t most = strcmp(rm_strategies[i]->name, "segments") ? 1 : problem->n_stages + 2;
        for (int64_t segments = 1; segments <= most; segments += 1 + segments / 8) {
            rm_plan plan = {0};
            rm_proposal proposal = {0};
            propose(rm_strategies[i]->name, problem, segments, &plan, &proposal);
            rm_verdict v;
            ck_assert_msg(!rm_plan_check(problem, &plan, &v, NULL), "%s, %s: %s", what, rm_strategies[i]->name,
                          remat_last_error());
            ck_assert_int_ge(proposal.segments, 1);
            ck_assert_int_le(proposal.segments, problem->n_stages);
            ck_assert_int_lt(v.recomputed_stages, problem->n_stages); /* never the last segment */
            bool idle = rm_nothing_to_differentiate(problem, 0, 1);
            ck_assert_msg(idle || (v.recomputed_stages == 0) == (proposal.segments == 1), "%s, %s", what,
                          rm_strategies[i]->name);
            ck_assert(proposal.segments > 1 || v.recomputed_stages == 0);
            rm_plan_free(&plan);
        }
    }
}

START_TEST(judge_accepts_every_plan) {
    each_problem(try_all);
    for (uint64_t seed = 0; seed < (SANITIZED ? 12 : 60); seed++) {
        chain c = {1 + (int64_t)seed, seed % 2,      seed % 7 * 64, 4000,         999,
                   (int)(seed % 4),   seed % 3 == 0, seed % 5 == 0, seed % 7 == 0};
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        try_all("a made-up chain", &problem);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(segments_request_is_checked_and_clamped) {
    rm_problem problem;
    read_problem(RM_SOURCE_DIR "/tests/problems/four_tiles.problem", &problem);
    rm_plan plan = {0};
    rm_proposal proposal;
    for (int64_t bad = 0; bad >= INT64_MIN / 2; bad = bad * 2 - 1) {
        rm_plan_request request = {.segments = bad};
        ck_fails(rm_strategy_find("segments")->propose(&problem, &request, &plan, &proposal), INVALID, "1 or more");
        ck_assert_int_eq(plan.n_steps, 0);
    }
    int64_t asked[] = {1, 2, 3, 4, 5, 100, INT64_MAX}, got[] = {1, 2, 3, 4, 4, 4, 4};
    for (int i = 0; i < 7; i++) {
        propose("segments", &problem, asked[i], &plan, &proposal);
        ck_assert_int_eq(proposal.segments, got[i]);
        rm_plan_free(&plan);
    }
    propose("sqrt", &problem, 0, &plan, &proposal); /* other strategies do not read `segments` */
    ck_assert_int_eq(proposal.segments, 2);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(sqrt_is_rounded) {
    static const int64_t expected[] = {0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4};
    for (int64_t stages = 1; stages <= 13; stages++) {
        chain c = {.n_stages = stages, .saved_bytes = 64};
        rm_problem problem;
        ck_ok(chain_problem(&c, 1, &problem));
        rm_plan plan = {0};
        rm_proposal proposal;
        propose("sqrt", &problem, 0, &plan, &proposal);
        ck_assert_int_eq(proposal.segments, expected[stages]);
        rm_plan_free(&plan);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(invalid_segment_starts_are_refused) {
    rm_problem problem;
    read_problem(RM_SOURCE_DIR "/tests/problems/four_tiles.problem", &problem);
    rm_plan plan = {0};
    ck_fails(rm_plan_from_segments(&problem, (int64_t[]){0}, 0, &plan), INVALID, "0 segments");
    ck_fails(rm_plan_from_segments(&problem, (int64_t[]){0, 1, 2, 3, 4}, 5, &plan), INVALID, "5 segments");
    ck_fails(rm_plan_from_segments(&problem, (int64_t[]){1, 2}, 2, &plan), INVALID, "stage 1, not 0");
    ck_fails(rm_plan_from_segments(&problem, (int64_t[]){0, 2, 2}, 3, &plan), INVALID, "segment 2");
    ck_fails(rm_plan_from_segments(&problem, (int64_t[]){0, 4}, 2, &plan), INVALID, "segment 1");
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

/* ---- Positions of the cuts ---------------------------------------------------------------------- */

/* The plan's segments, found from its text alone: a stage is the last of its segment if its keeping run is followed by
 * the FREE of its state. Writes the sizes to size[], last segment first, and returns their number. */
static int64_t segment_sizes(const rm_plan *plan, int64_t *size) {
    int64_t n = 0, stages = 0;
    for (int64_t i = 0; i < plan->n_steps; i++) {
        const rm_step *step = &plan->step[i];
        if (step->verb != RM_RUN_FORWARD || step->option == RM_DROP) continue;
        stages++;
        if (step[1].verb != RM_FREE) continue;
        size[n++] = stages;
        stages = 0;
    }
    return n;
}

START_TEST(equal_stages_are_cut_by_count) {
    int64_t size[200];
    uint64_t bytes[] = {0, 64, 192, 1000000};
    for (int64_t stages = 1; stages <= 120; stages += stages < 40 ? 1 : 7)
        for (int64_t segments = 1; segments <= stages; segments++) {
            uint64_t saved = bytes[(stages + segments) % 4];
            chain c = {.n_stages = stages, .saved_bytes = saved, .scratch_bytes = 64};
            rm_problem problem;
            ck_ok(chain_problem(&c, 3, &problem));
            rm_plan plan = {0};
            rm_proposal proposal;
            propose("segments", &problem, segments, &plan, &proposal);
            ck_assert_int_eq(proposal.segments, segments);
            ck_assert_int_eq(segment_sizes(&plan, size), segments);
            for (int64_t i = 0; i < segments; i++)
                ck_assert(size[i] == stages / segments || size[i] == (stages + segments - 1) / segments);
            rm_plan_free(&plan);
            rm_problem_free(&problem);
        }
}
END_TEST

START_TEST(unequal_stages_are_cut_by_bytes) {
    int64_t size[64];
    for (uint64_t seed = 0; seed < 200; seed++) {
        chain c = {.n_stages = 60, .unlike = true, .saved_bytes = 100000, .scratch_bytes = 64};
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        rm_plan plan = {0};
        rm_proposal proposal;
        int64_t segments = 2 + (int64_t)(seed % 12);
        propose("segments", &problem, segments, &plan, &proposal);
        ck_assert_int_eq(segment_sizes(&plan, size), segments);
        uint64_t total = 0, largest = 0, most = 0;
        for (int64_t s = 0; s < 60; s++) {
            uint64_t bytes = problem.stage[s].option[0].saved_bytes;
            total += bytes;
            if (bytes > largest) largest = bytes;
        }
        int64_t s = 59;
        for (int64_t i = 0; i < segments; i++) {
            uint64_t sum = 0;
            for (int64_t k = 0; k < size[i]; k++) sum += problem.stage[s--].option[0].saved_bytes;
            if (sum > most) most = sum;
        }
        /* both ends of a segment are within half a stage of their ideal positions */
        ck_assert_uint_le(most, total / (uint64_t)segments + largest + 64);
        rm_plan_free(&plan);
        rm_problem_free(&problem);
    }
}
END_TEST

START_TEST(peak_of_a_uniform_chain_matches_the_formula) {
    enum { S = 36 };
    uint64_t state = 128, saved = 6400, scratch = 320;
    chain c = {.n_stages = S, .state_bytes = state, .saved_bytes = saved, .scratch_bytes = scratch};
    rm_problem problem;
    ck_ok(chain_problem(&c, 1, &problem));
    for (uint64_t segments = 2; segments <= S / 2; segments++) {
        if (S % segments) continue;
        rm_plan plan = {0};
        rm_proposal proposal;
        propose("segments", &problem, (int64_t)segments, &plan, &proposal);
        uint64_t length = S / segments;
        /* `inner`: the second segment from the end, about to differentiate its last stage: the checkpoints of segments
         * 1..N-2 (state 0 is empty), the states and saved blocks inside, two gradients, scratch. `last`: the same
         * moment in the last segment: one checkpoint more, but the gradient after the chain is empty. */
        uint64_t inner = (segments - 2) * state + (length - 1) * state + length * saved + 2 * state + scratch;
        uint64_t last = (segments - 1) * state + (length - 1) * state + length * saved + state + scratch;
        rm_verdict v = judged(&problem, &plan);
        ck_assert_uint_eq(v.peak_bytes, inner > last ? inner : last);
        ck_assert_int_eq(v.recomputed_stages, (int64_t)(S - length));
        rm_plan_free(&plan);
    }
    rm_problem_free(&problem);
}
END_TEST

/* ---- Lean -------------------------------------------------------------------------------------- */

static uint64_t peak_in(const rm_problem *problem, const int8_t *option) {
    rm_plan plan = {0};
    ck_ok(rm_plan_keep_all(problem, option, &plan));
    uint64_t peak = judged(problem, &plan).peak_bytes;
    rm_plan_free(&plan);
    return peak;
}

/* The last stages keep everything: as many as possible without exceeding the peak of lean alone; one more would exceed
 * it. */
START_TEST(lean_has_the_smallest_peak_without_recomputing) {
    int relaxed = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        chain c = {.n_stages = 1 + (int64_t)(seed % 20),
                   .unlike = seed % 2,
                   .state_bytes = 256,
                   .saved_bytes = 10000,
                   .scratch_bytes = seed % 5 * 8000,
                   .shares = seed % 7 == 0,
                   .lean = true};
        rm_problem problem;
        ck_ok(chain_problem(&c, seed, &problem));
        rm_plan plan = {0};
        rm_proposal proposal;
        propose("lean", &problem, 0, &plan, &proposal);
        rm_verdict v = judged(&problem, &plan);
        ck_assert_int_eq(v.recomputed_stages, 0);
        int8_t option[20], all_lean[20];
        for (int64_t s = 0; s < c.n_stages; s++) {
            all_lean[s] = 1;
            option[s] = plan.step[s].option;
        }
        uint64_t allowed = peak_in(&problem, all_lean);
        ck_assert_uint_le(v.peak_bytes, allowed);
        int64_t last = c.n_stages;
        while (last > 0 && option[last - 1] == 0) last--;
        for (int64_t s = 0; s < last; s++) ck_assert_int_eq(option[s], 1);
        relaxed += last < c.n_stages;
        if (last > 0) {
            option[last - 1] = 0;
            ck_assert_uint_gt(peak_in(&problem, option), allowed);
        }
        rm_plan_free(&plan);
        rm_problem_free(&problem);
    }
    ck_assert_int_gt(relaxed, 20);
}
END_TEST

/* ---- Long chains and failed allocations --------------------------------------------------------- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

START_TEST(a_hundred_thousand_stages_are_planned_quickly) {
    chain c = {.n_stages = SANITIZED ? 20000 : 100000,
               .unlike = true,
               .state_bytes = 4096,
               .saved_bytes = 1 << 20,
               .scratch_bytes = 1 << 20};
    rm_problem problem;
    ck_ok(chain_problem(&c, 1, &problem));
    for (int i = 0; i < rm_n_strategies; i++) {
        double start = seconds();
        rm_plan plan = {0};
        rm_proposal proposal;
        rm_verdict verdict;
        rm_lifetimes lifetimes = {0};
        rm_placement placement;
        propose(rm_strategies[i]->name, &problem, 64, &plan, &proposal);
        ck_ok(rm_plan_check(&problem, &plan, &verdict, &lifetimes));
        ck_ok(rm_place(&lifetimes, &placement));
        double took = seconds() - start; /* about 0.1 s; anything quadratic would take minutes */
        ck_assert_msg(took < 20, "%s took %.1f s", rm_strategies[i]->name, took);
        ck_ok(rm_placement_check(&lifetimes, &placement));
        ck_assert_uint_le(placement.bytes, placement.floor_bytes + placement.floor_bytes / 100);
        rm_placement_free(&placement);
        rm_lifetimes_free(&lifetimes);
        rm_plan_free(&plan);
    }
    rm_problem_free(&problem);
}
END_TEST

START_TEST(every_failed_allocation_is_handled) {
    chain c = {.n_stages = 100, .saved_bytes = 64};
    rm_problem problem;
    ck_ok(chain_problem(&c, 1, &problem));
    for (int i = 0; i < rm_n_strategies; i++)
        for (int n = 1;; n++) {
            rm_plan plan = {0};
            rm_proposal proposal;
            rm_plan_request request = {.segments = 7};
            rm_host_fail_at(n);
            remat_status status = rm_strategies[i]->propose(&problem, &request, &plan, &proposal);
            rm_host_fail_at(0);
            rm_plan_free(&plan);
            if (!status) {
                ck_assert_int_gt(n, 2);
                break;
            }
            ck_assert_int_eq(status, REMAT_MEMORY);
        }
    rm_problem_free(&problem);
}
END_TEST

RUN_TESTS("memory/strategies", strategies_are_listed_and_found_by_name,
          two_segments_of_four_stages_match_the_expected_text, frozen_segments_run_once, judge_accepts_every_plan,
          segments_request_is_checked_and_clamped, sqrt_is_rounded, invalid_segment_starts_are_refused,
          equal_stages_are_cut_by_count, unequal_stages_are_cut_by_bytes, peak_of_a_uniform_chain_matches_the_formula,
          lean_has_the_smallest_peak_without_recomputing, a_hundred_thousand_stages_are_planned_quickly,
          every_failed_allocation_is_handled)

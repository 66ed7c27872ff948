/* test_binomial.c: the closed form equals the minimum of the recurrence, and the schedule has the number of runs that
 * it predicts. */
#include "tests/memory/binomial.h"

#include "memory/host.h"
#include "tests/memory/memory_test.h"

enum { T = 2000, M = 64 };

/* C(t,m) by the recurrence alone: no closed form, and every split is tried. */
static void solve_recurrence(int64_t (*c)[T + 1]) {
    for (int t = 0; t <= T; t++) c[1][t] = (int64_t)t * (t + 1) / 2;
    for (int m = 2; m <= M; m++) {
        c[m][0] = 0;
        c[m][1] = 1;
        for (int t = 2; t <= T; t++) {
            int64_t best = INT64_MAX;
            for (int y = 1; y < t; y++) {
                int64_t here = y + c[m - 1][t - y] + c[m][y];
                if (here < best) best = here;
            }
            c[m][t] = best;
        }
    }
}

START_TEST(closed_form_equals_the_minimum) {
    static int64_t c[M + 1][T + 1];
    solve_recurrence(c);
    for (int m = 1; m <= M; m++)
        for (int t = 1; t <= T; t++) {
            ck_assert_int_eq(rm_binomial_runs(t, m), c[m][t]);
            if (t == 1) continue;
            int64_t y = rm_binomial_split(t, m);
            ck_assert(y >= 1 && y < t);
            if (m > 1) ck_assert_int_eq(y + c[m - 1][t - y] + c[m][y], c[m][t]);
        }
}
END_TEST

/* Published counts, and the counts per stage that follow from them. */
START_TEST(counts_equal_published_ones) {
    static const int64_t known[][3] = {{10, 3, 25},      {100, 5, 416},    {100, 10, 322},
                                       {1000, 10, 4636}, {1000, 50, 2948}, {1000, 32, 3405}};
    for (size_t i = 0; i < 6; i++) ck_assert_int_eq(rm_binomial_runs(known[i][0], known[i][1]), known[i][2]);
    ck_assert_double_eq_tol((double)rm_binomial_runs(100000, 64) / 1e5, 4.499, 5e-4);
    ck_assert_double_eq_tol((double)rm_binomial_runs(1000000, 64) / 1e6, 5.135, 5e-4);
    ck_assert_double_eq_tol((double)rm_binomial_runs(1000000, 200) / 1e6, 3.979, 5e-4);
    for (int64_t t = 1; t < 50; t++)
        for (int64_t m = t; m < 60; m++) ck_assert_int_eq(rm_binomial_runs(t, m), 2 * t - 1);
}
END_TEST

START_TEST(large_numbers_saturate) {
    ck_assert_int_eq(rm_binomial_reach(3, -1), 0);
    ck_assert_int_eq(rm_binomial_reach(0, 7), 1);
    ck_assert_int_eq(rm_binomial_reach(64, 3), 67LL * 66 * 65 / 6);
    ck_assert_int_eq(rm_binomial_reach(1000, 1000), INT64_MAX);
    ck_assert_int_eq(rm_binomial_reach(1, INT64_MAX), INT64_MAX);
    ck_assert_int_eq(rm_binomial_runs(0, 5), 0);
    ck_assert_int_eq(rm_binomial_runs(INT64_MAX, 1), INT64_MAX);
    ck_assert_int_eq(rm_binomial_runs(INT64_MAX, INT64_MAX), INT64_MAX);
    int64_t huge = INT64_MAX / 16, runs = rm_binomial_runs(huge, 1000);
    ck_assert(runs > huge && runs < INT64_MAX);
}
END_TEST

/* Plays a schedule and trusts nothing: every sweep begins at a held state, every tape has its state available, stages
 * are taped last first, and at most m states are held. Returns the number of forward runs. */
static int64_t play(int64_t t, int64_t m) {
    rm_binomial schedule;
    ck_ok(rm_binomial_begin(&schedule, t, m));
    char *held = calloc((size_t)t + 1, 1);
    int64_t runs = 0, n_held = 1, next = t - 1, made = -1; /* made: a state that is available without a slot */
    held[0] = 1;
    for (rm_binomial_action a; (a = rm_binomial_next(&schedule)).verb != RM_BINOMIAL_END;) {
        ck_assert_int_le(schedule.parts, schedule.capacity);
        switch (a.verb) {
        case RM_BINOMIAL_SWEEP:
            ck_assert(held[a.begin] && a.begin < a.end && a.end <= next);
            runs += a.end - a.begin;
            made = a.end;
            break;
        case RM_BINOMIAL_HOLD:
            ck_assert(made == a.begin && !held[a.begin]);
            held[a.begin] = 1;
            ck_assert_int_le(++n_held, m);
            break;
        case RM_BINOMIAL_TAPE:
            ck_assert(a.begin == next && (held[a.begin] || made == a.begin));
            next--;
            runs++;
            break;
        default:
            ck_assert(a.verb == RM_BINOMIAL_RELEASE && held[a.begin]);
            held[a.begin] = 0;
            n_held--;
        }
    }
    ck_assert_int_eq(next, -1);
    ck_assert_int_eq(n_held, 0);
    ck_assert_int_eq(rm_binomial_next(&schedule).verb, RM_BINOMIAL_END);
    rm_binomial_free(&schedule);
    free(held);
    return runs;
}

START_TEST(schedule_has_the_predicted_runs) {
    for (int64_t t = 1; t <= 40; t++)
        for (int64_t m = 1; m <= t + 2; m++) ck_assert_int_eq(play(t, m), rm_binomial_runs(t, m));
    static const int64_t sample[][2] = {{2000, 1},  {2000, 2},    {2000, 64},    {1999, 1999}, {1000, 50},
                                        {12345, 7}, {100000, 64}, {100000, 300}, {65536, 16}};
    for (size_t i = 0; i < sizeof sample / sizeof sample[0]; i++)
        ck_assert_int_eq(play(sample[i][0], sample[i][1]), rm_binomial_runs(sample[i][0], sample[i][1]));
}
END_TEST

START_TEST(a_million_tiles_take_a_few_hundred_bytes) {
    rm_binomial schedule;
    int64_t before = rm_host_allocations();
    ck_ok(rm_binomial_begin(&schedule, 1000000, 64));
    int64_t runs = 0, held = 1, most = 1;
    for (rm_binomial_action a; (a = rm_binomial_next(&schedule)).verb != RM_BINOMIAL_END;) {
        runs += a.verb == RM_BINOMIAL_SWEEP ? a.end - a.begin : a.verb == RM_BINOMIAL_TAPE;
        held += (a.verb == RM_BINOMIAL_HOLD) - (a.verb == RM_BINOMIAL_RELEASE);
        if (held > most) most = held;
    }
    ck_assert_int_eq(runs, rm_binomial_runs(1000000, 64));
    ck_assert_int_eq(most, 64);
    ck_assert_int_eq(rm_host_allocations() - before, 1);
    ck_assert_uint_lt((size_t)schedule.capacity * sizeof *schedule.part + sizeof schedule, 2048);
    rm_binomial_free(&schedule);
}
END_TEST

START_TEST(invalid_arguments_are_refused) {
    rm_binomial schedule;
    ck_fails(rm_binomial_begin(&schedule, 0, 3), INVALID, "0 stages");
    ck_fails(rm_binomial_begin(&schedule, 3, 0), INVALID, "0 slots");
    rm_host_fail_at(1);
    ck_assert_int_eq(rm_binomial_begin(&schedule, 10, 3), REMAT_MEMORY);
    rm_host_fail_at(0);
    rm_binomial_free(&schedule);
}
END_TEST

RUN_TESTS("memory/binomial", closed_form_equals_the_minimum, counts_equal_published_ones, large_numbers_saturate,
          schedule_has_the_predicted_runs, a_million_tiles_take_a_few_hundred_bytes, invalid_arguments_are_refused)

/* test_parallel.c: regions are opened while they gain time, not opened while they lose time, and retried; results do
 * not change. Time is simulated: the start of a region is moved, by more than a delay of the test itself. */
#include "ops/math/parallel.h"

#include <check.h>
#include <omp.h>
#include <stdlib.h>
#include <time.h>

#include "ops/cpu/barrier.h"
#include "tests/suite.h"

static const uint64_t ms = 1000000, hour = 3600000 * UINT64_C(1000000);

static void afresh(void) { rm_parallel_pretend(0); }

static int threads_now(int threads) { return rm_region_begin(threads, true).threads; }

/* A region of two threads, if it is opened: the time of thread 0's share, then its wait at the end. `lost_ns` of its
 * share was spent waiting. */
static void region(bool even, uint64_t own_ns, uint64_t waited_ns, uint64_t lost_ns) {
    rm_region r = rm_region_begin(2, even);
    ck_assert_int_eq(r.threads, 2);
    r.begin_ns -= own_ns + waited_ns;
    r.own_ns = r.begin_ns + own_ns;
    rm_region_end(&r, lost_ns);
}

static void alone(uint64_t time_ns) {
    rm_region r = rm_region_begin(2, true);
    ck_assert_int_eq(r.threads, 1);
    r.begin_ns -= time_ns;
    rm_region_end(&r, 0);
}

START_TEST(late_threads_end_the_team_for_a_while) {
    region(true, hour, 0, 0); /* old gains do not count for long */
    region(true, ms, 10000 * ms, 0);
    ck_assert_int_eq(threads_now(2), 1);
    ck_assert_int_eq(threads_now(4), 1);
    ck_assert_int_eq(threads_now(1), 1);
    alone(ms);
    ck_assert_int_eq(threads_now(2), 1);
    for (int i = 0; i < 16; i++) alone(i < 15 ? 90 * ms : 1000 * ms);
    ck_assert_int_eq(threads_now(2), 2);
    region(true, ms, 10000 * ms, 0); /* retried without success */
    ck_assert_int_eq(threads_now(2), 1);
    alone(hour);
    region(true, 100 * ms, 0, 0);
    ck_assert_int_eq(threads_now(2), 2);
}
END_TEST

START_TEST(at_most_a_sixteenth_of_the_time_is_lost) {
    uint64_t lost = 0, paid = 0;
    for (int i = 0; i < 1000; i++)
        if (threads_now(2) == 2)
            region(true, 0, 30 * ms, 0), lost += 30 * ms;
        else
            alone(10 * ms), paid += 10 * ms;
    ck_assert_uint_gt(lost, 0);
    ck_assert_uint_le(lost, paid / 16 + 64 * ms); /* plus the initial balance and the last loss */
}
END_TEST

START_TEST(waits_count_where_shares_are_equal) {
    for (int i = 0; i < 100; i++) region(false, 10 * ms, 25 * ms, 0); /* another thread has more work */
    ck_assert_int_eq(threads_now(2), 2);
    for (int i = 0; i < 10; i++)
        if (threads_now(2) == 2) region(true, 10 * ms, 25 * ms, 0);
    ck_assert_int_eq(threads_now(2), 1);
    rm_parallel_pretend(0);
    for (int i = 0; i < 10; i++)
        if (threads_now(2) == 2) region(false, ms, 25 * ms, 0); /* not that much more */
    ck_assert_int_eq(threads_now(2), 1);
}
END_TEST

START_TEST(waits_within_a_region_count) {
    for (int i = 0; i < 10; i++) region(true, 100 * ms, 0, 5 * ms);
    ck_assert_int_eq(threads_now(2), 2);
    for (int i = 0; i < 10; i++)
        if (threads_now(2) == 2) region(true, 100 * ms, 0, 90 * ms);
    ck_assert_int_eq(threads_now(2), 1);
}
END_TEST

/* Makes `n` calls of a kind; returns how many used the team. */
static int together_of(int n, uint64_t kind, uint64_t alone_ns, uint64_t together_ns) {
    int together = 0;
    for (int i = 0; i < n; i++) {
        rm_region r = rm_region_begin_like(2, true, kind);
        r.begin_ns -= r.threads > 1 ? together_ns : alone_ns;
        r.own_ns = rm_now_ns();
        rm_region_end(&r, 0);
        together += r.threads > 1;
    }
    return together;
}

START_TEST(calls_of_a_kind_take_the_faster_way) {
    enum { NARROW = 77, WIDE = 1234567, OTHERS = 1000 };
    ck_assert_int_eq(together_of(1, NARROW, 20 * ms, 30 * ms), 1); /* OpenMP creates its threads in the first step */
    ck_assert_int_le(together_of(1000, NARROW, 20 * ms, 30 * ms), 20);
    ck_assert_int_ge(together_of(1000, WIDE, 50 * ms, 30 * ms), 980);
    ck_assert_int_ge(together_of(1000, WIDE, 50 * ms, 30 * ms), 990);
    ck_assert_int_le(together_of(1000, WIDE, 50 * ms, 90 * ms), 200);  /* it has become slower */
    ck_assert_int_ge(together_of(2000, WIDE, 50 * ms, 30 * ms), 1000); /* and faster */
    for (int i = 0; i < 10 * OTHERS; i++) together_of(1, (uint64_t)(i % OTHERS), ms, ms);
    ck_assert_int_eq(threads_now(2), 2);
}
END_TEST

START_TEST(balances_are_per_thread_and_can_be_overridden) {
    region(true, ms, 1000 * ms, 0);
    int other = 0;
#pragma omp parallel num_threads(2)
    if (omp_get_thread_num()) other = threads_now(2);
    ck_assert_int_eq(other, 2);
    ck_assert_int_eq(threads_now(2), 1);
    rm_parallel_pretend(1);
    ck_assert_int_eq(threads_now(2), 2);
    rm_parallel_pretend(-1);
    ck_assert_int_eq(threads_now(2), 1);
    rm_parallel_pretend(0);
    ck_assert_int_eq(threads_now(2), 2);
}
END_TEST

START_TEST(loops_visit_every_element_once) {
    enum { N = 100000 };
    static int count[N];
    for (int worth = -1; worth <= 1; worth += 2)
        for (int threads = 1; threads <= 3; threads++) {
            rm_parallel_pretend(worth);
            RM_PARALLEL_FOR(threads, true, for (int64_t i = 0; i < N; i++) count[i]++;);
            RM_PARALLEL_EVEN(threads, N > 1, for (int64_t i = 0; i < N; i++) count[i]++;);
            RM_PARALLEL_SPANS(threads, true, N, for (int64_t i = from; i < to; i++) count[i]++;);
            RM_PARALLEL_FOR(threads, false, for (int64_t i = 0; i < N; i++) count[i]++;);
        }
    for (int i = 0; i < N; i++) ck_assert_int_eq(count[i], 24);
    rm_parallel_pretend(0);
}
END_TEST

/* Thread 1 is late at one barrier, while thread 0 sleeps; at the next barrier it is released. */
START_TEST(late_threads_leave_the_barrier) {
    enum { MEETINGS = 40, LATE = 7 };
    rm_region r = {.threads = 2, .begin_ns = rm_now_ns()};
    static rm_barrier barrier;
    barrier.region = &r;
    unsigned left[2] = {0};
#pragma omp parallel num_threads(2)
    {
        int me = omp_get_thread_num();
        ck_assert_int_eq(omp_get_num_threads(), 2);
        if (me == 0) r.balance_ns = 1000 * hour;
        for (unsigned n = 1; n <= MEETINGS && !left[me]; n++) {
            if (me == 0 && n == LATE) r.balance_ns = 0, r.begin_ns = rm_now_ns();
            if (me == 1 && n == LATE) {
                while (!atomic_load(&barrier.thread[1].sleepers))
                    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
                nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            }
            if (!rm_barrier_wait(&barrier, me, 2, n)) left[me] = n;
        }
    }
    ck_assert_uint_eq(left[0], LATE + 1);
    ck_assert_uint_eq(left[1], LATE + 1);
    ck_assert_uint_ge(rm_barrier_lost_ns(&barrier, 2), 20 * ms);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("parallel");
    tcase_add_checked_fixture(tests, afresh, NULL);
    tcase_add_test(tests, late_threads_end_the_team_for_a_while);
    tcase_add_test(tests, at_most_a_sixteenth_of_the_time_is_lost);
    tcase_add_test(tests, waits_count_where_shares_are_equal);
    tcase_add_test(tests, waits_within_a_region_count);
    tcase_add_test(tests, calls_of_a_kind_take_the_faster_way);
    tcase_add_test(tests, balances_are_per_thread_and_can_be_overridden);
    tcase_add_test(tests, loops_visit_every_element_once);
    tcase_add_test(tests, late_threads_leave_the_barrier);
    return run_cases("parallel", tests);
}

/* test_side_thread.c: a sleeping helper thread wakes in time even if the wall clock is set back meanwhile, and ends at
 * once. */
#include "dist/group/side_thread.h"

#include "memory/clock.h"
#include "tests/suite.h"

#include <check.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Replaces the C library's function for this program: the wall clock is an hour ahead of the kernel's, as a deadline
 * appears after the clock has been set back by an hour. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += 3600;
    return status;
}

typedef struct {
    rm_side_thread side;
    double between_s;
    int rounds;
} dozer;

static void *doze(void *context) {
    dozer *d = context;
    rm_side_thread_lock(&d->side);
    while (rm_side_thread_doze(&d->side, (1e-9 * (double)rm_now_ns()) + d->between_s)) d->rounds++;
    rm_side_thread_unlock(&d->side);
    return NULL;
}

static int rounds_of(dozer *d) {
    rm_side_thread_lock(&d->side);
    int rounds = d->rounds;
    rm_side_thread_unlock(&d->side);
    return rounds;
}

START_TEST(waking_does_not_depend_on_the_wall_clock) {
    dozer d = {.between_s = 0.01};
    double start = (1e-9 * (double)rm_now_ns());
    ck_assert_int_eq(rm_side_thread_start(&d.side, doze, &d, "doze"), REMAT_OK);
    while (rounds_of(&d) < 3 && (1e-9 * (double)rm_now_ns()) - start < 5) usleep(1000);
    rm_side_thread_end(&d.side);
    ck_assert_int_ge(d.rounds, 3);
    ck_assert_msg((1e-9 * (double)rm_now_ns()) - start >= 0.03, "it does not doze");
}
END_TEST

START_TEST(end_wakes_the_thread_at_once) {
    dozer d = {.between_s = 3600};
    ck_assert_int_eq(rm_side_thread_start(&d.side, doze, &d, "doze"), REMAT_OK);
    usleep(10000);
    rm_side_thread_end(&d.side);
    ck_assert_int_eq(d.rounds, 0);
}
END_TEST

/* No other waiting code uses the wall clock. (train/report/ only writes the time of day.) */
START_TEST(no_code_waits_by_the_wall_clock) {
    ck_assert_int_ne(
        system("grep -rnE 'CLOCK_REALTIME|gettimeofday|timedjoin_np\\(|sem_timedwait' --include='*.c' --include='*.h' "
               "--include='*.cc' --exclude-dir=report " RM_SOURCE_DIR "/dist " RM_SOURCE_DIR "/train " RM_SOURCE_DIR
               "/engine " RM_SOURCE_DIR "/memory " RM_SOURCE_DIR "/ops"),
        0);
}
END_TEST

int main(void) {
    TCase *all = tcase_create("all");
    tcase_add_test(all, waking_does_not_depend_on_the_wall_clock);
    tcase_add_test(all, end_wakes_the_thread_at_once);
    tcase_add_test(all, no_code_waits_by_the_wall_clock);
    return run_cases("dist/side_thread", all);
}

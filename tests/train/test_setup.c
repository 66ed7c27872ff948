/* test_setup.c: from flags to a session's config, for defaults that are not constants: when times are measured, and
 * where they are stored. */
#include "tests/train/train_test.h"

#include "train/run/setup.h"

#define WORK "--task=adding --seq-len=40 --hidden=4 --layers=1 --batch=2 --tile=8 --threads=1 "

static bool is_there(const char *name) { return access(in_scratch(name), F_OK) == 0; }

/* `optimal` chooses by time, so it measures, once; the other strategies do not. */
START_TEST(times_are_measured_for_optimal_only) {
    setenv("XDG_CACHE_HOME", in_scratch("cache"), 1);
    ck_runs("plan " WORK "--json");
    ck_says_all(program_output, "\"measured_times\": false");
    ck_runs("plan " WORK "--checkpoint=sqrt");
    ck_runs("plan " WORK "--checkpoint=optimal --calibration=off");
    ck_runs("plan " WORK "--checkpoint=optimal --device=null");
    ck_assert(!is_there("cache/remat/calibration.txt"));
    ck_runs("plan " WORK "--checkpoint=optimal --json");
    ck_says_all(program_output, "\"measured_times\": true");
    ck_assert(is_there("cache/remat/calibration.txt"));
    ck_runs("plan " WORK "--memory-budget=1GiB --json");
    ck_says_all(program_output, "\"measured_times\": true");
}
END_TEST

START_TEST(calibration_file_can_be_chosen) {
    setenv("XDG_CACHE_HOME", in_scratch("cache"), 1);
    ck_runs("plan " WORK "--json --calibration=%s", in_scratch("times"));
    ck_says_all(program_output, "\"measured_times\": true");
    ck_assert(is_there("times") && !is_there("cache"));
    ck_assert(!*program_errors);
    ck_runs("train " WORK "--steps=2 --calibration=%s", in_scratch("no/such/folder/times"));
    ck_says_all(program_errors, "--calibration|no/such/folder/times|not be saved");
}
END_TEST

/* Without a cache folder ~/.cache is created and used; without a home directory nothing is stored. */
START_TEST(calibration_is_stored_in_the_cache_folder) {
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", scratch(), 1);
    ck_runs("plan " WORK "--checkpoint=optimal");
    ck_assert(is_there(".cache/remat/calibration.txt"));
    unsetenv("HOME");
    ck_runs("plan " WORK "--checkpoint=optimal");
    setenv("XDG_CACHE_HOME", "relative", 1); /* not absolute: must be ignored by its specification */
    ck_runs("plan " WORK "--checkpoint=optimal");
    ck_assert(access("relative", F_OK) != 0);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("setup");
    tcase_add_test(tests, times_are_measured_for_optimal_only);
    tcase_add_test(tests, calibration_file_can_be_chosen);
    tcase_add_test(tests, calibration_is_stored_in_the_cache_folder);
    return run_suite("train/setup", tests);
}

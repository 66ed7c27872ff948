/* test_address_space.c: a limit on address space that leaves no room for threads: a sentence before anything is loaded, where
 * there would be a crash, or a process that waits for ever. */
#include "tests/train/train_test.h"

#include <sys/resource.h>

static int run_within(uint64_t mib, const char *flags) {
    struct rlimit before, now;
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
    now = before;
    now.rlim_cur = mib << 20;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &now), 0);
    int status = run_program("%s", flags);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
    return status;
}

START_TEST(too_little_address_space_is_refused) {
    const bool openblas = strstr(remat_build().gemm_library, "OpenBLAS"), sanitized = OVERHEAD_BYTES > UINT64_C(1)
                                                                                                           << 30;
    if (!openblas || sanitized || sysconf(_SC_NPROCESSORS_ONLN) < 2) return;
    unsetenv("OMP_NUM_THREADS");
    unsetenv("OPENBLAS_NUM_THREADS");
    static const uint64_t least[] = {58, 117, 191};
    for (size_t i = 0; i < sizeof least / sizeof *least; i++) {
        ck_assert_int_eq(run_within(least[i], "info"), 2);
        ck_assert_msg(strstr(program_errors, "(ulimit -v)") && strstr(program_errors, "raise the limit"), "%s",
                      program_errors);
    }
    setenv("OMP_NUM_THREADS", "1", 1);
    ck_assert_msg(run_within(191, "info") == 0, "%s", program_errors);
    unsetenv("OMP_NUM_THREADS");
    ck_assert_msg(run_within(384 + 64 * (uint64_t)sysconf(_SC_NPROCESSORS_ONLN), "info") == 0, "%s", program_errors);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("address_space");
    tcase_add_test(tests, too_little_address_space_is_refused);
    return run_suite("address_space", tests);
}

/* test_address_space.c: limits on address space (ulimit -v). `remat train` either trains, or names a limit under which
 * it does. OpenBLAS alone would wait forever if it cannot map memory. */
#include "engine/abi.h"
#include "tests/train/train_test.h"

static int train_within(uint64_t mib, int threads) {
    address_space = mib << 20;
    int status = run_program("train --data=%s --hidden=64 --layers=1 --seq-len=50 --batch=4 --steps=2 --threads=%d",
                             in_scratch("data"), threads);
    address_space = 0;
    return status;
}

static void expect_training_or_a_limit(uint64_t mib, int threads) {
    int status = train_within(mib, threads);
    if (!status) return;
    const char *named = strstr(program_errors, "(ulimit -v ");
    ck_assert_msg(status == 1 && named && strchr(program_errors, '\n')[1] == 0, "%llu MiB, %d threads: exit %d: %s",
                  (unsigned long long)mib, threads, status, program_errors);
    unsigned long long enough = strtoull(strpbrk(named, "0123456789"), NULL, 10) / 1024;
    ck_assert_uint_gt(enough, mib);
    status = train_within(enough, threads);
    ck_assert_msg(status == 0, "%llu MiB, which is what %llu need: exit %d: %s", enough, (unsigned long long)mib,
                  status, program_errors);
}

/* Limits near the needs of the program without OpenBLAS, with its code, and with one and two of its buffers. */
START_TEST(run_trains_or_names_a_sufficient_limit) {
    static const uint64_t some[] = {40, 49, 100, 180, 320, 400};
    const bool sanitized = OVERHEAD_BYTES > UINT64_C(1) << 30; /* sanitizers need terabytes */
    if (sanitized || !strstr(rm_build_info_of_this().gemm_library, "OpenBLAS")) return;
    make_text("data", 90000);
    for (int threads = 1; threads <= 2; threads++) {
        for (size_t i = 0; i < sizeof some / sizeof *some; i++) expect_training_or_a_limit(some[i], threads);
        for (uint64_t mib = 40; getenv("REMAT_LONG_TESTS") && mib <= 600; mib += 4)
            expect_training_or_a_limit(mib, threads);
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("address_space");
    tcase_add_test(tests, run_trains_or_names_a_sufficient_limit);
    return run_suite("address_space", tests);
}

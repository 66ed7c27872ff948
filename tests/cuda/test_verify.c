/* test_verify.c: remat_config.verify_recompute on the emulated device "cuda" (device.h). As tests/engine/test_verify.c,
 * but the device itself hashes and compares, and reports at the end of the step. */
#ifdef HAVE_CUDA_HEADERS

#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/cuda/device.h"
#include "tests/flips.h"
#include "tests/suite.h"

static void begin(int order) {
    emulated_device_reset((uint64_t)order);
    rm_emulate_in((rm_emulated_order)(order % RM_ORDERS));
}

static void expect_clean(void) {
    ck_assert_msg(!fake_cuda_violation(), "%s", fake_cuda_violation());
    ck_assert_int_eq(fake_cuda_live(), 0);
}

static void try_one(void (*one)(const char *device, int seed), int seed) {
    begin(seed);
    one("cuda", seed);
    expect_clean();
}

START_TEST(flips_along_time_are_caught_on_cuda) { try_one(flip_along_time, _i); }
END_TEST
START_TEST(flips_by_depth_are_caught_on_cuda) { try_one(flip_by_depth, _i); }
END_TEST
START_TEST(flips_in_the_second_tier_are_caught_on_cuda) { try_one(flip_in_the_second_tier, _i); }
END_TEST
START_TEST(verifying_on_cuda_changes_no_bits_and_reports_nothing) { try_one(nothing_flipped, _i); }
END_TEST

/* The hashes lie in the block, which has the planned size, and the last claimed byte is its last one. */
START_TEST(hashes_are_planned_memory) {
    net n = {.cell = NET_LSTM, .layers = 1, .vocabulary = 5, .embed = 2, .hidden = 2, .timesteps = 64, .batch = 1};
    remat_graph *graph;
    remat_session *s;
    remat_plan_summary with, without;
    remat_step_result r;
    begin(1);
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &n);
    remat_config config = verified("cuda", 1);
    config.verify_recompute = false;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    without = rm_plan_summary_of(s);
    remat_session_free(s);
    config.verify_recompute = true;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    with = rm_plan_summary_of(s);
    ck_assert_uint_ge(with.planned_peak_bytes, without.planned_peak_bytes + 64 * 2 * 8);
    ck_assert_uint_gt(with.budgeted_bytes, without.budgeted_bytes + 64 * 2 * 8);
    net_feed(s, &n, 1);
    CHECKED(remat_step(s, 0.1, &r));
    ck_assert_uint_eq(r.arena_peak_bytes, with.planned_peak_bytes);
    remat_session_free(s);
    remat_graph_free(graph);
    expect_clean();
}
END_TEST

int main(void) {
    TCase *c = tcase_create("verify");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, flips_along_time_are_caught_on_cuda, 0, rm_cases(40, 10));
    tcase_add_loop_test(c, flips_by_depth_are_caught_on_cuda, 0, rm_cases(40, 10));
    tcase_add_loop_test(c, flips_in_the_second_tier_are_caught_on_cuda, 0, 4);
    tcase_add_loop_test(c, verifying_on_cuda_changes_no_bits_and_reports_nothing, 0, 6);
    tcase_add_test(c, hashes_are_planned_memory);
    return run_cases("verify", c);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif

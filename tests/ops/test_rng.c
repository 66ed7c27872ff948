/* test_rng.c: Philox gives the known answers of its authors (Random123), numbers depend on every argument, and dropout
 * drops the right share. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rng.h"
#include "ops/op.h"
#include "tests/suite.h"

START_TEST(philox_gives_the_known_answers) {
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        rm_philox counter;
        memcpy(counter.word, known[i].counter, sizeof counter.word);
        rm_philox out = rm_philox4x32(counter, known[i].key[0], known[i].key[1]);
        ck_assert_mem_eq(out.word, known[i].answer, sizeof out.word);
    }
}
END_TEST

START_TEST(every_argument_matters) {
    uint32_t base = rm_random(1, 2, 3, 4, 5);
    ck_assert_uint_eq(base, rm_random(1, 2, 3, 4, 5));
    ck_assert_uint_ne(base, rm_random(2, 2, 3, 4, 5));
    ck_assert_uint_ne(base, rm_random(1 | 1ull << 40, 2, 3, 4, 5));
    ck_assert_uint_ne(base, rm_random(1, 3, 3, 4, 5));
    ck_assert_uint_ne(base, rm_random(1, 2 | 1ull << 40, 3, 4, 5));
    ck_assert_uint_ne(base, rm_random(1, 2, 4, 4, 5));
    ck_assert_uint_ne(base, rm_random(1, 2, 3, 5, 5));
    for (uint64_t element = 0; element < 64; element++)
        if (element != 5) ck_assert_uint_ne(base, rm_random(1, 2, 3, 4, element));
}
END_TEST

START_TEST(uniform_stays_below_one) {
    ck_assert_float_eq(rm_uniform(0), 0);
    ck_assert_float_lt(rm_uniform(~0u), 1);
    ck_assert_float_eq(rm_uniform(1u << 31), 0.5f);
}
END_TEST

/* ---- Dropout: the share dropped, and independence of neighbours ------------------------------------------- */

enum { T = 50, B = 8, C = 501, N = T * B * C };
static float ones[N], out[N];

static void drop(double probability, uint64_t seed, uint64_t step, uint32_t node, bool training) {
    const remat_op *op = rm_op_find("dropout");
    remat_desc shape = rm_desc_make(REMAT_F32, 3, (int64_t[]){T, B, C});
    for (int i = 0; i < N; i++) ones[i] = 1;
    remat_call call = {.attr = &(rm_dropout_attr){probability},
                       .x = {{shape, ones}},
                       .y = {shape, out},
                       .key = {seed, step, node},
                       .t_total = T,
                       .training = training,
                       .threads = 2};
    op->on[REMAT_ON_CPU].forward(&call);
}

/* Within five standard deviations of the expected count: a fair generator fails once in two million runs. */
static void expect_share(int64_t count, int64_t of, double share, const char *what) {
    double deviation = sqrt((double)of * share * (1 - share));
    ck_assert_msg(fabs((double)count - (double)of * share) <= 5 * deviation + 0.5,
                  "%s: %lld of %lld, where %g is expected", what, (long long)count, (long long)of, (double)of * share);
}

START_TEST(dropout_drops_its_share) {
    static const double probability[] = {0, 0.1, 0.5, 0.9, 1};
    for (size_t k = 0; k < sizeof probability / sizeof *probability; k++) {
        double p = probability[k];
        drop(p, 1, 0, 1, true);
        int64_t dropped = 0, in_time = 0, in_feature = 0;
        for (int i = 0; i < N; i++) {
            dropped += out[i] == 0;
            if (out[i] != 0) ck_assert_msg(fabs(out[i] - 1 / (1 - p)) <= 1e-6 / (1 - p), "kept as %g", (double)out[i]);
            if (i + B * C < N) in_time += out[i] == 0 && out[i + B * C] == 0;
            if (i + 1 < N) in_feature += out[i] == 0 && out[i + 1] == 0;
        }
        expect_share(dropped, N, p, "dropped");
        expect_share(in_time, N - B * C, p * p, "dropped twice running in time");
        expect_share(in_feature, N - 1, p * p, "dropped beside each other");
    }
}
END_TEST

START_TEST(dropout_masks_of_different_keys_are_independent) {
    static float first[N];
    drop(0.5, 1, 0, 1, true);
    memcpy(first, out, sizeof first);
    for (int k = 0; k < 3; k++) {
        drop(0.5, k == 0 ? 2 : 1, k == 1, k == 2 ? 2 : 1, true);
        int64_t same = 0;
        for (int i = 0; i < N; i++) same += first[i] == out[i];
        expect_share(same, N, 0.5, "elements alike under two keys");
    }
}
END_TEST

START_TEST(dropout_is_the_identity_in_evaluation) {
    drop(0.5, 1, 0, 1, false);
    ck_assert_mem_eq(out, ones, sizeof out);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("rng");
    tcase_add_test(tests, philox_gives_the_known_answers);
    tcase_add_test(tests, every_argument_matters);
    tcase_add_test(tests, uniform_stays_below_one);
    tcase_add_test(tests, dropout_drops_its_share);
    tcase_add_test(tests, dropout_masks_of_different_keys_are_independent);
    tcase_add_test(tests, dropout_is_the_identity_in_evaluation);
    return run_cases("rng", tests);
}

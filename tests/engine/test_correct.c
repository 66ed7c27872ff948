/* test_correct.c: remat_correct counts the targets among the k largest logits. */
#include "engine/remat.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

/* The numbers of PyTorch's topk(k), for k from 1 to 4. */
START_TEST(targets_among_the_k_largest_are_counted) {
    static const float logits[3][4] = {{4, 3, 2, 1}, {1, 4, 3, 2}, {-1, -2, -3, -4}};
    static const int32_t targets[] = {0, 3, 3};
    static const int64_t correct[] = {1, 1, 2, 3};
    for (int k = 1; k <= 4; k++) ck_assert_int_eq(remat_correct(logits[0], targets, 3, 4, k), correct[k - 1]);
    ck_assert_int_eq(remat_correct(logits[0], targets, 0, 4, 1), 0);
}
END_TEST

START_TEST(equal_logits_rank_in_order) {
    static const float logits[2][3] = {{5, 5, 1}, {5, 5, 1}};
    static const int32_t targets[] = {0, 1};
    ck_assert_int_eq(remat_correct(logits[0], targets, 2, 3, 1), 1);
    ck_assert_int_eq(remat_correct(logits[0], targets, 2, 3, 2), 2);
}
END_TEST

/* The logits follow a number that would be the largest if it were one of them. */
START_TEST(targets_outside_the_classes_are_never_correct) {
    static const float numbers[] = {9, 0, 1, 2, 1, 0, 2, 1, 0, 2, 9};
    static const int32_t targets[] = {-1, 2, 3};
    ck_assert_int_eq(remat_correct(numbers + 1, targets, 3, 3, 1), 1);
    ck_assert_int_eq(remat_correct(numbers + 1, targets, 3, 3, 3), 1);
}
END_TEST

START_TEST(nan_logits_are_never_correct) {
    const float logits[] = {NAN, NAN, NAN, 1, NAN, 0, 3, 2, 1};
    const int32_t targets[] = {1, 0, 0};
    ck_assert_int_eq(remat_correct(logits, targets, 3, 3, 1), 1);
}
END_TEST

int main(void) {
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, targets_among_the_k_largest_are_counted);
    tcase_add_test(tc, equal_logits_rank_in_order);
    tcase_add_test(tc, targets_outside_the_classes_are_never_correct);
    tcase_add_test(tc, nan_logits_are_never_correct);
    return run_cases("correct", tc);
}

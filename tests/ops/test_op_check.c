/* test_op_check.c: remat_op_check as a program calls it, on the op of the example: its results, and what it refuses
 * before anything runs. test_mutants.c tests the mistakes that it finds, and test_ops.c that the built-in ops pass. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rng.h"
#include "examples/softsign.h"
#include "memory/host.h"
#include "ops/cuda/cuda_queue.h"
#include "ops/op.h"
#include "tests/cases.h"
#include "tests/suite.h"

static void expect(remat_status status, remat_status expected, const char *because) {
    ck_assert_msg(status == expected, "%s: %s", remat_status_text(status), remat_last_error());
    ck_assert_msg(strstr(remat_last_error(), because), "\"%s\" does not say \"%s\"", remat_last_error(), because);
}

/* The check provokes refusals; they must not stay as the thread's last error. */
START_TEST(correct_op_passes) {
    remat_op_report report = {0};
    ck_assert_int_eq(remat_refuse("what was %s before", "wrong"), REMAT_INVALID);
    ck_assert_int_eq(remat_op_check(&softsign, &softsign_f64, &report), REMAT_OK);
    ck_assert_str_eq(remat_last_error(), "what was wrong before");
    ck_assert(report.same_across_threads);
    ck_assert(report.gradient_error > 0 && report.gradient_error < 1);
    ck_assert(report.float_error > 0 && report.float_error < 1);
    ck_assert_int_eq(remat_op_check(&softsign, &softsign_f64, NULL), REMAT_OK);
}
END_TEST

START_TEST(mistake_in_backward_is_found) {
    expect(remat_op_check(&broken_softsign, &broken_softsign_f64, NULL), REMAT_INVALID,
           "softsign, sample \"sequence\": the gradient of x[0][0] is ");
    expect(remat_op_check(&broken_softsign, &softsign_f64, NULL), REMAT_INVALID, "the kernel in float");
}
END_TEST

/* Kernels are compared with a separate definition. */
START_TEST(kernels_are_compared_with_definitions) {
    remat_op op = softsign, op_f64 = softsign_f64;
    op.define_forward = softsign.on[REMAT_ON_CPU].forward, op.define_backward = softsign.on[REMAT_ON_CPU].backward;
    op_f64.define_forward = softsign_f64.on[REMAT_ON_CPU].forward;
    op_f64.define_backward = softsign_f64.on[REMAT_ON_CPU].backward;
    ck_assert_int_eq(remat_op_check(&op, &op_f64, NULL), REMAT_OK);
    op.on[REMAT_ON_CPU].backward = broken_softsign.on[REMAT_ON_CPU].backward;
    expect(remat_op_check(&op, &op_f64, NULL), REMAT_INVALID,
           "the kernel in float, tile 0 of 5 timesteps: dx[0] is off");
}
END_TEST

/* If any allocation fails, the status is MEMORY and everything is freed (which AddressSanitizer checks). */
static void starve(const remat_op *op, const remat_op *op_f64, int64_t first, int64_t any) {
    int64_t before = rm_host_allocations();
    ck_assert_int_eq(remat_op_check(op, op_f64, NULL), REMAT_OK);
    int64_t all = rm_host_allocations() - before;
    for (int64_t i = 1; i <= first + any; i++) {
        rm_host_fail_at(i <= first ? i : (i - first) * all / any);
        remat_status status = remat_op_check(op, op_f64, NULL);
        rm_host_fail_at(0);
        expect(status, REMAT_MEMORY, ": out of memory");
    }
    ck_assert_int_eq(remat_op_check(op, op_f64, NULL), REMAT_OK);
}

START_TEST(failed_allocation_is_reported) {
    starve(&softsign, &softsign_f64, 150, rm_cases(1000, 100));
    starve(rm_op_find("gru"), rm_op_find_f64("gru"), 150, rm_cases(100, 5)); /* states, packed weights, rebuild */
}
END_TEST

/* ---- Descriptors and samples ------------------------------------------------------------------------------------ */

#define SHAPE(type, rank, ...) ((remat_desc){type, rank, {__VA_ARGS__}})

#define MISTAKES(X)                                                                                                    \
    X(op_f64 = op, "x[0] is f32 (5,2,7); it must be f64 in the op in double")                                          \
    X(op_f64.saves.out = true, "it differs in inputs, states, time, saves")                                            \
    X(sample_f64.x[0].dim[0] = 6, "it differs in inputs, states, time")                                                \
    X(op.n_samples = 0, "has no samples")                                                                              \
    X(op.samples = NULL, "has no samples")                                                                             \
    X(op.cost = NULL, "no infer or no cost")                                                                           \
    X(op_f64.on[REMAT_ON_CPU].forward = NULL, "no forward or no backward")                                             \
    X(sample.name = NULL, "sample 0 has no name")                                                                      \
    X(sample.x[1].rank = -1, "x[1] is not given, and is not optional")                                                 \
    X(sample.x[0] = SHAPE(REMAT_F32, 9, 1, 1, 1, 1), "rank from 0 to 8")                                               \
    X(sample.x[0].dim[1] = 0, "of size 0")                                                                             \
    X(sample.x[0].dtype = REMAT_I32, "it must be f32, or integers")                                                    \
    X(sample.x[0] = SHAPE(REMAT_F32, 1, 7, 1, 1, 1), "(T,B)")                                                          \
    X((op.time = REMAT_TIME_LAST, op.cheap = false, sample.sequence = false), "not a sequence")                        \
    X((op.discrete = op_f64.discrete = 2, op.bound = op_f64.bound = any_bound),                                        \
      "input 1 is f32 (7), and marked discrete")                                                                       \
    X(sample.attr = &op, "it has attributes, but the op's attr_bytes is 0")                                            \
    X(op.attr_bytes = 4, "attr_bytes or samples")                                                                      \
    X(op.cost = endless_cost, "inf FLOPs and 1 bytes")                                                                 \
    X(op.aux_bytes = wrapping_aux, "2^60")                                                                             \
    X(sample.x[1].dim[0] = 6, "slope is f32 (6); it must be a vector of 7")

static int64_t any_bound(const remat_desc *x, const void *attr, int input) {
    return (void)x, (void)attr, (void)input, 1;
}
static void endless_cost(const remat_desc *x, const remat_desc *y, const void *attr, remat_pass pass, remat_cost *out) {
    (void)x, (void)y, (void)attr, (void)pass;
    out->flops = INFINITY, out->moved_bytes = 1;
}
static uint64_t wrapping_aux(const remat_desc *x, const void *attr) { return (void)x, (void)attr, UINT64_MAX; }

#define ONE(mistake, reason)                                                                                           \
    case __COUNTER__ - FIRST:                                                                                          \
        mistake;                                                                                                       \
        because = reason;                                                                                              \
        break;
#define COUNTED(...) +1
enum { N_MISTAKES = 0 MISTAKES(COUNTED), FIRST = __COUNTER__ + 1 };

START_TEST(invalid_descriptors_and_samples_are_refused) {
    remat_op op = softsign, op_f64 = softsign_f64;
    remat_sample sample = softsign.samples[0], sample_f64 = softsign_f64.samples[0];
    const char *because = NULL;
    op.samples = &sample, op_f64.samples = &sample_f64;
    op.n_samples = op_f64.n_samples = 1;
    switch (_i) {
        MISTAKES(ONE)
    default:
        ck_abort_msg("there is no mistake %d", _i);
    }
    if (_i == N_MISTAKES - 1) sample_f64.x[1].dim[0] = 6;
    expect(remat_op_check(&op, &op_f64, NULL), REMAT_INVALID, because);
    ck_assert_msg(strstr(remat_last_error(), "softsign"), "%s", remat_last_error());
}
END_TEST

static void writing_forward(const remat_call *call) { ((rm_scale_attr *)(uintptr_t)call->attr)->factor = 1; }

/* Attributes must not be written to. Here attr_bytes is too small: it declares scale's factor, a double, as long as a
 * float. */
START_TEST(wrong_attribute_length_is_found) {
    remat_op op = *rm_op_find("scale"), op_f64 = *rm_op_find_f64("scale");
    ck_assert_int_eq(remat_op_check(&op, &op_f64, NULL), REMAT_OK);
    op.on[REMAT_ON_CPU].forward = writing_forward;
    expect(remat_op_check(&op, &op_f64, NULL), REMAT_INVALID, "scale: it changes the attributes");
    op = *rm_op_find("scale");
    op.attr_bytes = op_f64.attr_bytes = sizeof(float);
    expect(remat_op_check(&op, &op_f64, NULL), REMAT_INVALID, "the factor is ");
}
END_TEST

/* ---- Other functions for op authors ----------------------------------------------------------------------------- */

START_TEST(shapes_are_described) {
    char text[REMAT_DESC_TEXT];
    remat_desc desc = SHAPE(REMAT_F64, 3, 331, 4, 64, 1), scalar = SHAPE(REMAT_F32, 0, 1, 1, 1, 1);
    ck_assert_int_eq(remat_desc_count(&desc), 331 * 4 * 64);
    ck_assert_uint_eq(remat_desc_bytes(&desc), 331 * 4 * 64 * 8);
    ck_assert_str_eq(remat_desc_text(&desc, text), "f64 (331,4,64)");
    ck_assert_int_eq(remat_desc_count(&scalar), 1);
    ck_assert_str_eq(remat_desc_text(&SHAPE((remat_dtype)99, 1000, 1, 2, 3, 4, 5, 6, 7, 8), text),
                     "no dtype (1,2,3,4,5,6,7,8)");
    int64_t least = INT64_MIN;
    ck_assert_uint_lt(strlen(remat_desc_text(
                          &SHAPE((remat_dtype)99, 8, least, least, least, least, least, least, least, least), text)),
                      sizeof text - 1);
    ck_assert_int_eq(text[strlen(text) - 1], ')');
}
END_TEST

START_TEST(remat_random_matches_dropout) {
    remat_key key = {42, (uint64_t)1 << 32 | 7, 3};
    for (uint64_t i = 0; i < 9; i++)
        ck_assert_uint_eq(remat_random(&key, 5, i), rm_random(key.seed, key.step, 3, 5, i));
}
END_TEST

START_TEST(cuda_stream_is_that_of_the_queue) {
    int there;
    rm_cuda_queue queue = {.stream = &there};
    ck_assert_ptr_eq(remat_cuda_stream(&(remat_call){.queue = &queue}), &there);
    ck_assert_ptr_null(remat_cuda_stream(&(remat_call){.threads = 1}));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("op_check");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, correct_op_passes);
    tcase_add_test(tests, mistake_in_backward_is_found);
    tcase_add_test(tests, kernels_are_compared_with_definitions);
    tcase_add_test(tests, failed_allocation_is_reported);
    tcase_add_loop_test(tests, invalid_descriptors_and_samples_are_refused, 0, N_MISTAKES);
    tcase_add_test(tests, wrong_attribute_length_is_found);
    tcase_add_test(tests, shapes_are_described);
    tcase_add_test(tests, remat_random_matches_dropout);
    tcase_add_test(tests, cuda_stream_is_that_of_the_queue);
    return run_cases("op_check", tests);
}

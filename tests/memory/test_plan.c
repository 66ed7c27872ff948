/* test_plan.c: plans as lists and as text. */
#include "memory/plan.h"

#include "memory/host.h"
#include "tests/memory/chains.h"
#include "tests/memory/memory_test.h"

#define FOUR RM_SOURCE_DIR "/tests/problems/four_tiles.problem"

static const char *const every_kind = "run forward 0 drop\n"
                                      "run forward 1 all\n"
                                      "run forward 3 lean\n"
                                      "run backward 3\n"
                                      "free state 3\n"
                                      "free saved 3\n"
                                      "free dstate 0\n"
                                      "save state 2\n"
                                      "load saved 1\n";

START_TEST(text_round_trips) {
    rm_problem problem;
    read_problem(FOUR, &problem);
    rm_plan built = {0}, read = {0};
    ck_ok(rm_plan_run_forward(&built, 0, RM_DROP));
    ck_ok(rm_plan_run_forward(&built, 1, 0));
    ck_ok(rm_plan_run_forward(&built, 3, 1));
    ck_ok(rm_plan_run_backward(&built, 3));
    ck_ok(rm_plan_free_object(&built, RM_STATE, 3));
    ck_ok(rm_plan_free_object(&built, RM_SAVED, 3));
    ck_ok(rm_plan_free_object(&built, RM_DSTATE, 0));
    ck_ok(rm_plan_save(&built, RM_STATE, 2));
    ck_ok(rm_plan_load(&built, RM_SAVED, 1));
    char *text = text_of(file, rm_plan_write(&problem, &built, file));
    ck_assert_str_eq(text, every_kind);
    ck_ok(rm_plan_read(&problem, &read, text, strlen(text)));
    ck_assert_int_eq(read.n_steps, built.n_steps);
    for (int64_t i = 0; i < built.n_steps; i++) {
        rm_step a = built.step[i], b = read.step[i];
        ck_assert(a.verb == b.verb && a.option == b.option && a.object == b.object && a.index == b.index);
    }
    free(text);
    rm_plan_free(&built);
    rm_plan_free(&read);
    ck_assert(!read.step && !read.n_steps && !read.capacity);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(spaces_and_comments_are_ignored) {
    rm_problem problem;
    read_problem(FOUR, &problem);
    rm_plan plan = {0};
    const char *text = "\n  # a plan\n\t run   forward 0\tall  # the first\r\n\n\nfree state 1";
    ck_ok(rm_plan_read(&problem, &plan, text, strlen(text)));
    ck_assert_int_eq(plan.n_steps, 2);
    ck_assert_int_eq(plan.step[0].option, 0);
    ck_assert(plan.step[1].verb == RM_FREE && plan.step[1].index == 1);
    rm_plan_free(&plan);
    ck_ok(rm_plan_read(&problem, &plan, "", 0));
    ck_assert_int_eq(plan.n_steps, 0);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

START_TEST(unknown_text_is_refused_with_its_line) {
    static const char *const wrong[] = {
        "run",
        "run forward",
        "run forward 0",
        "run forward 4 all",
        "run forward -1 all",
        "run forward 0 boundary", /* an option name that exists, but not for this stage */
        "run forward 0 all now",
        "run forward 4294967296 all",
        "run forward 18446744073709551616 all",
        "run backward 4",
        "run backward x",
        "run sideways 1",
        "free state 4",
        "free saved 4",
        "free dstate 4",
        "free piece 1",
        "free state",
        "keep state 1",
        "Free state 1",
        "free state 1 free state 2",
        "\x80\xff\x01",
    };
    rm_problem problem;
    read_problem(FOUR, &problem);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[120];
        snprintf(text, sizeof text, "run forward 0 all\n%s\n", wrong[i]);
        rm_plan plan = {0};
        ck_fails(rm_plan_read(&problem, &plan, text, strlen(text)), INVALID, "line 2");
        ck_assert(!plan.step && !plan.n_steps);
    }
    rm_problem_free(&problem);
}
END_TEST

START_TEST(steps_of_arbitrary_bits_can_be_printed) {
    rm_problem problem;
    read_problem(FOUR, &problem);
    dice d = {7};
    for (int i = 0; i < 100000; i++) {
        uint64_t bits = roll(&d);
        rm_step step;
        memcpy(&step, &bits, sizeof step);
        char text[RM_STEP_TEXT];
        ck_assert_ptr_eq(rm_step_text(&problem, step, text), text);
        ck_assert_uint_lt(strlen(text), RM_STEP_TEXT);
    }
    rm_problem_free(&problem);
}
END_TEST

START_TEST(growing_reports_out_of_memory) {
    rm_problem problem;
    read_problem(FOUR, &problem);
    rm_plan plan = {0};
    for (int i = 0; i < 64; i++) ck_ok(rm_plan_run_backward(&plan, i));
    rm_host_fail_at(1);
    ck_fails(rm_plan_run_backward(&plan, 64), MEMORY, "65 steps");
    ck_assert_int_eq(plan.n_steps, 64);
    ck_assert_int_eq(plan.step[63].index, 63);
    ck_ok(rm_plan_run_backward(&plan, 64));
    rm_plan_free(&plan);
    rm_host_fail_at(1);
    ck_assert_int_eq(rm_plan_read(&problem, &plan, every_kind, strlen(every_kind)), REMAT_MEMORY);
    ck_assert_ptr_null(plan.step);
    FILE *full = fopen("/dev/full", "w");
    ck_ok(rm_plan_read(&problem, &plan, every_kind, strlen(every_kind)));
    ck_fails(rm_plan_write(&problem, &plan, full), IO, "cannot write");
    fclose(full);
    rm_plan_free(&plan);
    rm_problem_free(&problem);
}
END_TEST

RUN_TESTS("memory/plan", text_round_trips, spaces_and_comments_are_ignored, unknown_text_is_refused_with_its_line,
          steps_of_arbitrary_bits_can_be_printed, growing_reports_out_of_memory)

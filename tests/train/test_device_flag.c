/* test_device_flag.c: the device of a run (train/flags/device_flag.c): lists of GPUs, and --device=auto on a machine
 * without a GPU. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "train/flags/device_flag.h"
#include "tests/says.h"
#include "tests/suite.h"

static void parse(rm_options *o, const char *flag, const char *other) {
    char *argv[] = {(char *)"--data=x", (char *)"--checkpoint=sqrt", (char *)(uintptr_t)flag, (char *)(uintptr_t)other};
    ck_assert_msg(!rm_options_parse(o, RM_TRAIN, other ? 4 : 3, argv), "%s", remat_last_error());
}

START_TEST(lists_of_gpus_are_parsed) {
    static const struct {
        const char *devices;
        int n;
    } cases[] = {{"0", 1},     {"0,1", 2}, {"cuda:0,1,12", 3}, {"cuda", 1}, {"cuda:", 1}, {"cpu:2", 0},
                 {"cudas", 0}, {"0,", 0},  {",0", 0},          {"0 1", 0},  {"-1", 0},    {"cuda0", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(rm_device_count_gpus(cases[i].devices) == cases[i].n, "%s", cases[i].devices);
}
END_TEST

/* NULL: the variable is not set. */
static void expect_visible(const char *before, const char *devices, const char *after) {
    rm_options o;
    char flag[80];
    snprintf(flag, sizeof flag, "--devices=%s", devices);
    parse(&o, flag, NULL);
    if (before)
        setenv("CUDA_VISIBLE_DEVICES", before, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
    remat_status status = rm_device_use_gpus(&o);
    if (after) {
        const char *now = getenv("CUDA_VISIBLE_DEVICES");
        ck_assert_msg(!status, "%s", remat_last_error());
        ck_assert_str_eq(now ? now : "none", after);
        ck_assert_str_eq(o.session.device, "cuda");
    } else {
        ck_assert_int_eq(status, REMAT_INVALID);
        ck_says_all(remat_last_error(), "GPU");
    }
    rm_options_free(&o);
}

START_TEST(ranks_see_the_listed_gpus) {
    expect_visible(NULL, "0,2", "0,2");
    expect_visible(NULL, "cuda:3", "3");
    expect_visible(NULL, "cuda", "none");
    expect_visible("5,7,GPU-abc", "cuda", "5,7,GPU-abc");
    expect_visible("5,7,GPU-abc", "2,0", "GPU-abc,5");
    expect_visible("5,7", "2", NULL);
    expect_visible("", "0", NULL);
}
END_TEST

START_TEST(list_of_gpus_with_another_device_is_refused) {
    rm_options o;
    parse(&o, "--devices=0,1", "--device=cpu");
    ck_assert_int_eq(rm_device_use_gpus(&o), REMAT_INVALID);
    ck_says_all(remat_last_error(), "--device=cpu");
    rm_options_free(&o);
}
END_TEST

START_TEST(invalid_lists_are_refused) {
    static const struct {
        const char *flag, *words;
    } cases[] = {{"--devices=0,0", "--devices=0,0 names GPU 0 twice"},
                 {"--devices=cuda:1,2,01", "GPU 1|twice"},
                 {"--devices=99999999999999999999", "99999999999999999999|GPU"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rm_options o;
        unsetenv("CUDA_VISIBLE_DEVICES");
        parse(&o, cases[i].flag, NULL);
        ck_assert_int_eq(rm_device_use_gpus(&o), REMAT_INVALID);
        ck_says_all(remat_last_error(), cases[i].words);
        ck_assert(!getenv("CUDA_VISIBLE_DEVICES"));
        rm_options_free(&o);
    }
}
END_TEST

/* If there is a GPU for this build, it is used instead. */
START_TEST(auto_is_the_cpu_without_a_gpu) {
    rm_options o;
    bool works = !remat_device_check("cuda");
    parse(&o, "--device=auto", NULL);
    ck_assert(!rm_device_choose(&o, true));
    ck_assert_str_eq(o.session.device, works ? "cuda" : "cpu");
    rm_options_free(&o);
    parse(&o, "--device=cuda", NULL);
    ck_assert_int_eq(!rm_device_choose(&o, true), works);
    rm_options_free(&o);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("device");
    tcase_add_test(c, lists_of_gpus_are_parsed);
    tcase_add_test(c, ranks_see_the_listed_gpus);
    tcase_add_test(c, invalid_lists_are_refused);
    tcase_add_test(c, list_of_gpus_with_another_device_is_refused);
    tcase_add_test(c, auto_is_the_cpu_without_a_gpu);
    return run_cases("device", c);
}

/* test_ema.c: --ema: the average matches its formula bit for bit, also in resumed runs; evaluations use it; the budget
 * includes its bytes. */
#include "train/state/safetensors.h"

#include "tests/train/train_test.h"

#define RUN "--hidden=8 --layers=1 --batch=4 --seq-len=16 --threads=1 --tile=8 --seed=3 --lr=0.05 "
enum { MOST = 1 << 14, STEPS = 5 };

/* All arrays of a file, one after the other in file order. */
static int64_t read_all(const char *directory, int step, const char *name, float *out) {
    char path[300];
    rm_safetensors file;
    int64_t n = 0;
    snprintf(path, sizeof path, "%s/step-%08d/%s", directory, step, name);
    ck_ok(rm_safetensors_open(path, &file));
    for (int64_t i = 0; i < file.count; i++) {
        int64_t count = (int64_t)(file.array[i].end - file.array[i].begin) / 4;
        ck_assert_int_le(n + count, MOST);
        ck_ok(rm_safetensors_read(&file, &file.array[i], out + n));
        n += count;
    }
    rm_safetensors_free(&file);
    return n;
}

static void expect_same(const char *a, const char *b) {
    char command[600];
    snprintf(command, sizeof command, "cmp %s/step-%08d/ema.safetensors %s/step-%08d/ema.safetensors", a, STEPS, b,
             STEPS);
    ck_assert_int_eq(system(command), 0);
}

/* Computes the average from the weights after each update, which are in the states. Saving and resuming gives the same
 * average. */
START_TEST(average_is_the_exponential_moving_average) {
    static float average[MOST], now[MOST], saved[MOST];
    const char *text = make_text("text", 3000), *whole = in_scratch("a"), *parts = in_scratch("b");
    ck_runs("train --data=%s " RUN "--ema=0.75 --save-every=1 --keep=0 --steps=%d --save=%s", text, STEPS, whole);
    int64_t n = read_all(whole, 1, "model.safetensors", average);
    for (int step = 1; step <= STEPS; step++) {
        ck_assert_int_eq(read_all(whole, step, "model.safetensors", now), n);
        ck_assert_int_eq(read_all(whole, step, "ema.safetensors", saved), n);
        for (int64_t i = 0; i < n; i++) average[i] += 0.25f * (now[i] - average[i]);
        ck_assert_msg(!memcmp(average, saved, (size_t)n * sizeof *saved), "step %d", step);
    }
    ck_runs("train --data=%s " RUN "--ema=0.75 --keep=1 --save-every=1 --steps=2 --save=%s", text, parts);
    ck_runs("train --resume=%s --steps=%d --checkpoint-segments=2", parts, STEPS);
    expect_same(whole, parts);
    char command[300];
    snprintf(command, sizeof command, "test $(ls %s | wc -l) = 1", parts); /* old states are removed completely */
    ck_assert_int_eq(system(command), 0);
    ck_refuses(2, "--ema=0.5|training state", "train --resume=%s --ema=0.5", parts);
}
END_TEST

/* Two ranks, each with a part of the optimizer's state; one rank resumes. */
START_TEST(ranks_have_the_same_average) {
    const char *text = make_text("text", 3000), *a = in_scratch("a"), *b = in_scratch("b");
    ck_runs("train --data=%s " RUN "--ema=0.75 --zero=1 --devices=cpu:2 --deterministic-world=2 --steps=%d --save=%s",
            text, STEPS, a);
    ck_runs("train --data=%s " RUN "--ema=0.75 --zero=1 --devices=cpu:2 --deterministic-world=2 --steps=3 --save=%s",
            text, b);
    ck_runs("train --resume=%s --steps=%d", b, STEPS);
    expect_same(a, b);
}
END_TEST

static double loss_of(const char *before) {
    const char *at = strstr(program_output, before);
    ck_assert_msg(at && (at = strstr(at, "loss ")), "%s", program_output);
    return strtod(at + 5, NULL);
}

/* Unless --ema=0 selects the trained weights. */
START_TEST(evaluations_use_the_average) {
    const char *text = make_text("text", 3000), *st = in_scratch("st");
    char model[300], ema[300];
    snprintf(model, sizeof model, "%s/step-00000005/model.safetensors", st);
    snprintf(ema, sizeof ema, "%s/step-00000005/ema.safetensors", st);
    ck_runs("train --data=%s --eval-data=%s " RUN "--ema=0.9 --steps=5 --save=%s", text, text, st);
    double training = loss_of("\neval ");
    ck_runs("eval --resume=%s --data=%s", st, text);
    double averaged = loss_of("loss");
    ck_runs("eval --resume=%s --data=%s --ema=0", st, text);
    double trained = loss_of("loss");
    ck_assert_msg(training == averaged && averaged != trained, "%.9g, %.9g and %.9g", training, averaged, trained);
    ck_runs("eval --init=%s --seq-len=16 --batch=4 --tile=8 --data=%s", ema, text);
    ck_assert(loss_of("loss") == averaged);
    ck_runs("eval --init=%s --seq-len=16 --batch=4 --tile=8 --data=%s", model, text);
    ck_assert(loss_of("loss") == trained);
    ck_runs("sample --resume=%s --length=5", st);
}
END_TEST

START_TEST(state_without_an_average_is_refused) {
    const char *text = make_text("text", 3000), *st = in_scratch("st");
    ck_runs("train --data=%s " RUN "--steps=1 --save=%s", text, st);
    ck_refuses(2, "average|--ema", "eval --resume=%s --data=%s --ema=0.9", st, text);
    char damaged[300];
    snprintf(damaged, sizeof damaged, "%s/step-00000002/ema.safetensors", in_scratch("with"));
    ck_runs("train --data=%s " RUN "--ema=0.5 --steps=2 --save=%s", text, in_scratch("with"));
    ck_assert_int_eq(truncate(damaged, 1000), 0);
    ck_refuses(1, "ema.safetensors", "train --resume=%s --steps=3", in_scratch("with"));
}
END_TEST

static unsigned long long least_budget(const char *text, const char *more) {
    static const char says[] = "\n  --memory-budget=";
    ck_assert_int_eq(run_program("plan --data=%s " RUN "--calibration=off --memory-budget=10KiB %s", text, more), 2);
    const char *at = strstr(program_errors, says);
    ck_assert_msg(at, "%s", program_errors);
    return strtoull(at + strlen(says), NULL, 10);
}

START_TEST(budget_includes_the_average) {
    const char *text = make_text("text", 3000);
    unsigned long long without = least_budget(text, ""), with = least_budget(text, "--ema=0.9");
    ck_assert_msg(with > without + 16000, "%llu bytes, and %llu without", with, without); /* 4.9 k parameters */
    ck_runs("train --data=%s " RUN "--calibration=off --ema=0.9 --steps=2 --memory-budget=%llu", text, with);
    ck_assert_int_eq(run_program("train --data=%s " RUN "--calibration=off --ema=0.9 --steps=2 --memory-budget=%llu",
                                 text, with - 1),
                     2);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("ema");
    tcase_add_test(tests, average_is_the_exponential_moving_average);
    tcase_add_test(tests, ranks_have_the_same_average);
    tcase_add_test(tests, evaluations_use_the_average);
    tcase_add_test(tests, state_without_an_average_is_refused);
    tcase_add_test(tests, budget_includes_the_average);
    return run_suite("train/ema", tests);
}

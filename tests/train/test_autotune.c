/* test_autotune.c: --autotune chooses settings by measured steps, keeps what it measured, and by default changes no bit. */
#include "tests/train/train_test.h"

#define RUN "train --task=copy --seq-len=24 --batch=2 --hidden=400 --steps=3 --lr=0.01 "

/* Rewrites the time of each line of a calibration file whose note ends with `best`: 1 ns, so that it is chosen. */
static void let_win(const char *path, const char *best) {
    char command[512];
    snprintf(command, sizeof command, "sed -i 's/^\\([0-9a-f]*\\) [0-9]* \\(.*%s\\)$/\\1 1 \\2/' %s", best, path);
    ck_assert_int_eq(system(command), 0);
}

/* Also when the file of an earlier run makes it choose other buckets. */
START_TEST(tuned_buckets_keep_the_bits) {
    const char *file = in_scratch("times"), *plain = in_scratch("plain"), *tuned = in_scratch("tuned");
    ck_runs(RUN "--devices=cpu:3 --threads=1 --metrics=%s", plain);
    ck_assert(!strstr(program_output, "autotune"));
    ck_runs(RUN "--devices=cpu:3 --threads=1 --autotune --calibration=%s --metrics=%s", file, tuned);
    ck_says_all(program_output, "autotune|--bucket-cap-mb=|ms a step");
    ck_assert(!strstr(program_output, "--tile="));
    ck_runs("report --require-identical %s %s", plain, tuned);
    ck_assert_int_eq(lines_with(file, "a step with --bucket-cap-mb=1\n"), 1);
    ck_assert_int_eq(lines_with(file, "a step with the default settings"), 1);
    let_win(file, "--bucket-cap-mb=1");
    unlink(tuned);
    ck_runs(RUN "--devices=cpu:3 --threads=1 --autotune --calibration=%s --metrics=%s", file, tuned);
    ck_says_all(program_output, "autotune|--bucket-cap-mb=1,|in 5 buckets");
    ck_runs("report --require-identical %s %s", plain, tuned);
}
END_TEST

/* "--pipeline=2:NAME" of a cut that was measured; which ones are depends on the times of layers. */
static void find_measured_cut(const char *path, char cut[100]) {
    char line[512];
    FILE *file = fopen(path, "r");
    *cut = 0;
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, "--pipeline=2:");
        if (at) snprintf(cut, 100, "%.*s", (int)strcspn(at, "\n"), at);
    }
    if (file) fclose(file);
}

/* Other cuts have the bits of the first one. A cut that is given is left alone. */
START_TEST(tuned_cuts_keep_the_bits) {
    const char *file = in_scratch("times"), *plain = in_scratch("plain"), *tuned = in_scratch("tuned");
    const char *flags = "--layers=4 --hidden=16 --devices=cpu:2 --threads=1 --eval-every=2";
    char cut[100];
    ck_runs("train --task=copy --seq-len=24 --batch=2 --steps=3 %s --pipeline=2 --metrics=%s", flags, plain);
    ck_runs("train --task=copy --seq-len=24 --batch=2 --steps=3 %s --pipeline=2 --autotune --calibration=%s", flags,
            file);
    ck_says_all(program_output, "autotune|--pipeline=2:rnn.weight_ih_l|ms a step");
    ck_assert_int_ge(lines_with(file, "a step with --pipeline=2:"), 1);
    find_measured_cut(file, cut);
    let_win(file, cut);
    ck_runs("train --task=copy --seq-len=24 --batch=2 --steps=3 %s --pipeline=2 --autotune --calibration=%s "
            "--metrics=%s",
            flags, file, tuned);
    ck_says_all(program_output, cut);
    ck_says_all(program_output, strchr(cut, ':') + 1);
    ck_runs("report --require-identical %s %s", plain, tuned);
    ck_runs("train --task=copy --seq-len=24 --batch=2 --steps=1 %s %s --autotune --calibration=off", flags, cut);
    ck_says_all(program_output, "autotune|no setting");
}
END_TEST

/* Settings that change bits are tried only when told so; a setting that is given is left alone. */
START_TEST(tiles_are_tuned_when_told_so) {
    ck_runs(RUN "--threads=1 --autotune --calibration=off");
    ck_says_all(program_output, "autotune|no setting");
    ck_runs(RUN "--threads=1 --autotune=any --tile=8 --calibration=off");
    ck_says_all(program_output, "autotune|no setting");
    ck_runs(RUN "--threads=1 --seq-len=120 --autotune=any --calibration=off");
    ck_says_all(program_output, "autotune|--tile=|ms a step");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("autotune");
    tcase_add_test(tests, tuned_buckets_keep_the_bits);
    tcase_add_test(tests, tuned_cuts_keep_the_bits);
    tcase_add_test(tests, tiles_are_tuned_when_told_so);
    return run_suite("train/autotune", tests);
}

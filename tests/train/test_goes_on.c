/* test_goes_on.c: failing reports do not end a run: it continues without metrics, TensorBoard's file, output or plots,
 * and says so once. Changed data end a run between steps, after a save. */
#define _GNU_SOURCE /* F_SETPIPE_SZ */
#include "tests/train/train_test.h"

#define RUN "--hidden=8 --layers=1 --batch=2 --seq-len=16 --threads=1 --calibration=off --log-every=1 "

static char said[1 << 14]; /* on stderr */

static int count(const char *text, const char *part) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

static const char *read_text(const char *path, char *text, size_t bytes) {
    FILE *file = fopen(path, "r");
    ck_assert_msg(file, "%s is not there", path);
    text[fread(text, 1, bytes - 1, file)] = 0;
    fclose(file);
    return text;
}

/* Runs the program until two lines of its output have been read; nobody reads the rest. The pipe holds one page, less than
 * the run writes, which therefore finds out however quick it is. Returns its exit status. */
static int run_without_reader(const char *arguments) {
    int ends[2], err = temporary(), status;
    char byte;
    ck_assert(!pipe2(ends, O_CLOEXEC) && fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 0);
    pid_t child = start_program(arguments, ends[1], err);
    close(ends[1]);
    for (int lines = 0; lines < 2; lines += byte == '\n') ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    read_back(err, said, sizeof said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs the program with these arguments between two parts of a shell command. Returns its exit status. */
static int run_in_shell(const char *before, const char *arguments, const char *after) {
    char line[2048], code[16];
    snprintf(line, sizeof line, "{ %s %s/remat %s; echo $? >%s; } 2>%s %s", before, RM_BINARY_DIR, arguments,
             in_scratch("code"), in_scratch("said"), after);
    ck_assert_int_ge(system(line), 0);
    read_text(in_scratch("said"), said, sizeof said);
    return atoi(read_text(in_scratch("code"), code, sizeof code));
}

static const struct {
    const char *before, *flags, *after; /* %s: the scratch directory; `after` NULL: nobody reads the output */
    const char *reason, *without;
} reports[] = {
    {"", "--metrics=- --save=%s/st", NULL, "Broken pipe", "without its metrics"},
    {"", "--save=%s/st", NULL, "Broken pipe", "without it"},
    {"trap '' XFSZ; ulimit -f 8;", "--metrics=%s/m.jsonl", "| cat >/dev/null", "File too large", "without its metrics"},
    {"trap '' XFSZ; ulimit -f 1;", "--tensorboard=%s/board", "| cat >/dev/null", "File too large",
     "without TensorBoard's file"},
    {"trap '' XFSZ; ulimit -f 8;", "--dump-grads=%s/g", "| cat >/dev/null", "File too large", "without its gradients"},
    {"PATH=%s:$PATH;", "--plot=%1$s/a.svg --save=%1$s/st", "| cat >/dev/null", "it ended with status 4",
     "without its chart"},
};

START_TEST(failing_reports_do_not_end_a_run) {
    char before[512], flags[512], arguments[1024];
    make_file("gnuplot", "#!/bin/sh\nexit 4\n", 17);
    chmod(in_scratch("gnuplot"), 0755);
    snprintf(before, sizeof before, reports[_i].before, scratch());
    snprintf(flags, sizeof flags, reports[_i].flags, scratch());
    snprintf(arguments, sizeof arguments, "train --data=%s " RUN "--steps=100 %s", make_text("text", 3000), flags);
    int code = reports[_i].after ? run_in_shell(before, arguments, reports[_i].after) : run_without_reader(arguments);
    ck_assert_msg(code == 0, "exit %d: %.800s", code, said);
    ck_assert_msg(count(said, "; the run ") == 1 && count(said, reports[_i].without) == 1 &&
                      strstr(said, reports[_i].reason),
                  "%.800s", said);
    if (strstr(flags, "--save")) ck_assert_int_eq(access(in_scratch("st/step-00000100/state.json"), F_OK), 0);
}
END_TEST

/* Before the first step a failing report ends the run. */
START_TEST(first_line_of_metrics_must_be_written) {
    ck_refuses(1, "/dev/full", "train --data=%s " RUN "--steps=2 --metrics=/dev/full", make_text("text", 300));
}
END_TEST

/* A text is truncated during a run, and restored later: the run saves and ends, and resuming gives the same bits. */
static const char *const cut[] = {"text", "held"};

START_TEST(changed_data_end_a_run_after_a_save) {
    char line[1024], step[64];
    int out = temporary(), err = temporary(), status;
    const char *a = in_scratch("a.jsonl"), *b = in_scratch("b.jsonl"), *st = in_scratch("st");
    make_text("text", 3000), make_text("held", 60);
    snprintf(line, sizeof line, "train --data=%s --eval-data=%s --eval-every=1 " RUN "--steps=100 --metrics=%s",
             in_scratch("text"), in_scratch("held"), a);
    ck_runs("%s", line);
    snprintf(line, sizeof line,
             "train --data=%s --eval-data=%s --eval-every=1 " RUN "--steps=100000 --save=%s --metrics=%s",
             in_scratch("text"), in_scratch("held"), st, b);
    pid_t child = start_program(line, out, err);
    for (int i = 0; i < 100000 && lines_with(b, "\"event\":\"step\"") < 5; i++) usleep(1000);
    ck_assert_int_eq(truncate(in_scratch(cut[_i]), 10), 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    read_back(err, program_errors, sizeof program_errors);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s", program_errors);
    int steps = lines_with(b, "\"event\":\"step\"");
    snprintf(step, sizeof step, "step %d", steps);
    ck_says_all(program_errors, step);
    make_text("text", 3000), make_text("held", 60);
    if (steps >= 100) return; /* a busy machine */
    ck_runs("train --resume=%s --steps=100 --metrics=%s", st, b);
    ck_runs("report --require-identical %s %s", a, b);
    ck_assert_int_eq(lines_with(b, "\"event\":\"eval\""), 100);
}
END_TEST

/* With several ranks none can save in the middle of a step; the message names the last state. */
START_TEST(ranks_with_changed_data_name_the_last_state) {
    char line[1024];
    int out = temporary(), err = temporary(), status;
    const char *st = in_scratch("st");
    make_text("text", 3000);
    snprintf(line, sizeof line,
             "train --data=%s " RUN "--devices=cpu:2 --steps=1000000 --save=%s --save-every=5 --keep=1",
             in_scratch("text"), st);
    pid_t child = start_program(line, out, err);
    wait_for_state(st);
    ck_assert_int_eq(truncate(in_scratch("text"), 10), 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    read_back(err, program_errors, sizeof program_errors);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s", program_errors);
    const char *named = strstr(program_errors, in_scratch("st/step-"));
    ck_assert_msg(named, "%s", program_errors);
    snprintf(line, sizeof line, "test -f %.*s/state.json", (int)strlen(in_scratch("st/step-00000005")), named);
    ck_assert_int_eq(system(line), 0);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("goes on");
    tcase_add_loop_test(tests, failing_reports_do_not_end_a_run, 0, (int)(sizeof reports / sizeof *reports));
    tcase_add_test(tests, first_line_of_metrics_must_be_written);
    tcase_add_loop_test(tests, changed_data_end_a_run_after_a_save, 0, (int)(sizeof cut / sizeof *cut));
    tcase_add_test(tests, ranks_with_changed_data_name_the_last_state);
    return run_suite("train/goes_on", tests);
}

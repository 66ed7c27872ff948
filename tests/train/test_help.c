/* test_help.c: `remat help`: the manual page formats without warnings and has every flag, and bash and zsh accept their
 * completions. */
#include "tests/train/train_test.h"

#include "train/flags/options_table.h"

static bool have(const char *program) {
    char command[100];
    snprintf(command, sizeof command, "command -v %s >/dev/null", program);
    return !system(command);
}

/* The output of a shell command, on both streams. */
static const char *printed(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *printed(const char *format, ...) {
    static char text[1 << 16], command[1 << 12];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    text[fread(text, 1, sizeof text - 1, pipe)] = 0;
    pclose(pipe);
    return text;
}

static const char *written(const char *flag) {
    const char *path = in_scratch("help");
    ck_runs("help %s", flag);
    FILE *file = fopen(path, "w");
    ck_assert(file && fputs(program_output, file) >= 0 && !fclose(file));
    return path;
}

START_TEST(manual_page_has_every_flag) {
    const char *path = written("--man");
    for (int i = 0; i < rm_n_options; i++) {
        char roff[100] = "\n.B ", *at = roff + strlen(roff);
        for (const char *c = "--"; *c; c++) at += sprintf(at, "\\-");
        for (const char *c = rm_option_table[i].name; *c; c++) at += sprintf(at, *c == '-' ? "\\-" : "%c", *c);
        ck_says_all(program_output, roff);
    }
    ck_assert_ptr_nonnull(strstr(program_output, "|unet\n")); /* the longest list of values is whole */
    if (!have("groff")) return;
    ck_assert_str_eq(printed("groff -man -Tutf8 -ww %s 2>&1 >/dev/null", path), "");
    ck_assert_ptr_nonnull(strstr(printed("groff -man -Tascii -P-cbou %s", path), "--checkpoint-segments=N"));
}
END_TEST

/* Optimizers, schedules, models and tasks are named by their tables, not by hand. */
START_TEST(help_names_the_rows_that_read_a_flag) {
    ck_runs("train --help");
    ck_says_all(program_output,
                "momentum; for sgd, rmsprop, lars [0]|denominator; not for sgd [|; for poly [2]|; for gpt2 [0]");
    ck_says_all(program_output, "learning rate [0.001; sgd 0.1, ");
}
END_TEST

/* A terminal of 70 columns gets no longer text; a pipe gets a line for each flag. */
START_TEST(help_fits_the_terminal) {
    static const char *const commands[] = {"train", "launch"};
    if (!have("script")) return;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        ck_assert_str_eq(printed("script -qc 'stty cols 70; %s %s --help' /dev/null | tr -d '\\r' | "
                                 "grep -E '^ {33}|^  --' | grep -vE '^  --[^ ]{30,}$' | grep -E '^.{71}'",
                                 RM_BINARY_DIR "/remat", commands[i]),
                         "");
    ck_runs("train --help");
    ck_says_all(program_output, "\n  --layers=N                     number of stacked layers; for seq2seq in the encoder and "
                                "in the decoder; not for cnn");
}
END_TEST

START_TEST(builders_have_their_arguments) {
    ck_runs("help --builders");
    ck_says_all(program_output, "remat_linear(x, w, [b])|remat_max_pool2d(x, window[2], [stride[2]], [padding[2]])|"
                                "remat_reshape(x, rank, dim[rank])");
}
END_TEST

static const char *completed(const char *path, const char *words) {
    return printed(
        "bash -c 'source %s; COMP_WORDS=(remat %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _remat 2>/dev/null; "
        "echo -n \"${COMPREPLY[*]}\"' 2>&1",
        path, words);
}

START_TEST(bash_completes_flags_and_values) {
    const char *path = written("--completion=bash");
    if (!have("bash")) return;
    ck_assert_str_eq(completed(path, "tr"), "train");
    ck_assert_str_eq(completed(path, "train --che"), "--checkpoint-segments= --checkpoint=");
    ck_assert_str_eq(completed(path, "train --no-f"), "--no-fold");
    ck_assert_str_eq(completed(path, "train --checkpoint = s"), "segments sqrt");
    ck_assert_str_eq(completed(path, "plan --optimizer ="), "sgd adam adamw rmsprop adagrad adadelta lars lamb");
    ck_assert_str_eq(completed(path, "eval --steps"), "");
    ck_assert_str_eq(completed(path, "launch --nn"), "--nnodes=");
    ck_assert_str_eq(completed(path, "train --data = x"), ""); /* then files: complete -o default */
}
END_TEST

START_TEST(zsh_reads_the_completions) {
    const char *path = written("--completion=zsh");
    ck_says_all(program_output, "'--checkpoint=[");
    if (have("zsh")) ck_assert_str_eq(printed("zsh -n %s 2>&1", path), "");
}
END_TEST

START_TEST(other_shells_are_refused) { ck_refuses(2, "--completion=bash", "help --completion=fish"); }
END_TEST

int main(void) {
    TCase *tests = tcase_create("help");
    tcase_add_test(tests, manual_page_has_every_flag);
    tcase_add_test(tests, help_names_the_rows_that_read_a_flag);
    tcase_add_test(tests, help_fits_the_terminal);
    tcase_add_test(tests, builders_have_their_arguments);
    tcase_add_test(tests, bash_completes_flags_and_values);
    tcase_add_test(tests, zsh_reads_the_completions);
    tcase_add_test(tests, other_shells_are_refused);
    return run_suite("help", tests);
}

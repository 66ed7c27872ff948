/* test_cli.c: the program from outside: what it prints, how it refuses, its exit statuses. */
#include "tests/train/train_test.h"

#include <sys/resource.h>
#include <sys/stat.h>

#define SMALL "--hidden=8 --layers=1 --seq-len=16 --batch=2 --threads=1 "

START_TEST(usage) {
    ck_runs("--version");
    ck_assert_ptr_nonnull(strstr(program_output, "remat 0."));
    ck_runs("--help");
    ck_assert_ptr_nonnull(strstr(program_output, "remat train"));
    ck_assert_int_eq(run_program(" "), 2);
    ck_refuses(2, "no command 'trian'", "trian");
    static const char *const commands[] = {"train", "plan", "eval", "sample", "info", "report"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        ck_runs("%s --help", commands[i]);
        ck_assert_ptr_nonnull(strstr(program_output, commands[i]));
    }
    ck_runs("info");
    ck_assert_ptr_nonnull(strstr(program_output, "threads"));
    ck_runs("info --json");
    ck_assert(program_output[0] == '{');
}
END_TEST

/* Every refusal is one sentence that says `part`. %1$s in the line is a directory. */
static const struct {
    int status;
    const char *part, *line;
} refusals[] = {
    {2, "--data=FILE", "train"},
    {1, "does not exist: check the path", "train --data=%1$s/nothing"},
    {1, "is a directory", "train --data=%1$s"},
    {2, "give a longer file or a smaller --seq-len", "train --data=%1$s/short"},
    {2, "fewer than --batch=64", "train --data=%1$s/text --seq-len=100 --batch=64"},
    {2, "did you mean --hidden", "train --hiden=3"},
    {2, "not a whole number", "train --hidden=12x --data=%1$s/text"},
    {2, "from 1 to", "train --layers=0 --data=%1$s/text"},
    {2, "from 1 to", "train --batch=-1 --data=%1$s/text"},
    {2, "from 1 to", "train --steps=999999999999999999999 --data=%1$s/text"},
    {2, "not a number", "train --lr=nan --data=%1$s/text"},
    {2, "--labels=FILE", "train --task=classify --data=%1$s/text"},
    {1, "not an IDX file", "train --task=classify --data=%1$s/text --labels=%1$s/text"},
    {2, "at least 21", "train --task=copy --seq-len=20"},
    {1, "no training state", "train --resume=%1$s"},
    {1, "does not exist", "train --data=%1$s/text " SMALL "--init=%1$s/nothing.safetensors"},
    {1, "not a safetensors file", "train --data=%1$s/text " SMALL "--init=%1$s/text"},
    {1, "--save", "train --data=%1$s/text " SMALL "--save=/proc/nowhere"},
    {1, "--metrics", "train --data=%1$s/text " SMALL "--metrics=/nowhere/m.jsonl"},
    {1, "make room", "train --data=%1$s/text " SMALL "--metrics=/dev/full"},
    {1, "cannot create", "train --data=%1$s/text " SMALL "--dump-grads=/nowhere/g.safetensors --steps=1"},
    {1, "make room", "train --data=%1$s/text " SMALL "--dump-grads=/dev/full --steps=1"},
    {2, "--eval-data=FILE", "train --data=%1$s/text " SMALL "--eval-every=2"},
    {1, "does not exist", "train --config=%1$s/nothing"},
    {2, "short:1", "train --config=%1$s/short"},
    {2, "needs --data=FILE", "plan --task=classify"},
    {2, "--resume=DIR", "eval --data=%1$s/text " SMALL},
    {2, "--resume=DIR", "sample"},
    {2, "only a model of --task=lm", "sample --task=copy"},
    {2, "give the metrics", "report"},
    {1, "cannot open", "report %1$s/nothing"},
    {1, "not JSON", "report %1$s/text"},
    {1, "holds no steps", "report %1$s/nothing.jsonl"},
    {2, "not a flag of `remat info`", "info --hidden=3"},
};
enum { REFUSALS = sizeof refusals / sizeof refusals[0] };

START_TEST(refusals_are_one_sentence) {
    char line[2048];
    make_text("text", 4096);
    make_file("short", "a few bytes", 11);
    make_file("nothing.jsonl", "{\"event\":\"plan\"}\n", 17);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(line, sizeof line, refusals[_i].line, scratch());
#pragma GCC diagnostic pop
    ck_refuses(refusals[_i].status, refusals[_i].part, "%s", line);
}
END_TEST

/* A dump that does not fit leaves the earlier one as it was. */
START_TEST(a_full_disk_keeps_the_earlier_gradients) {
    const char *text = make_text("text", 4096), *dump = in_scratch("g.safetensors");
    struct stat before, after;
    ck_runs("train --data=%s " SMALL "--steps=1 --dump-grads=%s", text, dump);
    ck_assert_int_eq(stat(dump, &before), 0);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){2000, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    int status = run_program("train --data=%s " SMALL "--steps=1 --dump-grads=%s", text, dump);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_int_eq(status, 1);
    ck_assert_msg(strstr(program_errors, "make room"), "%s", program_errors);
    ck_assert_int_eq(stat(dump, &after), 0);
    ck_assert(before.st_ino == after.st_ino && before.st_size == after.st_size && after.st_size > 2000);
}
END_TEST

/* A run's end on a full disk: what was saved before is still there and can be resumed. */
START_TEST(a_full_disk_ends_a_run_cleanly) {
    const char *text = make_text("text", 4096), *st = in_scratch("st");
    ck_runs("train --data=%s " SMALL "--steps=3 --save=%s", text, st);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){2000, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    int status = run_program("train --resume=%s --save=%s --steps=5", st, st);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_int_eq(status, 1);
    ck_assert_msg(strstr(program_errors, "step 5 was not saved"), "%s", program_errors);
    ck_runs("train --resume=%s --save=%s --steps=5", st, st);
    ck_assert_ptr_nonnull(strstr(program_output, "step 3, epoch 0"));
}
END_TEST

START_TEST(a_run_and_its_plan_agree) {
    const char *text = make_text("text", 40000), *metrics = in_scratch("m.jsonl");
    char want[64], found[64];
    for (int n = 1; n <= 9; n += 4) {
        ck_runs("train --data=%s " SMALL "--seq-len=300 --tile=16 --steps=3 --checkpoint-segments=%d --metrics=%s",
                text, n, metrics);
        FILE *file = fopen(metrics, "r");
        ck_assert_ptr_nonnull(fgets(program_errors, sizeof program_errors, file));
        fclose(file);
        ck_assert_int_eq(sscanf(strstr(program_errors, "planned_peak_bytes"), "planned_peak_bytes\":%63[0-9]", want),
                         1);
        ck_runs("plan --data=%s " SMALL "--seq-len=300 --tile=16 --checkpoint-segments=%d --json", text, n);
        ck_assert_int_eq(sscanf(strstr(program_output, "planned_peak_bytes"), "planned_peak_bytes\": %63[0-9]", found),
                         1);
        ck_assert_str_eq(want, found);
    }
}
END_TEST

/* none, segments and sqrt, with a short last batch of evaluation, and the report's verdict. */
START_TEST(plans_have_the_same_losses) {
    static const char *const plans[] = {"--checkpoint=none", "--checkpoint-segments=3", "--checkpoint=sqrt"};
    const char *text = make_text("text", 9000);
    for (int i = 0; i < 3; i++)
        ck_runs("train --data=%s --eval-data=%s --eval-every=2 %s " SMALL
                "--seq-len=200 --tile=16 --steps=4 --dropout=0.1 "
                "--layers=2 --batch=4 --metrics=%s/%d.jsonl",
                text, text, plans[i], scratch(), i);
    ck_assert_ptr_nonnull(strstr(program_output, "bits per byte"));
    ck_runs("report %1$s/0.jsonl %1$s/1.jsonl %1$s/2.jsonl --require-identical", scratch());
    ck_assert_msg(strstr(program_output, "all 3 runs are identical"), "%s", program_output);
    ck_runs("train --data=%s " SMALL "--seq-len=200 --steps=4 --seed=1 --metrics=%s/3.jsonl", text, scratch());
    ck_assert_int_eq(run_program("report %1$s/0.jsonl %1$s/3.jsonl --require-identical", scratch()), 1);
    ck_assert_msg(strstr(program_output, "differ first at step 1"), "%s", program_output);
    ck_runs("report %1$s/0.jsonl %1$s/3.jsonl", scratch());
}
END_TEST

static double number_after(const char *text, const char *label) {
    const char *at = strstr(text, label);
    ck_assert_msg(at, "no %s in %s", label, text);
    return atof(at + strlen(label));
}

/* Each sample counts once, whatever the batch: 44 samples in batches of 4, 5 (a short one) and 100 (more than there are). */
START_TEST(evaluation_is_exact) {
    const char *text = make_text("text", 9000);
    ck_runs("train --data=%s " SMALL "--seq-len=200 --steps=4 --save=%s", text, in_scratch("st"));
    double first = 0;
    for (int batch = 4; batch <= 100; batch += batch == 4 ? 1 : 95) {
        ck_runs("eval --data=%s --resume=%s --batch=%d", text, in_scratch("st"), batch);
        ck_assert_ptr_nonnull(strstr(program_output, "(44 samples)"));
        double loss = number_after(program_output, "loss ");
        if (batch == 4) first = loss;
        ck_assert_msg(!(loss - first > 1e-6 || first - loss > 1e-6) && loss > 0, "batch %d: %.9g, not %.9g", batch,
                      loss, first);
    }
    ck_runs("eval --data=%s --init=%s/step-00000004/model.safetensors " SMALL "--seq-len=200", text, in_scratch("st"));
    ck_assert(number_after(program_output, "loss ") - first < 1e-6);
}
END_TEST

START_TEST(text_is_written) {
    static char first[sizeof program_output];
    const char *text = make_text("text", 9000);
    ck_runs("train --data=%s " SMALL "--steps=4 --save=%s", text, in_scratch("st"));
    ck_runs("sample --resume=%s --length=64 --prompt=the --seed=5", in_scratch("st"));
    ck_assert(!strncmp(program_output, "the", 3));
    memcpy(first, program_output, sizeof first);
    ck_runs("sample --resume=%s --length=64 --prompt=the --seed=5", in_scratch("st"));
    ck_assert(!memcmp(first, program_output, 60)); /* the seed decides */
    ck_runs("sample --resume=%s --length=64 --prompt=the --seed=6", in_scratch("st"));
    ck_assert(memcmp(first, program_output, 60));
    ck_runs("sample --resume=%s --length=8 --temperature=0", in_scratch("st"));
}
END_TEST

/* The gradients of step 1 do not disturb the run that dumps them. */
START_TEST(gradients_can_be_dumped) {
    const char *text = make_text("text", 9000);
    ck_runs("train --data=%s " SMALL "--steps=3 --clip-grad-norm=0.01 --metrics=%s", text, in_scratch("a.jsonl"));
    ck_runs("train --data=%s " SMALL "--steps=3 --clip-grad-norm=0.01 --metrics=%s --dump-grads=%s", text,
            in_scratch("b.jsonl"), in_scratch("g.safetensors"));
    ck_runs("report %1$s/a.jsonl %1$s/b.jsonl --require-identical", scratch());
    ck_refuses(2, "does not have", "train --data=%s " SMALL "--model=gru --init=%s --layers=1 --steps=1", text,
               make_file("x.safetensors",
                         "\x40\0\0\0\0\0\0\0{\"other\":{\"dtype\":\"F32\",\"shape\":[1],"
                         "\"data_offsets\":[0,4]}}       \0\0\0\0",
                         76));
}
END_TEST

START_TEST(every_task_and_model_trains) {
    static const char *const lines[] = {
        "--task=adding --seq-len=20 --model=lstm --eval-every=2",
        "--task=adding --seq-len=2 --model=rnn",
        "--task=copy --seq-len=21 --model=gru --optimizer=adamw",
        "--task=copy --seq-len=40 --model=rnn --optimizer=sgd",
        "--task=copy --epochs=2 --samples=9 --eval-every=3",
        "--task=copy --device=null",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_runs("train --hidden=8 --layers=2 --batch=3 --threads=1 %s %s", lines[i],
                strstr(lines[i], "--epochs") ? "" : "--steps=4");
}
END_TEST

START_TEST(diverging_stops_before_saving) {
    ck_refuses(1, "--lr smaller",
               "train --task=adding --seq-len=10 --hidden=8 --threads=1 --optimizer=sgd --lr=1e6 "
               "--steps=60 --save-every=1 --save=%s",
               in_scratch("st"));
    int status = run_program("train --resume=%s --steps=1", in_scratch("st")); /* what it saved is finite */
    ck_assert_msg(status == 0, "exit %d: %s", status, program_errors);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("cli");
    tcase_add_test(tests, usage);
    tcase_add_loop_test(tests, refusals_are_one_sentence, 0, REFUSALS);
    tcase_add_test(tests, a_full_disk_ends_a_run_cleanly);
    tcase_add_test(tests, a_full_disk_keeps_the_earlier_gradients);
    tcase_add_test(tests, a_run_and_its_plan_agree);
    tcase_add_test(tests, plans_have_the_same_losses);
    tcase_add_test(tests, evaluation_is_exact);
    tcase_add_test(tests, text_is_written);
    tcase_add_test(tests, gradients_can_be_dumped);
    tcase_add_test(tests, every_task_and_model_trains);
    tcase_add_test(tests, diverging_stops_before_saving);
    return run_suite("train/cli", tests);
}

/* test_watch.c: reactions to evaluations: --lr-schedule=plateau reduces the rate when PyTorch's ReduceLROnPlateau does,
 * --early-stop ends a run, and both continue from a training state as if uninterrupted. Also selects and resumes the
 * other new schedules and optimizers. */
#include "train/run/watch.h"
#include "train/run/setup.h"
#include "train/state/state.h"
#include "dist/large_batch/learning_rate.h"

#include <math.h>
#include <time.h>

#include "tests/train/train_test.h"

/* After step `step`, with this loss and, above -1, this accuracy. */
static bool see_one(rm_watch *w, const rm_options *o, int64_t step, double loss, double accuracy, bool decays) {
    rm_eval_event event = {.step = step, .has = {[RM_LOSS] = true, [RM_ACCURACY] = accuracy > -1}};
    event.score[RM_LOSS] = loss;
    event.score[RM_ACCURACY] = accuracy;
    return rm_watch_see(w, o, &event, decays);
}

static rm_options watched(int64_t patience, double threshold, int64_t early_stop) {
    return (rm_options){.keep_best = "none",
                        .rate.schedule = RM_LR_PLATEAU,
                        .patience = patience,
                        .threshold = threshold,
                        .early_stop = early_stop};
}

/* torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1, threshold=1e-3, min_lr=0.01) */
START_TEST(plateau_matches_pytorch) {
    static const double loss[] = {3,     2.9,    2.8999, 2.91, 2.5,  2.5,  2.4999, 2.6,  2.4,  2.39,
                                  2.395, 2.3999, 2.41,   NAN,  2.45, 2.38, 2.38,   2.38, 2.38, 2.38};
    static const double rate[] = {0.3,
                                  0.3,
                                  0.3,
                                  0.089999999999999997,
                                  0.089999999999999997,
                                  0.089999999999999997,
                                  0.027,
                                  0.027,
                                  0.027,
                                  0.027,
                                  0.027,
                                  0.01,
                                  0.01,
                                  0.01,
                                  0.01,
                                  0.01,
                                  0.01,
                                  0.01,
                                  0.01,
                                  0.01};
    rm_options o = watched(1, 1e-3, 0);
    rm_watch w = {0};
    rm_learning_rate c = {.schedule = RM_LR_PLATEAU, .lr = 0.3, .gamma = 0.3, .end_lr = 0.01, .steps = 99};
    for (size_t i = 0; i < sizeof loss / sizeof *loss; i++) {
        see_one(&w, &o, i + 1, loss[i], -1, true);
        c.reductions = w.reductions;
        double got = rm_learning_rate_at(&c, (int64_t)i + 1);
        ck_assert_msg(fabs(got - rate[i]) <= 1e-15, "evaluation %zu: %.17g, not %.17g", i, got, rate[i]);
    }
}
END_TEST

/* torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=1, threshold=0.01) */
START_TEST(plateau_of_accuracy_matches_pytorch) {
    static const double accuracy[] = {0.5, 0.504, 0.506, 0.506, 0.5, 0.52, 0.52, 0.51, 0.9, 0.9};
    static const double rate[] = {1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25};
    rm_options o = watched(1, 0.01, 0);
    rm_watch w = {0};
    o.metric = RM_ACCURACY;
    for (size_t i = 0; i < sizeof accuracy / sizeof *accuracy; i++) {
        see_one(&w, &o, (int64_t)i + 1, 1, accuracy[i], true);
        rm_learning_rate c = {
            .schedule = RM_LR_PLATEAU, .lr = 1, .gamma = 0.5, .steps = 99, .reductions = w.reductions};
        ck_assert_double_eq(rm_learning_rate_at(&c, 1), rate[i]);
    }
}
END_TEST

START_TEST(warm_up_does_not_count_as_plateau) {
    rm_options o = watched(0, 0, 0);
    rm_watch w = {0};
    for (int i = 1; i < 6; i++) ck_assert(!see_one(&w, &o, i, 1, -1, false));
    ck_assert(!see_one(&w, &o, 6, 1, -1, true)); /* the first counting evaluation is the best */
    ck_assert(see_one(&w, &o, 7, 1, -1, true) && w.reductions == 1);
}
END_TEST

START_TEST(early_stop_counts_evaluations_without_improvement) {
    static const double loss[] = {2, 1.5, 1.5, 1.6, 1.4999999, NAN, 1.5, 2};
    rm_options o = watched(9, 0, 3);
    rm_watch w = {0};
    for (int i = 0; i < 8; i++) {
        ck_assert(!rm_watch_ends(&w, &o));
        see_one(&w, &o, i + 1, loss[i], -1, true);
    }
    ck_assert(rm_watch_ends(&w, &o));
    o.early_stop = 4;
    ck_assert(!rm_watch_ends(&w, &o));
}
END_TEST

static rm_watch see(const rm_options *o, const double *loss, const double *accuracy, int n) {
    rm_watch w = {0};
    for (int i = 0; i < n; i++) { see_one(&w, o, 10 * (i + 1), loss[i], accuracy[i], true); }
    return w;
}

/* The first of equal evaluations is the best; NaN never is. */
START_TEST(best_evaluation_is_known_by_its_step) {
    static const double loss[] = {NAN, 2, 1.5, 1.5, NAN, 1.6}, accuracy[] = {-1, 0, 0.4, 0.6, 0.6, 0.5};
    rm_options o = watched(9, 0, 0);
    rm_watch w = see(&o, loss, accuracy, 6);
    ck_assert_int_eq(rm_watch_best_step(&w, &o), 0);
    o.keep_best = "loss";
    ck_assert_int_eq(rm_watch_best_step(&w, &o), 30);
    w = see(&o, loss, accuracy, 1);
    ck_assert_int_eq(rm_watch_best_step(&w, &o), 0);
    o.keep_best = "accuracy";
    w = see(&o, loss, accuracy, 6);
    ck_assert_int_eq(rm_watch_best_step(&w, &o), 40);
    ck_assert(w.by[RM_LOSS].best == 1.5 && w.by[RM_LOSS].step == 30 && w.by[RM_ACCURACY].best == 0.6);
}
END_TEST

/* ---- On disk ---- */

static remat_status parse(const char *watch, rm_state_point *point) {
    char text[512];
    int n = snprintf(text, sizeof text,
                     "{\"format\": 2, \"step\": 3, \"epoch\": 0, \"consumed\": 4, \"samples\": 9, \"last_lr\": 0.5, "
                     "\"world_size\": 1, \"zero\": 0, \"shards\": 0, \"flags\": {}%s}",
                     watch);
    rm_options o;
    ck_ok(rm_options_defaults(&o));
    remat_status status = rm_state_parse(text, (size_t)n, "state.json", RM_TRAIN, &o, point);
    rm_options_free(&o);
    return status;
}

START_TEST(saved_counts_are_read) {
    rm_state_point p;
    ck_ok(parse("", &p)); /* a run without evaluations, or of an older version */
    ck_assert(!p.watch.seen);
    ck_ok(parse(", \"watch\": {\"since\": 2, \"plateau_since\": 1, \"reductions\": 3, \"best\": 0.1}", &p));
    ck_assert(p.watch.seen && p.watch.since == 2 && p.watch.plateau_since == 1 && p.watch.reductions == 3);
    ck_assert(p.watch.by[RM_LOSS].best == 0.1 && isnan(p.watch.plateau_best));
    ck_assert(p.watch.by[RM_LOSS].step == 0 && isnan(p.watch.by[RM_ACCURACY].best) &&
              p.watch.by[RM_ACCURACY].step == 0);
    ck_ok(parse(", \"watch\": {\"since\": 2, \"plateau_since\": 1, \"reductions\": 3, \"best\": 0.1, \"best_step\": 7, "
                "\"best_accuracy\": 0.5, \"best_accuracy_step\": 9}",
                &p));
    ck_assert(p.watch.by[RM_LOSS].step == 7 && p.watch.by[RM_ACCURACY].best == 0.5 &&
              p.watch.by[RM_ACCURACY].step == 9);
}
END_TEST

static const char *const damaged[] = {
    ", \"watch\": 3",
    ", \"watch\": {\"since\": 2}",
    ", \"watch\": {\"since\": -1, \"plateau_since\": 1, \"reductions\": 3}",
    ", \"watch\": {\"since\": 1, \"plateau_since\": 1, \"reductions\": 3, \"best\": \"none\"}",
    ", \"watch\": {\"since\": 1, \"plateau_since\": 1, \"reductions\": 3, \"best_step\": -1}",
    ", \"watch\": {\"since\": 1, \"plateau_since\": 1, \"reductions\": 3, \"best_accuracy\": \"high\"}",
    ", \"evaluation_due\": 1",
};
START_TEST(invalid_counts_are_refused) {
    rm_state_point p;
    ck_fails(parse(damaged[_i], &p), REMAT_IO, "evaluations");
}
END_TEST

/* ---- The program ---- */

#define RUN "--hidden=8 --layers=1 --batch=4 --seq-len=16 --threads=1 --tile=8 "

static void expect_identical(void) {
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
}

/* A run that stops between evaluations, with an additional final evaluation, and resumes: the same losses, with rates
 * that depend on evaluations. */
START_TEST(plateau_is_resumed) {
    const char *text = make_text("text", 3000);
#define PLATEAU RUN "--eval-every=2 --lr=0.5 --lr-schedule=plateau --patience=0 --gamma=0.5"
    ck_runs("train --data=%s --eval-data=%s " PLATEAU " --steps=40 --metrics=%s", text, text, in_scratch("a.jsonl"));
    ck_says_all(program_output, "learning rate: reduced");
    ck_runs("train --data=%s --eval-data=%s " PLATEAU " --steps=17 --save=%s --metrics=%s", text, text,
            in_scratch("st"), in_scratch("b.jsonl"));
    ck_runs("train --resume=%s --steps=25 --metrics=%s", in_scratch("st"), in_scratch("b.jsonl"));
    ck_runs("train --resume=%s --steps=40 --metrics=%s", in_scratch("st"), in_scratch("b.jsonl"));
    expect_identical();
}
END_TEST

/* With a learning rate of 0 the first evaluation stays the best. */
START_TEST(early_stop_saves_the_run) {
    const char *text = make_text("text", 3000);
    ck_runs("train --data=%s --eval-data=%s " RUN "--eval-every=3 --lr=0 --early-stop=2 --steps=1000 --save=%s", text,
            text, in_scratch("st"));
    ck_says_all(program_output, "early stop|step 9|2 evaluations");
    ck_says_all(program_output, "done|step 9");
    ck_assert_int_eq(access(in_scratch("st/step-00000009/state.json"), F_OK), 0);
    ck_runs("train --resume=%s", in_scratch("st"));
    ck_says_all(program_output, "early stop|step 9");
    ck_runs("train --resume=%s --early-stop=3", in_scratch("st"));
    ck_says_all(program_output, "done|step 12");
}
END_TEST

/* Accuracy stands still at a learning rate of 0; perplexity is not among what a task with generated numbers is judged by. */
START_TEST(early_stop_judges_by_metric) {
    ck_runs("train --task=s5 --samples=40 --hidden=8 --layers=1 --batch=4 --threads=1 --eval-every=2 --lr=0 "
            "--early-stop=2 --metric=accuracy --keep-best=top5_accuracy --steps=100 --save=%s",
            in_scratch("st"));
    ck_says_all(program_output, "early stop|step 6|better accuracy");
    ck_says_all(program_output, "best evaluation|step 2");
    ck_refuses(2, "--metric=label_error_rate|s5|accuracy",
               "train --task=s5 --eval-every=2 --early-stop=2 --metric=label_error_rate");
}
END_TEST

/* The final evaluation of a run that is resumed later does not count, because the uninterrupted run would not have
 * it. */
START_TEST(interruption_does_not_change_early_stop) {
    const char *text = make_text("text", 3000), *st = in_scratch("st");
    ck_runs("train --data=%s --eval-data=%s " RUN "--eval-every=3 --lr=0 --early-stop=2 --steps=4 --save=%s", text,
            text, st);
    ck_runs("train --resume=%s --steps=5", st);
    ck_runs("train --resume=%s --steps=1000", st);
    ck_says_all(program_output, "early stop|step 9|2 evaluations");
}
END_TEST

/* ---- Signals ---- */

/* The evaluations in a metrics file, one per line. */
static void read_evaluations(const char *path, char *out, size_t bytes) {
    static char line[4096];
    *out = 0;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        char *event = strstr(line, "\"event\":\"eval\""), *end = strstr(line, ",\"time\"");
        if (!event || !end) continue;
        *end = 0;
        ck_assert_uint_lt(strlen(out) + strlen(event) + 2, bytes);
        strcat(strcat(out, event), "\n");
    }
    fclose(file);
}

static int count_lines(const char *path, const char *with) {
    static char line[4096];
    int n = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) n += strstr(line, with) != NULL;
    if (file) fclose(file);
    return n;
}

/* Waits until a process has used this much processor time, or has ended. */
static void let_compute(pid_t process, int ms) {
    struct timespec begin, now;
    clockid_t clock;
    if (clock_getcpuclockid(process, &clock) || clock_gettime(clock, &begin)) return;
    for (int i = 0; i < 20000 && !clock_gettime(clock, &now); i++) {
        if (1e3 * (double)(now.tv_sec - begin.tv_sec) + 1e-6 * (double)(now.tv_nsec - begin.tv_nsec) >= ms) return;
        usleep(1000);
    }
}

/* Sends SIGTERM when the metrics file has this many lines with a word, and the run has then used this much processor
 * time. On a busy machine the run may have ended before. */
static void stop_when(const char *line, const char *metrics, const char *word, int lines, int ms) {
    int null = open("/dev/null", O_WRONLY), status = 0;
    pid_t child = start_program(line, null, null);
    close(null);
    for (int i = 0; i < 100000 && count_lines(metrics, word) < lines; i++) usleep(1000);
    wait_until_handled(child, SIGTERM); /* a file of an earlier run may have as many lines */
    let_compute(child, ms);
    kill(child, SIGTERM);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 128 + SIGTERM || !WEXITSTATUS(status)));
}

/* Stopped between steps that each have an evaluation: all evaluations are present once, with the same bits. */
START_TEST(stopped_runs_miss_no_evaluation) {
    static char whole[1 << 14], parts[1 << 14];
    const char *text = make_text("text", 3000), *few = make_text("few", 70), *a = in_scratch("a.jsonl"),
               *b = in_scratch("b.jsonl");
    char line[1000];
#define EVERY RUN "--eval-every=1 --seq-len=64 --hidden=96"
    ck_runs("train --data=%s --eval-data=%s " EVERY " --steps=30 --metrics=%s", text, few, a);
    snprintf(line, sizeof line, "train --data=%s --eval-data=%s " EVERY " --steps=30 --save=%s --metrics=%s", text, few,
             in_scratch("st"), b);
    stop_when(line, b, "\"step_ms\"", 2, 0);
    snprintf(line, sizeof line, "train --resume=%s --metrics=%s", in_scratch("st"), b);
    for (int i = 0; i < 3; i++) stop_when(line, b, "\"step_ms\"", 6 + 5 * i, 0);
    ck_runs("%s", line);
    read_evaluations(a, whole, sizeof whole);
    read_evaluations(b, parts, sizeof parts);
    ck_assert_msg(!strcmp(whole, parts), "not the same evaluations");
    ck_assert_int_eq(count_lines(a, "\"eval\""), 30);
    expect_identical();
}
END_TEST

/* Stopped in its last step, before the final evaluation: the resumed run makes that evaluation, and a further resume
 * does not repeat it. */
START_TEST(stopped_runs_miss_no_final_evaluation) {
    static char whole[1 << 12], parts[1 << 12];
    const char *text = make_text("text", 100000), *a = in_scratch("a.jsonl"), *b = in_scratch("b.jsonl");
    char line[1000];
#define LONG "--hidden=32 --layers=1 --batch=1 --seq-len=90000 --threads=1 --steps=1 --calibration=off"
    ck_runs("train --data=%s --eval-data=%s " LONG " --metrics=%s", text, text, a);
    snprintf(line, sizeof line, "train --data=%s --eval-data=%s " LONG " --save=%s --metrics=%s", text, text,
             in_scratch("st"), b);
    stop_when(line, b, "\"plan\"", 1,
              60); /* in between, a signal ends the run before its step, which takes far longer */
    ck_assert_int_eq(access(in_scratch("st/step-00000001/state.json"), F_OK), 0);
    for (int i = 0; i < 2; i++) ck_runs("train --resume=%s --metrics=%s", in_scratch("st"), b);
    read_evaluations(a, whole, sizeof whole);
    read_evaluations(b, parts, sizeof parts);
    ck_assert_msg(!strcmp(whole, parts), "not the same evaluations");
    ck_assert_int_eq(count_lines(b, "\"eval\""), 1);
    ck_assert_int_ne(access(in_scratch("st/step-00000001/.tmp-state.json"), F_OK), 0);
}
END_TEST

/* Random labels: losses and accuracies go up and down. */
static const char *make_images(void) {
    static char data[600];
    uint8_t images[16 + 40 * 9] = {0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 3, 0, 0, 0, 3},
                             labels[8 + 40] = {0, 0, 8, 1, 0, 0, 0, 40};
    for (int i = 0; i < 40 * 9; i++) images[16 + i] = (uint8_t)(i * i * 37 / 5);
    for (int i = 0; i < 40; i++) labels[8 + i] = (uint8_t)(i * i * 7 / 3 % 4);
    const char *x = make_file("images", images, sizeof images), *y = make_file("labels", labels, sizeof labels);
    snprintf(data, sizeof data, "--task=classify --data=%s --labels=%s --eval-data=%s --eval-labels=%s", x, y, x, y);
    return data;
}

/* The step of the best evaluation in the program's output, from lines "eval 6 loss ...". */
static int best_printed(const char *what, double *value) {
    int best = 0;
    const char *at = program_output;
    while ((at = strstr(at, "\neval "))) {
        int step = atoi(at += 6);
        double now = strtod(strstr(at, what) + strlen(what), NULL);
        bool better = *what == 'a' ? now > *value : now < *value;
        if (!best || better) *value = now, best = step;
    }
    return best;
}

static void expect_link(const char *directory, int step) {
    char link[300], to[64] = "", name[64];
    snprintf(link, sizeof link, "%s/best", directory);
    snprintf(name, sizeof name, "step-%08d", step);
    ck_assert_int_gt(readlink(link, to, sizeof to - 1), 0);
    ck_assert_str_eq(to, name);
}

static int count_states(const char *directory) {
    char pattern[300];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/step-*", directory);
    glob(pattern, 0, NULL, &found);
    int count = (int)found.gl_pathc;
    globfree(&found);
    return count;
}

/* The best state survives --keep=1, `remat eval` confirms its loss, and a run that was interrupted twice has the same
 * one. */
START_TEST(best_state_is_kept) {
    static const char *const by[] = {"loss", "accuracy"};
    char run[1000];
    const char *whole = in_scratch("a"), *parts = in_scratch("b"), *data = make_images();
    snprintf(run, sizeof run,
             "%s --hidden=8 --layers=1 --batch=4 --threads=1 --lr=0.15 --eval-every=2 --keep=1 --save-every=3 "
             "--keep-best=%s",
             data, by[_i]);
    ck_runs("train %s --steps=30 --log-every=100 --save=%s", run, whole);
    double value = 0, again = 0;
    char said[64];
    int best = best_printed(by[_i], &value);
    ck_assert_msg(best && best < 30, "a run whose last evaluation is the best shows nothing: %s", program_output);
    snprintf(said, sizeof said, "best evaluation|step %d", best);
    ck_says_all(program_output, said);
    expect_link(whole, best);
    ck_assert_int_eq(count_states(whole), 2);
    const char *labels = strstr(data, "--data=");
    ck_runs("eval --resume=%s/best %.*s", whole, (int)(strstr(labels, " --eval") - labels), labels);
    again = strtod(strstr(program_output, by[_i]) + strlen(by[_i]), NULL);
    ck_assert_msg(again == value, "%s %.9g, not %.9g", by[_i], again, value);

    ck_runs("train %s --steps=7 --save=%s", run, parts);
    ck_runs("train --resume=%s --steps=25", parts);
    ck_runs("train --resume=%s --steps=30", parts);
    expect_link(parts, best);
    char command[600];
    snprintf(command, sizeof command, "cmp %s/best/model.safetensors %s/best/model.safetensors", whole, parts);
    ck_assert_int_eq(system(command), 0);
    snprintf(command, sizeof command, "ln -sfn step-%08d %s/best", 30,
             parts); /* as if killed before the link was changed */
    ck_assert_int_eq(system(command), 0);
    ck_runs("train --resume=%s", parts);
    expect_link(parts, best);
    ck_says_all(program_output, said);
}
END_TEST

/* The program does not refer to DIR/best if the best state came before --keep-best, or is in another directory. */
START_TEST(missing_best_state_is_not_named) {
    const char *st = in_scratch("st"), *data = make_images();
    ck_runs("train %s --hidden=8 --layers=1 --threads=1 --lr=0 --eval-every=1 --steps=2 --save-every=2 --save=%s", data,
            st);
    ck_runs("train --resume=%s --keep-best=loss --steps=4", st);
    ck_says_all(program_output, "step 1|state");
    ck_assert(!rm_path_exists(in_scratch("st/best")));
}
END_TEST

static void shell(const char *format, const char *a) {
    char command[1000];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(command, sizeof command, format, a);
#pragma GCC diagnostic pop
    ck_assert_msg(system(command) == 0, "%s", command);
}

/* DIR/best is replaced only if it is an earlier run's link. Anything else stays, and is reported before the first
 * step. */
static const struct {
    const char *make, *intact; /* %1$s: the directory of --save */
} others[] = {
    {"echo mine >%1$s/best", "grep -q mine %1$s/best"},
    {"mkdir %1$s/best; echo mine >%1$s/best/notes", "grep -q mine %1$s/best/notes && ! test -e %1$s/best-copy-1"},
    {"mkdir %1$s/best", "test -d %1$s/best && ! test -L %1$s/best"},
    {"ln -s ../images %1$s/best", "test $(readlink %1$s/best) = ../images"},
    {"ln -s nowhere %1$s/best", "test $(readlink %1$s/best) = nowhere"},
    {"ln -s step-00000001/.. %1$s/best", "test $(readlink %1$s/best) = step-00000001/.."},
};

START_TEST(best_state_replaces_only_its_own_link) {
    const char *st = in_scratch("st"), *data = make_images();
    shell("mkdir %1$s", st);
    shell(others[_i].make, st);
    ck_refuses(2, "st/best|link|training state|--keep-best",
               "train %s --hidden=8 --layers=1 --threads=1 --eval-every=1 --steps=2 --keep-best=loss --save=%s", data,
               st);
    ck_assert_msg(!strstr(program_output, "step "), "a step was made: %s", program_output);
    shell(others[_i].intact, st);
    ck_runs("train %s --hidden=8 --layers=1 --threads=1 --eval-every=1 --steps=2 --save=%s", data, st);
    shell(others[_i].intact, st);
}
END_TEST

/* `cp -rL` turns the link into a folder. */
START_TEST(copied_best_state_is_renamed_with_a_note) {
    const char *st = in_scratch("st"), *data = make_images();
    ck_runs("train %s --hidden=8 --layers=1 --threads=1 --lr=0 --eval-every=1 --steps=2 --keep-best=loss --save=%s",
            data, st);
    shell("cd %1$s && mv best b && cp -rL b best && rm b", st);
    ck_runs("train --resume=%s --steps=3", st);
    ck_assert_msg(strstr(program_errors, "st/best is a copy of a state: renamed to ") &&
                      strstr(program_errors, "st/best-copy-1\n"),
                  "%s", program_errors);
    expect_link(st, 1);
    shell("test -f %1$s/best-copy-1/state.json", st);
}
END_TEST

START_TEST(keep_best_needs_evaluations) {
    ck_refuses(2, "--keep-best|--eval-every=0", "train --task=copy --keep-best=loss --save=%s", in_scratch("st"));
    ck_refuses(2, "--keep-best|--save", "train --task=copy --keep-best=loss --eval-every=2");
    ck_refuses(2, "--keep-best=accuracy|--task=copy|loss",
               "train --task=copy --keep-best=accuracy --eval-every=2 "
               "--save=%s",
               in_scratch("st"));
}
END_TEST

/* All ranks see the same losses. */
START_TEST(ranks_stop_early_together) {
    ck_runs("train --task=adding --seq-len=10 --samples=400 " RUN
            "--devices=cpu:2 --eval-every=2 --lr=0 --early-stop=1 --steps=100");
    ck_says_all(program_output, "done|step 4");
}
END_TEST

static const char *const ways[] = {
    "--optimizer=rmsprop --momentum=0.5 --alpha=0.9",
    "--optimizer=adagrad --clip-grad-value=0.001",
    "--optimizer=sgd --lr-schedule=restarts --decay-steps=5 --cycle-mult=2",
    "--optimizer=sgd --momentum=0.9 --lr-schedule=one-cycle --decay-steps=20 --pct-start=0.5",
};

START_TEST(schedules_and_optimizers_are_resumed) {
    const char *text = make_text("text", 3000);
    ck_runs("train --data=%s " RUN "%s --steps=20 --metrics=%s", text, ways[_i], in_scratch("a.jsonl"));
    ck_runs("train --data=%s " RUN "%s --steps=7 --save=%s --metrics=%s", text, ways[_i], in_scratch("st"),
            in_scratch("b.jsonl"));
    ck_runs("train --resume=%s --steps=20 --metrics=%s", in_scratch("st"), in_scratch("b.jsonl"));
    expect_identical();
}
END_TEST

START_TEST(epsilon_default_depends_on_the_optimizer) {
    static const struct {
        const char *name;
        double epsilon;
    } own[] = {{"adam", 1e-8}, {"rmsprop", 1e-8}, {"adagrad", 1e-10}, {"lars", 0}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        rm_options o;
        char flag[64];
        snprintf(flag, sizeof flag, "--optimizer=%s", own[i].name);
        ck_ok(rm_options_parse(&o, RM_TRAIN, 2, (char *[]){flag, "--data=x"}));
        ck_assert_double_eq(rm_setup_training_config(&o).epsilon, own[i].epsilon);
        rm_options_free(&o);
    }
}
END_TEST

static const char *const refused[][2] = {
    {"--early-stop=3|no effect|--eval-every=0", "--early-stop=3"},
    {"--lr-schedule=plateau|--eval-every", "--lr-schedule=plateau"},
    {"--metric=perplexity|--early-stop", "--metric=perplexity --eval-every=1"},
    {"--patience=3|no effect|--lr-schedule=constant", "--patience=3"},
    {"--decay-steps=N", "--lr-schedule=restarts"},
    {"--pct-start", "--lr-schedule=one-cycle --warmup-steps=3"},
    {"--clip-grad-norm=1 and --clip-grad-value=1 cannot be combined", "--clip-grad-norm=1 --clip-grad-value=1"},
    {"--clip-grad-value=1|no effect|--optimizer=lamb", "--optimizer=lamb --clip-grad-value=1"},
    {"--alpha=0.5|no effect|--optimizer=adam", "--alpha=0.5"},
};
START_TEST(unsupported_watch_settings_are_refused) {
    ck_refuses(2, refused[_i][0], "train --data=%s " RUN "%s", make_text("text", 3000), refused[_i][1]);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("watch");
    tcase_add_test(tests, plateau_matches_pytorch);
    tcase_add_test(tests, plateau_of_accuracy_matches_pytorch);
    tcase_add_test(tests, warm_up_does_not_count_as_plateau);
    tcase_add_test(tests, early_stop_counts_evaluations_without_improvement);
    tcase_add_test(tests, saved_counts_are_read);
    tcase_add_loop_test(tests, invalid_counts_are_refused, 0, sizeof damaged / sizeof *damaged);
    tcase_add_test(tests, plateau_is_resumed);
    tcase_add_test(tests, early_stop_saves_the_run);
    tcase_add_test(tests, early_stop_judges_by_metric);
    tcase_add_test(tests, stopped_runs_miss_no_evaluation);
    tcase_add_test(tests, stopped_runs_miss_no_final_evaluation);
    tcase_add_test(tests, interruption_does_not_change_early_stop);
    tcase_add_loop_test(tests, best_state_is_kept, 0, 2);
    tcase_add_test(tests, missing_best_state_is_not_named);
    tcase_add_loop_test(tests, best_state_replaces_only_its_own_link, 0, (int)(sizeof others / sizeof *others));
    tcase_add_test(tests, copied_best_state_is_renamed_with_a_note);
    tcase_add_test(tests, keep_best_needs_evaluations);
    tcase_add_test(tests, best_evaluation_is_known_by_its_step);
    tcase_add_test(tests, ranks_stop_early_together);
    tcase_add_test(tests, epsilon_default_depends_on_the_optimizer);
    tcase_add_loop_test(tests, schedules_and_optimizers_are_resumed, 0, sizeof ways / sizeof *ways);
    tcase_add_loop_test(tests, unsupported_watch_settings_are_refused, 0, sizeof refused / sizeof *refused);
    return run_suite("train/watch", tests);
}

/* test_resume.c: the program is killed with SIGKILL at random moments, repeatedly, and resumed; in the end its metrics
 * have the same losses, bit for bit, as those of an undisturbed run. Also Ctrl-C, SIGTERM and restart scripts. */
#include "tests/train/train_test.h"

#include "train/state/state.h"

#include <jansson.h>

#define FLAGS "--hidden=24 --layers=2 --seq-len=64 --batch=4 --dropout=0.2 --threads=1 --lr=0.01 "
enum { STEPS = 300 };

typedef struct {
    double loss[STEPS + 1];
    int count;
} losses;

/* The losses by step; a repeated step must have the same loss. */
static void read_losses(const char *path, losses *out) {
    char line[4096];
    FILE *file = fopen(path, "r");
    *out = (losses){0};
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        json_t *event = json_loads(line, 0, NULL);
        const char *name = json_string_value(json_object_get(event, "event"));
        if (name && !strcmp(name, "step")) {
            int64_t step = json_integer_value(json_object_get(event, "step"));
            double loss = json_number_value(json_object_get(event, "loss"));
            ck_assert(step >= 1 && step <= STEPS);
            ck_assert(out->loss[step] == 0 || out->loss[step] == loss);
            if (out->loss[step] == 0) out->count++;
            out->loss[step] = loss;
        }
        json_decref(event);
    }
    fclose(file);
}

static void same_losses(const losses *a, const losses *b) {
    ck_assert_int_eq(a->count, STEPS);
    ck_assert_int_eq(b->count, STEPS);
    for (int i = 1; i <= STEPS; i++)
        ck_assert_msg(a->loss[i] == b->loss[i], "step %d: %.9g and %.9g", i, a->loss[i], b->loss[i]);
}

/* Starts the program, and sends `signal` after this many milliseconds, or after the first step in a file of metrics. Returns
 * its exit status. */
static int run_and_signal(const char *line, int signal, int ms, const char *metrics) {
    int out = temporary(), err = temporary(), status = 0;
    pid_t child = start_program(line, out, err);
    if (metrics) wait_for_steps(metrics, 1);
    wait_ms(ms);
    kill(child, signal); /* in vain if it has ended */
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    read_back(out, program_output, sizeof program_output);
    read_back(err, program_errors, sizeof program_errors);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void start_over(void) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s %s", in_scratch("st"), in_scratch("killed.jsonl"));
    ck_assert_int_eq(system(command), 0);
}

/* More than one epoch each. */
static const char *const kinds[] = {"", "--stateful --tbptt=16 "};

START_TEST(killed_runs_resume_with_the_same_bits) {
    char line[2048];
    losses alone, killed;
    const char *text = make_text("text", 8192), *kind = kinds[_i];
    ck_runs("train --data=%s " FLAGS "%s--steps=%d --metrics=%s", text, kind, STEPS, in_scratch("alone.jsonl"));
    read_losses(in_scratch("alone.jsonl"), &alone);
    snprintf(line, sizeof line,
             "train --data=%s " FLAGS "%s--steps=%d --metrics=%s --save=%s --save-every=3 --resume=%s", text, kind,
             STEPS, in_scratch("killed.jsonl"), in_scratch("st"), in_scratch("st"));
    srand(7);
    int kills = 0;
    for (int i = 0; i < 60; i++) {
        int status = run_and_signal(line, SIGKILL, 10 + rand() % 120, NULL);
        ck_assert_msg(status == 0 || status == 128 + SIGKILL, "exit %d: %s", status, program_errors);
        if (status) kills++;
        if (status == 0 && kills >= 2) break;
        if (status == 0) start_over(), kills = 0; /* on a busy machine this process may come too late */
    }
    ck_assert_int_ge(kills, 2);
    ck_runs("%s", line);
    read_losses(in_scratch("killed.jsonl"), &killed);
    same_losses(&alone, &killed);
}
END_TEST

/* A run may be resumed under another plan: the bits do not depend on it. */
START_TEST(runs_resume_under_another_plan) {
    losses alone, changed;
    const char *text = make_text("text", 8192);
    ck_runs("train --data=%s " FLAGS "--steps=%d --tile=8 --metrics=%s", text, STEPS, in_scratch("alone.jsonl"));
    ck_runs("train --data=%s " FLAGS "--steps=%d --tile=8 --metrics=%s --save=%s", text, STEPS / 2,
            in_scratch("m.jsonl"), in_scratch("st"));
    ck_runs("train --resume=%s --steps=%d --metrics=%s --checkpoint-segments=4", in_scratch("st"), STEPS,
            in_scratch("m.jsonl"));
    ck_says_all(program_output, "resumed from");
    read_losses(in_scratch("alone.jsonl"), &alone);
    read_losses(in_scratch("m.jsonl"), &changed);
    same_losses(&alone, &changed);
}
END_TEST

/* Without --save a resumed run continues to save in the same place. Resumed from a single state it saves nothing, and
 * says so. */
START_TEST(resumed_runs_continue_to_save) {
    const char *text = make_text("text", 8192);
    ck_runs("train --data=%s " FLAGS "--steps=2 --save=%s", text, in_scratch("st"));
    ck_runs("train --resume=%s --steps=4", in_scratch("st"));
    ck_says_all(program_output, "saved in");
    ck_runs("train --resume=%s/step-00000004 --steps=5", in_scratch("st"));
    ck_says_all(program_output, "no training states will be saved");
    ck_runs("train --resume=%s --steps=4", in_scratch("st"));
    ck_says_all(program_output, "step 4|nothing is left to do|--steps");
    ck_assert_msg(!strstr(program_output, "saved in"), "it has saved nothing: %s", program_output);
    ck_runs("train --resume=%s --steps=4 --save=%s", in_scratch("st"), in_scratch("copy"));
    ck_says_all(program_output, "step 4|nothing is left to do|saved in");
    ck_runs("train --resume=%s --steps=6 --save=%s", in_scratch("copy"), in_scratch("copy"));
    ck_runs("train --resume=%s --steps=6", in_scratch("st"));
    char command[600];
    snprintf(command, sizeof command,
             "cd %s/step-00000006 && for f in *.safetensors; do cmp $f %s/step-00000006/$f || exit 1; done",
             in_scratch("copy"), in_scratch("st"));
    ck_assert_int_eq(system(command), 0);
    ck_runs(
        "train --task=adding --samples=20 --layers=1 --hidden=4 --seq-len=8 --batch=4 --steps=1 --checkpoint=segments "
        "--checkpoint-segments=4");
    ck_says_all(program_output, "note: 4 segments were requested, but there is 1 tile of 8");
    ck_runs("train --data=%s " FLAGS "--epochs=1 --save=%s", text, in_scratch("epoch"));
    ck_runs("train --resume=%s --epochs=1", in_scratch("epoch"));
    ck_says_all(program_output, "nothing is left to do|--epochs");
}
END_TEST

/* A dump replaces an earlier one completely; an unwritable one is refused before the first step. */
START_TEST(gradient_dumps_are_complete) {
    const char *text = make_text("text", 8192);
    ck_runs("train --data=%s " FLAGS "--steps=1 --dump-grads=%s", text, in_scratch("g.safetensors"));
    ck_runs("train --data=%s " FLAGS "--steps=1 --dump-grads=%s", text, in_scratch("g.safetensors"));
    ck_assert_int_ne(access(in_scratch("g.safetensors.unfinished"), F_OK), 0);
    ck_refuses(1, "--dump-grads", "train --data=%s " FLAGS "--steps=1 --dump-grads=%s", text, in_scratch("no/g"));
}
END_TEST

static void stopped_by(int signal, int expected) {
    char line[2048];
    const char *text = make_text("text", 8192);
    snprintf(line, sizeof line,
             "train --data=%s " FLAGS "--steps=100000000 --save=%s --save-every=100000000 --metrics=%s", text,
             in_scratch("st"), in_scratch("m.jsonl"));
    ck_assert_int_eq(run_and_signal(line, signal, 0, in_scratch("m.jsonl")), expected);
    ck_says_all(program_output, "stopped after step");
    ck_runs("train --resume=%s --steps=1", in_scratch("st")); /* the saved state is complete */
    ck_says_all(program_output, "nothing is left to do");
}
START_TEST(ctrl_c_saves_first) { stopped_by(SIGINT, 130); }
END_TEST
START_TEST(sigterm_saves_first) { stopped_by(SIGTERM, 143); }
END_TEST

START_TEST(sighup_saves_first) { stopped_by(SIGHUP, 129); }
END_TEST

/* SIGUSR1, however early, saves a training state. A SIGHUP that nohup ignores has no effect. */
START_TEST(sigusr1_saves_and_continues) {
    char line[2048];
    int out = temporary(), err = temporary(), status = 0;
    snprintf(line, sizeof line, "train --data=%s " FLAGS "--steps=100000000 --save=%s --save-every=100000000",
             make_text("text", 8192), in_scratch("st"));
    signal(SIGHUP, SIG_IGN);
    pid_t child = start_program(line, out, err);
    signal(SIGHUP, SIG_DFL);
    wait_until_handled(child, SIGUSR1);
    kill(child, SIGUSR1);
    wait_for_state(in_scratch("st"));
    kill(child, SIGHUP);
    wait_ms(100);
    ck_assert_int_eq(waitpid(child, &status, WNOHANG), 0);
    kill(child, SIGTERM);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    read_back(out, program_output, sizeof program_output);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 143, "status %x", (unsigned)status);
    ck_says_all(program_output, ", for SIGUSR1");
    close(err);
}
END_TEST

/* A restart script runs the same command every time: the first run starts from --init, later ones from the saved
 * state. */
START_TEST(restart_scripts_start_from_init_weights) {
    const char *text = make_text("text", 3000), *st = in_scratch("st"), *init = in_scratch("init");
    ck_runs("train --data=%s " FLAGS "--steps=3 --save=%s", text, init);
    for (int i = 0; i < 2; i++) {
        ck_runs("train --data=%s " FLAGS "--steps=%d --save=%s --resume=%s/ --init=%s/step-00000003/model.safetensors "
                "--init-head=new --metrics=%s",
                text, 4 + 4 * i, st, st, init, in_scratch("parts.jsonl"));
        char command[300];
        snprintf(command, sizeof command, "rm -r %s", init); /* not needed any more */
        if (i == 0) ck_assert_int_eq(system(command), 0);
        ck_says_all(program_output, i ? "resumed from " : "--init=");
    }
    ck_runs("train --data=%s " FLAGS "--steps=8 --save=%s/./st/ --resume=%s --init=none", text, scratch(), st);
    ck_runs("train --data=%s " FLAGS "--steps=1 --save=%s/./new/ --resume=%s", text, scratch(), in_scratch("new"));
    ck_refuses(2, "--resume|--init", "train --data=%s --resume=%s --init=x --save=%s", text, st, in_scratch("other"));
}
END_TEST

START_TEST(resume_without_a_state_is_refused) {
    const char *text = make_text("text", 8192);
    ck_refuses(1, "training state", "train --data=%s --resume=%s", text, in_scratch("nothing"));
    ck_refuses(1, "is a file: give the directory", "train --data=%s --resume=%s", text, text);
    ck_refuses(1, "training state", "train --data=%s --resume=%s --save=%s", text, in_scratch("a"), in_scratch("b"));
    ck_runs("train --data=%s " FLAGS "--steps=2 --resume=%s/ --save=%s", text, in_scratch("new"), in_scratch("new"));
    ck_runs("train --data=%s " FLAGS "--steps=4 --resume=%s/ --save=%s", text, in_scratch("new"), in_scratch("new"));
    ck_says_all(program_output, "step 2, epoch 0, batch 2");
    ck_refuses(2, "training state", "train --data=%s " FLAGS "--steps=2 --save=%s", text, in_scratch("new"));
    ck_refuses(2, "--hidden=25", "train --hidden=25 --resume=%s", in_scratch("new"));
    ck_refuses(2, "data", "train --data=%s --resume=%s --steps=9", make_text("longer", 9000), in_scratch("new"));
}
END_TEST

static const char *make_zeros(const char *name, size_t bytes) {
    char *zeros = calloc(1, bytes);
    const char *path = make_file(name, zeros, bytes);
    free(zeros);
    return path;
}

/* A state of a version without checksums of the data. */
static void forget_checksums(const char *state_json) {
    json_t *root = json_load_file(state_json, 0, NULL);
    ck_assert_int_eq(json_object_del(root, "data_crc32"), 0);
    ck_assert_int_eq(json_object_del(root, "crc32"), 0);
    ck_assert_int_eq(json_dump_file(root, state_json, 0), 0);
    json_decref(root);
}

/* Other data with the same number of samples are detected: another file, and the same file with other content. */
START_TEST(other_data_is_refused) {
    const char *text = make_text("text", 8192), *st = in_scratch("st"), *same = make_text("same", 8192);
    ck_runs("train --data=%s " FLAGS "--steps=2 --save=%s", text, st);
    const char *other = make_zeros("other", 8192);
    ck_refuses(2, "data|checksum", "train --resume=%s --data=%s --steps=4", st, other);
    ck_assert_msg(says_all(program_errors, "/other|st/step-00000002"), "%s", program_errors);
    ck_runs("train --resume=%s --data=%s --steps=4", st, same);
    make_zeros("same", 8192);
    ck_refuses(2, "data|checksum", "train --resume=%s --steps=6", st);
    forget_checksums(in_scratch("st/step-00000004/state.json"));
    ck_runs("train --resume=%s --steps=6", st);
    ck_runs("train --task=adding --samples=40 --seq-len=9 --hidden=4 --batch=4 --steps=1 --save=%s",
            in_scratch("made"));
    ck_runs("train --resume=%s --steps=2", in_scratch("made"));
}
END_TEST

/* Paths are bytes: a flag's text that is not UTF-8 is restored unchanged from every kind of state. */
START_TEST(paths_need_not_be_utf_8) {
    char name[] = "te\xe9xt", log[] = "log\xff.jsonl";
    const char *text = make_text(name, 8192), *st = in_scratch("st");
    ck_runs("train --data=%s " FLAGS "--steps=4 --eval-data=%s --eval-every=2 --metrics=%s", text, text,
            in_scratch(log));
    ck_runs("train --data=%s " FLAGS "--steps=2 --eval-data=%s --eval-every=2 --save=%s --metrics=%s", text, text, st,
            in_scratch("part.jsonl"));
    ck_runs("train --resume=%s --steps=4 --metrics=%s", st, in_scratch("part.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch(log), in_scratch("part.jsonl"));
    rm_options o;
    rm_state_point point;
    ck_ok(rm_options_defaults(&o));
    ck_ok(rm_state_read(in_scratch("st/step-00000004"), RM_TRAIN, &o, &point));
    ck_assert_str_eq(o.data.data, text);
    ck_assert_str_eq(o.held_out.data, text);
    rm_options_free(&o);
}
END_TEST

static void damage(const char *path, bool empty) { ck_assert_int_eq(truncate(path, empty ? 0 : 100), 0); }
static void lose(const char *path, bool empty) {
    (void)empty;
    ck_assert_int_eq(unlink(path), 0);
}

/* If the newest state is damaged or incomplete, the program does not use an older one, but names it; and its advice
 * works. */
START_TEST(the_state_before_a_damaged_one_is_named) {
    static const char *const files[] = {"state.json", "model.safetensors", "optimizer.safetensors"};
    const char *text = make_text("text", 8192), *st = in_scratch("st");
    char newest[256], said[600], command[600];
    snprintf(newest, sizeof newest, "%s/step-00000003/%s", st, files[_i % 3]);
    ck_runs("train --data=%s " FLAGS "--steps=3 --save-every=1 --keep=0 --save=%s", text, st);
    (_i < 3 ? damage : lose)(newest, _i == 0);
    snprintf(said, sizeof said, "%1$s/step-00000002|%1$s/step-00000003|--resume=%1$s", st);
    ck_refuses(1, said, "train --resume=%s --steps=4", st);
    ck_refuses(1, said, "plan --resume=%s", st);
    ck_refuses(1, said, "eval --resume=%s --data=%s", st, text);
    ck_refuses(1, "step-00000003", "train --resume=%s/step-00000003 --steps=4", st);
    damage(in_scratch("st/step-00000002/model.safetensors"), false); /* skipped */
    ck_refuses(1, "step-00000001", "train --resume=%s --steps=4", st);
    ck_says_all(program_errors, "st/step-00000001|move");
    snprintf(command, sizeof command, "mv %1$s/step-00000003 %1$s/step-00000002 %2$s", st, scratch());
    ck_assert_int_eq(system(command), 0);
    ck_runs("train --resume=%s --steps=2", st);
    ck_says_all(program_output, "step 1, epoch 0");
    damage(in_scratch("st/step-00000001/state.json"), true);
    damage(in_scratch("st/step-00000002/state.json"), true);
    ck_refuses(1, "training state", "train --resume=%s --steps=4", st);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("resume");
    tcase_add_loop_test(tests, killed_runs_resume_with_the_same_bits, 0, sizeof kinds / sizeof *kinds);
    tcase_add_test(tests, runs_resume_under_another_plan);
    tcase_add_test(tests, resumed_runs_continue_to_save);
    tcase_add_test(tests, gradient_dumps_are_complete);
    tcase_add_test(tests, ctrl_c_saves_first);
    tcase_add_test(tests, sigterm_saves_first);
    tcase_add_test(tests, sighup_saves_first);
    tcase_add_test(tests, sigusr1_saves_and_continues);
    tcase_add_test(tests, restart_scripts_start_from_init_weights);
    tcase_add_test(tests, resume_without_a_state_is_refused);
    tcase_add_test(tests, other_data_is_refused);
    tcase_add_test(tests, paths_need_not_be_utf_8);
    tcase_add_loop_test(tests, the_state_before_a_damaged_one_is_named, 0, 6);
    return run_suite("train/resume", tests);
}

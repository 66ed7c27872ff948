/* test_tbptt.c: --tbptt and --stateful: windows are micro steps of a stateful session; rows of a text continue from
 * batch to batch, on any ranks, and after a resume. tests/engine/test_golden.c compares the gradients of windows with
 * PyTorch's. */
#include "train/models/model.h"

#include "tests/train/train_test.h"

#define SMALL "--hidden=12 --layers=2 --threads=1 --lr=0.05 --tile=4 "

/* Compares the losses of two runs, a.jsonl and b.jsonl. */
static void expect_identical(void) {
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
}

/* ---- Windows ---- */

static void run(const char *text, const char *flags, const char *metrics) {
    ck_runs("train --data=%s " SMALL "%s --metrics=%s", text, flags, in_scratch(metrics));
}

/* A batch of four windows equals four stateful batches of one window. */
START_TEST(windows_are_micro_steps) {
    const char *text = make_text("text", 3 * 20 * 32 + 1);
    run(text, "--batch=3 --stateful --seq-len=32 --tbptt=8 --steps=30", "a.jsonl");
    run(text, "--batch=3 --stateful --seq-len=8 --accumulate-steps=4 --steps=30", "b.jsonl");
    expect_identical();
}
END_TEST

/* A single window is not truncated, and zero initial states change nothing. */
START_TEST(a_single_window_is_exact) {
    const char *text = make_text("text", 2000);
    run(text, "--batch=3 --seq-len=32 --tbptt=32 --steps=30", "a.jsonl");
    run(text, "--batch=3 --seq-len=32 --steps=30", "b.jsonl");
    expect_identical();
}
END_TEST

static double last_loss(const char *metrics) {
    char line[4096];
    double loss = 0;
    FILE *file = fopen(metrics, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file))
        if (strstr(line, "\"event\":\"step\"")) loss = strtod(strstr(line, "\"loss\":") + 7, NULL);
    fclose(file);
    return loss;
}

static void same_to(const char *a, const char *b, double most) {
    double x = last_loss(in_scratch(a)), y = last_loss(in_scratch(b));
    ck_assert_msg(fabs(x - y) <= most * y, "%.9g, and %.9g", x, y);
}

/* The forward pass is not truncated, wherever windows start. */
START_TEST(overlapping_windows_have_the_samples_loss) {
    const char *text = make_text("text", 2000);
    run(text, "--model=gru --batch=3 --seq-len=64 --tbptt=16:4 --steps=1", "a.jsonl");
    run(text, "--model=gru --batch=3 --seq-len=64 --steps=1", "b.jsonl");
    same_to("a.jsonl", "b.jsonl", 1e-6);
}
END_TEST

/* If every window reaches back to the start, losses and gradients are the sample's, up to rounding; windows of one
 * additional timestep change nothing. */
START_TEST(windows_that_reach_back_to_the_start_are_exact) {
    const char *text = make_text("text", 2000);
    run(text, "--batch=3 --seq-len=32 --tbptt=32:4 --steps=30", "a.jsonl");
    run(text, "--batch=3 --seq-len=32 --steps=30", "b.jsonl");
    same_to("a.jsonl", "b.jsonl", 1e-5);
    run(text, "--batch=3 --seq-len=32 --tbptt=8:8 --steps=30", "c.jsonl");
    run(text, "--batch=3 --seq-len=32 --tbptt=8 --steps=30", "d.jsonl");
    ck_runs("report --require-identical %s %s", in_scratch("c.jsonl"), in_scratch("d.jsonl"));
}
END_TEST

/* The forward pass is not truncated, so the first losses agree up to the order of sums. Later losses differ. */
START_TEST(report_marks_truncated_runs) {
    const char *text = make_text("text", 2000);
    run(text, "--batch=3 --seq-len=32 --tbptt=8 --steps=30", "a.jsonl");
    run(text, "--batch=3 --seq-len=32 --steps=30", "b.jsonl");
    ck_runs("report %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
    ck_says_all(program_output, "a.jsonl is truncated|8 timesteps");
    ck_assert_ptr_null(strstr(program_output, "b.jsonl is truncated"));
    ck_says_all(program_output, "losses differ|step");
}
END_TEST

/* A plan covers one window, so samples may have any length. */
START_TEST(plans_cover_one_window) {
    ck_runs("plan " SMALL "--seq-len=32 --tbptt=8 --json");
    char *first = strdup(strstr(program_output, "\"planned_peak_bytes\""));
    ck_runs("plan " SMALL "--seq-len=32000 --tbptt=8 --json");
    ck_assert_int_eq(strcspn(first, ","), strcspn(strstr(program_output, "\"planned_peak_bytes\""), ","));
    ck_assert(!strncmp(first, strstr(program_output, "\"planned_peak_bytes\""), strcspn(first, ",")));
    free(first);
    ck_assert_int_eq(
        run_program("plan --batch=1 --seq-len=4096 --tbptt=2048 --threads=1 --hidden=64 --memory-budget=2600KiB"), 2);
    ck_says_all(program_errors, "--tbptt=128 would fit");
    ck_assert_int_eq(
        run_program("plan --batch=1 --seq-len=4096 --tbptt=2048:32 --threads=1 --hidden=64 --memory-budget=2600KiB"),
        2);
    ck_says_all(program_errors, "--tbptt=256:32 would fit");
}
END_TEST

/* ---- The same loop with the library alone ---- */

enum { K = 8, WINDOWS = 3, ROWS = 2, STEPS = 20, BYTES = 1 + ROWS * K * WINDOWS * 7 };

static remat_session *open_session(void) {
    remat_session *s;
    rm_model model;
    rm_model_spec spec = {.name = "gru", .layers = 2, .hidden = 12, .embed = 12, .data = rm_text_shape(K, 0)};
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    config.tile = 4;
    config.seed = 5;
    config.optimizer = "sgd";
    config.stateful = true;
    config.micro_steps = WINDOWS;
    ck_ok(rm_model_build(&spec, ROWS, true, &model));
    ck_ok(remat_session_create(model.graph, model.loss, &config, &s));
    rm_model_free(&model);
    return s;
}

static void zero_states(remat_session *s) {
    static const float zeros[ROWS * 12];
    for (int64_t i = 0; i < remat_count(s, REMAT_CARRIED); i++)
        ck_ok(remat_write(s, REMAT_CARRIED, i, zeros, sizeof zeros));
}

/* Window w from the start of the text for row 0, from its middle for row 1. */
static void feed(remat_session *s, const char *text, int64_t row_bytes, int64_t w) {
    int32_t x[K][ROWS], y[K][ROWS];
    for (int t = 0; t < K; t++)
        for (int b = 0; b < ROWS; b++) {
            const char *at = text + b * row_bytes + w * K + t;
            x[t][b] = (unsigned char)at[0];
            y[t][b] = (unsigned char)at[1];
        }
    ck_ok(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    ck_ok(remat_write(s, REMAT_INPUT, 1, y, sizeof y));
}

/* Almost three epochs: the program does the same as PyTorch's loop, written in C. */
START_TEST(program_matches_the_detached_loop) {
    const char *path = make_text("text", BYTES);
    char text[BYTES];
    FILE *file = fopen(path, "rb");
    ck_assert_uint_eq(fread(text, 1, BYTES, file), BYTES);
    fclose(file);
    ck_runs("train --data=%s --model=gru --layers=2 --hidden=12 --threads=1 --tile=4 --seed=5 --optimizer=sgd --lr=0.5 "
            "--batch=%d --seq-len=%d --tbptt=%d --stateful --steps=%d --metrics=%s",
            path, ROWS, K * WINDOWS, K, STEPS, in_scratch("m.jsonl"));
    remat_session *s = open_session();
    remat_step_result r;
    int64_t updates = (BYTES - 1) / ROWS / (K * WINDOWS);
    for (int64_t step = 0; step < STEPS; step++) {
        if (step % updates == 0) zero_states(s);
        for (int64_t w = 0; w < WINDOWS; w++) {
            feed(s, text, (BYTES - 1) / ROWS, step % updates * WINDOWS + w);
            ck_ok(remat_gradients(s, &r));
        }
        double loss = r.loss;
        ck_ok(remat_update(s, 0.5, &r));
        r.loss = loss;
    }
    ck_assert_msg((float)r.loss == (float)last_loss(in_scratch("m.jsonl")), "%.9g", r.loss);
    remat_session_free(s);
}
END_TEST

/* ---- States on disk ---- */

static void same_file(const char *a, const char *b) {
    char command[1024];
    snprintf(command, sizeof command, "cmp %s %s", a, b);
    ck_assert_int_eq(system(command), 0);
}

/* With a learning rate of 0 only the states change: each row has the same states on any ranks. */
START_TEST(rows_do_not_depend_on_ranks) {
#define FIXED "--hidden=12 --layers=2 --threads=1 --tile=4 --lr=0 --seq-len=8 --stateful --steps=5 "
    const char *text = make_text("text", 2000);
    ck_runs("train --data=%s " FIXED "--batch=6 --save=%s", text, in_scratch("one"));
    ck_runs("train --data=%s " FIXED "--batch=2 --devices=cpu:3 --save=%s", text, in_scratch("three"));
    same_file(in_scratch("one/step-00000005/carried.safetensors"),
              in_scratch("three/step-00000005/carried.safetensors"));
    ck_runs("train --resume=%s --devices=cpu:2 --steps=9", in_scratch("three"));
    ck_runs("train --resume=%s --steps=9", in_scratch("one"));
    same_file(in_scratch("one/step-00000009/carried.safetensors"),
              in_scratch("three/step-00000009/carried.safetensors"));
}
END_TEST

/* Two resumed ranks match two uninterrupted ones. */
START_TEST(ranks_resume_with_their_rows) {
    const char *text = make_text("text", 2000);
    run(text, "--batch=2 --devices=cpu:2 --seq-len=16 --tbptt=8 --stateful --steps=40", "a.jsonl");
    ck_runs("train --data=%s " SMALL "--batch=2 --devices=cpu:2 --seq-len=16 --tbptt=8 --stateful --steps=17 --save=%s "
            "--metrics=%s",
            text, in_scratch("st"), in_scratch("b.jsonl"));
    ck_runs("train --resume=%s --devices=cpu:2 --steps=40 --metrics=%s", in_scratch("st"), in_scratch("b.jsonl"));
    expect_identical();
}
END_TEST

START_TEST(unsuitable_states_are_refused) {
    const char *text = make_text("text", 2000);
    ck_runs("train --data=%s " SMALL "--batch=4 --seq-len=8 --stateful --steps=2 --save=%s", text, in_scratch("st"));
    ck_refuses(2, "4 rows|2", "train --resume=%s --batch=2 --accumulate-steps=2 --steps=4", in_scratch("st"));
    ck_refuses(2, "--tbptt=4", "train --resume=%s --tbptt=4 --steps=4", in_scratch("st"));
    make_file("st/step-00000002/carried.safetensors", "short", 5);
    ck_refuses(1, "carried.safetensors", "train --resume=%s --steps=4", in_scratch("st"));
    unlink(in_scratch("st/step-00000002/carried.safetensors"));
    ck_refuses(1, "carried.safetensors|missing", "train --resume=%s --steps=4", in_scratch("st"));
}
END_TEST

static const char *const refused[][2] = {
    {"1000 timesteps|--seq-len|multiple", "--tbptt=300"},
    {"--tbptt=48:16|1000 timesteps|multiple of 16|48", "--tbptt=48:16"},
    {"--tbptt=7:2|second number|divide", "--tbptt=7:2"},
    {"--tbptt=7:0: the second number", "--tbptt=7:0"},
    {"--tbptt=7:: is neither", "--tbptt=7:"},
    {"--tbptt=20:10|overlap|--stateful", "--tbptt=20:10 --stateful"},
    {"--tbptt|10|4 timesteps|--tile=2", "--batch=2 --tbptt=20:10 --tile=4"},
    {"--tbptt|1|2 timesteps|--tile=1", "--batch=2 --tbptt=5:1 --tile=2"},
    {"--tbptt=10|no effect|--task=adding", "--task=adding --tbptt=10"},
    {"--stateful|no effect|--task=copy", "--task=copy --stateful"},
    {"--bidirectional and --tbptt=10 cannot be combined", "--task=copy --tbptt=10 --bidirectional"},
    {"--deterministic-world=8 and --stateful cannot be combined", "--stateful --deterministic-world"},
    {"--stateful and --pad cannot be combined", "--stateful --pad"},
};
START_TEST(unsupported_tbptt_settings_are_refused) {
    bool generated = strstr(refused[_i][1], "--task");
    ck_refuses(2, refused[_i][0], "train %s%s %s", generated ? "" : "--data=", generated ? "" : make_text("text", 5000),
               refused[_i][1]);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("tbptt");
    tcase_add_test(tests, windows_are_micro_steps);
    tcase_add_test(tests, a_single_window_is_exact);
    tcase_add_test(tests, overlapping_windows_have_the_samples_loss);
    tcase_add_test(tests, windows_that_reach_back_to_the_start_are_exact);
    tcase_add_test(tests, report_marks_truncated_runs);
    tcase_add_test(tests, plans_cover_one_window);
    tcase_add_test(tests, program_matches_the_detached_loop);
    tcase_add_test(tests, rows_do_not_depend_on_ranks);
    tcase_add_test(tests, ranks_resume_with_their_rows);
    tcase_add_test(tests, unsuitable_states_are_refused);
    tcase_add_loop_test(tests, unsupported_tbptt_settings_are_refused, 0, sizeof refused / sizeof *refused);
    return run_suite("train/tbptt", tests);
}

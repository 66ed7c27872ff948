/* test_tbptt.c: --tbptt and --stateful: windows are micro steps of a session that carries states; rows of a text go on from batch
 * to batch, on any ranks, and after a training state. That a window's gradients are PyTorch's is tests/engine/test_golden.c's. */
#include "train/models/model.h"

#include "tests/train/train_test.h"

#define SMALL "--hidden=12 --layers=2 --threads=1 --lr=0.05 --tile=4 "

/* The losses of two runs, a.jsonl and b.jsonl. */
static void expect_identical(void) {
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
}

/* ---- Windows ---- */

static void run(const char *text, const char *flags, const char *metrics) {
    ck_runs("train --data=%s " SMALL "%s --metrics=%s", text, flags, in_scratch(metrics));
}

/* A batch of four windows is four batches of one, where rows go on. */
START_TEST(windows_are_micro_steps) {
    const char *text = make_text("text", 3 * 20 * 32 + 1);
    run(text, "--batch=3 --stateful --seq-len=32 --tbptt=8 --steps=30", "a.jsonl");
    run(text, "--batch=3 --stateful --seq-len=8 --accumulate-steps=4 --steps=30", "b.jsonl");
    expect_identical();
}
END_TEST

/* Nothing is cut; and states that begin with zeros make no other session. */
START_TEST(one_window_is_exact) {
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

/* Forward nothing is cut, wherever windows begin. */
START_TEST(windows_that_overlap_have_the_sample_s_loss) {
    const char *text = make_text("text", 2000);
    run(text, "--model=gru --batch=3 --seq-len=64 --tbptt=16:4 --steps=1", "a.jsonl");
    run(text, "--model=gru --batch=3 --seq-len=64 --steps=1", "b.jsonl");
    same_to("a.jsonl", "b.jsonl", 1e-6);
}
END_TEST

/* Where the first window is the sample, the losses of all together are the sample's, and so are their gradients, but for rounding; and
 * one step is as good as none. */
START_TEST(windows_that_reach_back_to_the_beginning_are_exact) {
    const char *text = make_text("text", 2000);
    run(text, "--batch=3 --seq-len=32 --tbptt=32:4 --steps=30", "a.jsonl");
    run(text, "--batch=3 --seq-len=32 --steps=30", "b.jsonl");
    same_to("a.jsonl", "b.jsonl", 1e-5);
    run(text, "--batch=3 --seq-len=32 --tbptt=8:8 --steps=30", "c.jsonl");
    run(text, "--batch=3 --seq-len=32 --tbptt=8 --steps=30", "d.jsonl");
    ck_runs("report --require-identical %s %s", in_scratch("c.jsonl"), in_scratch("d.jsonl"));
}
END_TEST

/* Forward nothing is cut: the first losses agree but for the order of adding; what is learnt from them does not. */
START_TEST(a_report_tells_truncated_from_exact) {
    const char *text = make_text("text", 2000);
    run(text, "--batch=3 --seq-len=32 --tbptt=8 --steps=30", "a.jsonl");
    run(text, "--batch=3 --seq-len=32 --steps=30", "b.jsonl");
    ck_runs("report %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
    ck_assert_ptr_nonnull(strstr(program_output, "a.jsonl is truncated: its gradients end every 8 timesteps."));
    ck_assert_ptr_null(strstr(program_output, "b.jsonl is truncated"));
    ck_assert_ptr_nonnull(strstr(program_output, "The losses differ first at step"));
}
END_TEST

/* A plan is of one window: for a sample of any length. */
START_TEST(plans_are_of_a_window) {
    ck_runs("plan " SMALL "--seq-len=32 --tbptt=8 --json");
    char *first = strdup(strstr(program_output, "\"planned_peak_bytes\""));
    ck_runs("plan " SMALL "--seq-len=32000 --tbptt=8 --json");
    ck_assert_int_eq(strcspn(first, ","), strcspn(strstr(program_output, "\"planned_peak_bytes\""), ","));
    ck_assert(!strncmp(first, strstr(program_output, "\"planned_peak_bytes\""), strcspn(first, ",")));
    free(first);
    ck_assert_int_eq(
        run_program("plan --batch=1 --seq-len=4096 --tbptt=2048 --threads=1 --hidden=64 --memory-budget=2600KiB"), 2);
    ck_assert_msg(strstr(program_errors, "--tbptt=128 would fit"), "%s", program_errors);
    ck_assert_int_eq(
        run_program("plan --batch=1 --seq-len=4096 --tbptt=2048:32 --threads=1 --hidden=64 --memory-budget=2600KiB"),
        2);
    ck_assert_msg(strstr(program_errors, "--tbptt=256:32 would fit"), "%s", program_errors);
}
END_TEST

/* ---- The loop, by the library alone ---- */

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

/* Window w of the text's begin for row 0, of its middle for row 1. */
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

/* Three epochs, nearly: what the program does is PyTorch's loop, in C. */
START_TEST(the_program_is_the_detached_loop) {
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

/* With a rate of 0 the states alone go on: row for row the same, whoever computes it. */
START_TEST(rows_are_the_same_on_any_ranks) {
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

/* Two ranks that stop and go on are two that do not. */
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

START_TEST(what_does_not_fit_is_refused) {
    const char *text = make_text("text", 2000);
    ck_runs("train --data=%s " SMALL "--batch=4 --seq-len=8 --stateful --steps=2 --save=%s", text, in_scratch("st"));
    ck_refuses(2, "has the states of 4 rows, and this run has 2: rows of a batch times ranks must stay the same",
               "train --resume=%s --batch=2 --accumulate-steps=2 --steps=4", in_scratch("st"));
    ck_refuses(2, "--tbptt=4 does not agree", "train --resume=%s --tbptt=4 --steps=4", in_scratch("st"));
    make_file("st/step-00000002/carried.safetensors", "short", 5);
    ck_refuses(1, "carried.safetensors is not as it was saved", "train --resume=%s --steps=4", in_scratch("st"));
    unlink(in_scratch("st/step-00000002/carried.safetensors"));
    ck_refuses(1, "carried.safetensors is missing", "train --resume=%s --steps=4", in_scratch("st"));
}
END_TEST

static const char *const refused[][2] = {
    {"samples of 1000 timesteps cannot be cut into windows of so many: make --seq-len a multiple", "--tbptt=300"},
    {"--tbptt=48:16: samples of 1000 timesteps do not hold such windows", "--tbptt=48:16"},
    {"--tbptt=7:2: the second number must be in the first a whole number of times", "--tbptt=7:2"},
    {"--tbptt=7:0: the second number", "--tbptt=7:0"},
    {"--tbptt=7:: is neither", "--tbptt=7:"},
    {"--tbptt=20:10 has windows that would begin in the batch before", "--tbptt=20:10 --stateful"},
    {"the second number of --tbptt is 10, and that is no whole number of tiles of 4 timesteps: set --tile=2",
     "--batch=2 --tbptt=20:10 --tile=4"},
    {"the second number of --tbptt is 1, and that is no whole number of tiles of 2 timesteps: set --tile=1",
     "--batch=2 --tbptt=5:1 --tile=2"},
    {"--tbptt has no effect with --task=adding", "--task=adding --tbptt=10"},
    {"--stateful has no effect with --task=copy", "--task=copy --stateful"},
    {"--tbptt carries states forwards, and --bidirectional", "--task=copy --tbptt=10 --bidirectional"},
    {"--stateful carries states from one micro step to the next, and --deterministic-world",
     "--stateful --deterministic-world"},
    {"--stateful gives each row a stretch of the text, which --pad", "--stateful --pad"},
};
START_TEST(what_cannot_work_is_refused) {
    bool generated = strstr(refused[_i][1], "--task");
    ck_refuses(2, refused[_i][0], "train %s%s %s", generated ? "" : "--data=", generated ? "" : make_text("text", 5000),
               refused[_i][1]);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("tbptt");
    tcase_add_test(tests, windows_are_micro_steps);
    tcase_add_test(tests, one_window_is_exact);
    tcase_add_test(tests, windows_that_overlap_have_the_sample_s_loss);
    tcase_add_test(tests, windows_that_reach_back_to_the_beginning_are_exact);
    tcase_add_test(tests, a_report_tells_truncated_from_exact);
    tcase_add_test(tests, plans_are_of_a_window);
    tcase_add_test(tests, the_program_is_the_detached_loop);
    tcase_add_test(tests, rows_are_the_same_on_any_ranks);
    tcase_add_test(tests, ranks_resume_with_their_rows);
    tcase_add_test(tests, what_does_not_fit_is_refused);
    tcase_add_loop_test(tests, what_cannot_work_is_refused, 0, sizeof refused / sizeof *refused);
    return run_suite("train/tbptt", tests);
}

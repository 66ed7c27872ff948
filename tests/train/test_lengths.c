/* test_lengths.c: samples shorter than their array (--lengths), and several documents in one text (--document-end).
 * tests/engine/test_golden.c compares such layers with PyTorch's on packed sequences. */
#include "train/tasks/task.h"
#include "train/data/loader.h"

#include "tests/suite.h"
#include "tests/train/train_test.h"

#include <math.h>

enum { N = 12, T = 6, F = 2 };
#define SMALL "--task=classify --hidden=5 --layers=2 --threads=1 --batch=4 --tile=2 --lr=0.05 --steps=8 "

static int32_t lengths[N];

/* Features with `padding` after the ends. */
static const char *make_features(const char *name, float padding) {
    float x[N][T][F];
    for (int i = 0; i < N; i++) {
        lengths[i] = 1 + (i * 5) % T;
        for (int t = 0; t < T; t++)
            for (int k = 0; k < F; k++) x[i][t][k] = t < lengths[i] ? sinf((float)(i * 7 + t * 3 + k)) : padding;
    }
    return make_npy(name, "<f4", "(12, 6, 2)", x, sizeof x);
}

static const char *make_labels(void) {
    uint8_t label[N];
    for (int i = 0; i < N; i++) label[i] = (uint8_t)(i % 3);
    return make_npy("y.npy", "|u1", "(12,)", label, sizeof label);
}
static const char *make_lengths(const char *name) { return make_npy(name, "<i4", "(12,)", lengths, sizeof lengths); }

static void train(const char *x, const char *flags, const char *run) {
    char metrics[16];
    snprintf(metrics, sizeof metrics, "%s.jsonl", run);
    ck_runs("train " SMALL "--data=%s --labels=%s --lengths=%s %s --metrics=%s --save=%s", x, make_labels(),
            make_lengths("l.npy"), flags, in_scratch(metrics), in_scratch(run));
}

/* Padding is never read, not even NaN. An evaluation sees the same samples as training. */
START_TEST(padding_does_not_matter) {
    static const char *const flags[] = {"", "--bidirectional", "--model=gru --bidirectional --checkpoint-segments=2",
                                        "--model=mingru", "--model=rnn --batch=12"};
    char *zeros = strdup(make_features("zeros.npy", 0)), *others = strdup(make_features("others.npy", NAN));
    train(zeros, flags[_i], "a");
    train(others, flags[_i], "b");
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
    const char *eval = "eval --resume=%s --data=%s --labels=%s --lengths=%s";
    ck_assert_int_eq(run_program(eval, in_scratch("a"), zeros, make_labels(), in_scratch("l.npy")), 0);
    char *first = strdup(program_output);
    ck_assert_int_eq(run_program(eval, in_scratch("b"), others, make_labels(), in_scratch("l.npy")), 0);
    ck_assert_str_eq(strstr(first, "loss "), strstr(program_output, "loss "));
    ck_refuses(2, "--data|--lengths=FILE", "eval --resume=%s --data=%s --labels=%s", in_scratch("b"), others,
               make_labels());
    ck_refuses(2, "--lengths=FILE", "predict --resume=%s --data=%s", in_scratch("b"), others);
    free(first), free(zeros), free(others);
}
END_TEST

/* A sample gives the same result as in an array that ends with it. */
START_TEST(short_samples_match_short_arrays) {
    float x[2][3][F] = {{{0.5f, 1}, {2, -1}, {9, 9}}, {{1, 1}, {-2, 0.25f}, {9, 9}}}, shorter[2][2][F];
    const int64_t two[] = {2, 2};
    for (int i = 0; i < 2; i++) memcpy(shorter[i], x[i], sizeof shorter[i]);
    char *y = strdup(make_npy("y.npy", "|u1", "(2,)", "\0\1", 2)),
         *l = strdup(make_npy("l.npy", "<i8", "(2,)", two, sizeof two));
    static const char *const ways[] = {"", "--bidirectional", "--bidirectional --layers=1",
                                       "--bidirectional --model=lstm --proj-size=3"};
    for (int i = 0; i < 4; i++) {
        const char *flags = ways[i];
        ck_runs("train " SMALL "--batch=2 --data=%s --labels=%s --lengths=%s --metrics=%s %s",
                make_npy("x.npy", "<f4", "(2, 3, 2)", x, sizeof x), y, l, in_scratch("a.jsonl"), flags);
        ck_runs("train " SMALL "--batch=2 --data=%s --labels=%s --metrics=%s %s",
                make_npy("s.npy", "<f4", "(2, 2, 2)", shorter, sizeof shorter), y, in_scratch("b.jsonl"), flags);
        ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
        ck_assert_int_eq(remove(in_scratch("a.jsonl")) | remove(in_scratch("b.jsonl")), 0);
    }
    free(y), free(l);
}
END_TEST

/* Longer samples than in training are used completely, or in the part that the user chose. */
START_TEST(longer_samples_are_not_truncated_silently) {
    static const char *const y = "y.npy";
    float x[2][4][F] = {{{0.5f, 1}, {2, -1}, {9, 9}, {1, 2}}, {{1, 1}, {-2, 0.25f}, {9, 9}, {0, 1}}}, shorter[2][2][F];
    for (int i = 0; i < 2; i++) memcpy(shorter[i], x[i], sizeof shorter[i]);
    make_npy(y, "|u1", "(2,)", "\0\1", 2);
    char *label = strdup(in_scratch(y)), *run = strdup(in_scratch("run"));
    char *two = strdup(make_npy("s.npy", "<f4", "(2, 2, 2)", shorter, sizeof shorter));
    const char *four = make_npy("x.npy", "<f4", "(2, 4, 2)", x, sizeof x),
               *no = "4 timesteps|trained on 2|--seq-len=2|--seq-len=4";
    ck_runs("train " SMALL "--batch=2 --data=%s --labels=%s --save=%s", two, label, run);
    ck_refuses(2, no, "eval --resume=%s --data=%s --labels=%s", run, four, label);
    ck_refuses(2, no, "predict --resume=%s --data=%s", run, four);
    ck_refuses(2, no, "train " SMALL "--batch=2 --data=%s --labels=%s --eval-data=%s --eval-labels=%s", two, label,
               four, label);
    ck_runs("predict --resume=%s --data=%s --seq-len=2", run, four);
    char *cut = strdup(program_output);
    ck_runs("predict --resume=%s --data=%s", run, two);
    ck_assert_str_eq(program_output, cut);
    ck_runs("predict --resume=%s --data=%s --seq-len=4", run, four);
    ck_assert_str_ne(program_output, cut);
    const char *chosen = in_scratch("chosen"); /* a run with a chosen part is resumed */
    ck_runs("train " SMALL "--batch=2 --data=%s --labels=%s --eval-data=%s --eval-labels=%s --seq-len=2 --save=%s",
            four, label, four, label, chosen);
    ck_runs("train --resume=%s --steps=10", chosen);
    free(cut), free(two), free(run), free(label);
}
END_TEST

/* Labels without times, and a second session for the last, short batch. */
START_TEST(transcripts_end_with_their_samples) {
    int32_t label[N][2];
    char *zeros = strdup(make_features("zeros.npy", 0)), *others = strdup(make_features("others.npy", NAN));
    for (int i = 0; i < N; i++) label[i][0] = lengths[i] > 1 ? 1 + i % 2 : -1, label[i][1] = lengths[i] > 3 ? 2 : -1;
    const char *y = make_npy("t.npy", "<i4", "(12, 2)", label, sizeof label), *l = make_lengths("l.npy");
    char *printed[2];
    for (int i = 0; i < 2; i++) {
        const char *x = i ? others : zeros, *metrics = in_scratch(i ? "b.jsonl" : "a.jsonl");
        ck_runs("train --task=transcribe --hidden=5 --layers=1 --threads=1 --batch=5 --tile=2 --lr=0.05 --steps=8 "
                "--bidirectional --data=%s --labels=%s --lengths=%s --metrics=%s --save=%s",
                x, y, l, metrics, in_scratch(i ? "b" : "a"));
        ck_runs("predict --resume=%s --data=%s --lengths=%s", in_scratch(i ? "b" : "a"), x, l);
        printed[i] = strdup(program_output);
    }
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
    ck_assert_str_eq(printed[0], printed[1]);
    label[0][0] = label[0][1] = 1; /* of a sample of one timestep */
    y = make_npy("t.npy", "<i4", "(12, 2)", label, sizeof label);
    ck_assert_int_eq(run_program("train --task=transcribe --data=%s --labels=%s --lengths=%s", zeros, y, l), 2);
    ck_says_all(program_errors, "sample 0|2 labels|3 timesteps|1");
    free(zeros), free(others), free(printed[0]), free(printed[1]);
}
END_TEST

static long long held(const char *flags) {
    const char *words = "the program's own data and batches take ";
    ck_assert_int_eq(run_program("train " SMALL "--memory-budget=1 --data=%s --labels=%s %s", in_scratch("x.npy"),
                                 make_labels(), flags),
                     2);
    ck_says_all(program_errors, words);
    return strtoll(strstr(program_errors, words) + strlen(words), NULL, 10);
}

/* Memory for each sample's length, and for each row of a batch its end, twice, and a mark per timestep. */
START_TEST(lengths_count_in_the_budget) {
    char flags[300];
    make_features("x.npy", 0);
    snprintf(flags, sizeof flags, "--lengths=%s", make_lengths("l.npy"));
    ck_assert_int_eq(held(flags) - held(""), 4 * N + 4 * (2 * 4 + T * 4));
}
END_TEST

static void refused(const char *flags, const char *part) {
    ck_assert_int_eq(run_program("train " SMALL "%s", flags), 2);
    ck_assert_msg(says_all(program_errors, part), "%s: %s", flags, program_errors);
}

START_TEST(invalid_lengths_are_refused) {
    static const int32_t none[N] = {1, 1, 0}, beyond[N] = {1, T + 1};
    static const float half[N] = {1, 1, 1, 2.5f};
    const char *x = make_features("x.npy", 0), *y = make_labels();
    char flags[2048];
    const struct {
        const char *path, *part;
    } wrong[] = {
        {make_npy("0.npy", "<i4", "(12,)", none, sizeof none), "sample 2|length 0|1 to 6"},
        {make_npy("7.npy", "<i4", "(12,)", beyond, sizeof beyond), "sample 1 has length 7"},
        {make_npy("h.npy", "<f4", "(12,)", half, sizeof half), "sample 3 has length 2.5"},
        {make_npy("n.npy", "<i4", "(3,)", none, 12), "lengths|12 samples"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(flags, sizeof flags, "--data=%s --labels=%s --lengths=%s", x, y, wrong[i].path);
        refused(flags, wrong[i].part);
    }
    snprintf(flags, sizeof flags, "--data=%s --labels=%s --lengths=%s --eval-data=%s --eval-labels=%s", x, y,
             make_lengths("l.npy"), x, y);
    refused(flags, "--eval-lengths=FILE");
    ck_assert_int_eq(run_program("train --data=%s --lengths=%s", x, in_scratch("l.npy")), 2);
    ck_says_all(program_errors, "--lengths");
}
END_TEST

/* Every plan sees the same samples; tiles after a batch's longest sample are skipped. */
START_TEST(buckets_have_similar_lengths) {
    const char *x = make_features("x.npy", NAN);
    train(x, "--bucket-by-length", "a");
    train(x, "--bucket-by-length --checkpoint-segments=3", "b");
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
    train(x, "", "c");
    ck_assert_int_eq(run_program("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("c.jsonl")), 1);
    char flags[1024];
    snprintf(flags, sizeof flags, "--data=%s --labels=%s --bucket-by-length", x, make_labels());
    refused(flags, "--lengths=FILE");
}
END_TEST

/* ---- Documents -------------------------------------------------------------------------------------------------- */

START_TEST(documents_start_after_ends) {
    rm_data_source source = {.data = make_file("t", "abcd|ef|ghijk", 13), .timesteps = 3, .document_end = 1 + '|'};
    rm_dataset *d;
    rm_batch batch;
    ck_ok(rm_task_open("lm", &source, &d));
    ck_ok(rm_batch_create(d, 4, &batch));
    for (int i = 0; i < 4; i++) ck_ok(rm_batch_put(&batch, i, i));
    static const char *const wanted[] = {"100", "001", "001", "000"}; /* of abc d|e f|g hij */
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < 3; t++)
            ck_assert_msg(((float *)batch.data[RM_BEGINS])[t * 4 + i] == (float)(wanted[i][t] - '0'),
                          "sample %d, timestep %d", i, t);
    rm_batch_free(&batch);
    rm_dataset_close(d);
    source.document_end = 1 + 256;
    ck_fails(rm_task_open("lm", &source, &d), REMAT_INVALID, "--document-end=256|0 to 255");
}
END_TEST

/* Documents of seven letters, each with an end. */
static const char *make_documents(void) {
    char text[30 * 8 + 1];
    for (size_t i = 0; i < sizeof text; i++) text[i] = i % 8 == 7 ? '|' : "abcdefg"[(i * (3 + i / 8)) % 7];
    return make_file("t", text, sizeof text);
}

/* If documents are as long as samples, no state is carried over: stateful rows have the losses of rows without carried
 * states. */
START_TEST(states_do_not_cross_a_document_end) {
    const char *path = make_documents();
    const char *flags = "--hidden=6 --threads=1 --batch=3 --seq-len=8 --steps=10 --no-shuffle --lr=0.05 --tile=3";
    ck_runs("train --data=%s %s --stateful --document-end=124 --metrics=%s", path, flags, in_scratch("a.jsonl"));
    ck_runs("train --data=%s %s --stateful --metrics=%s", path, flags, in_scratch("b.jsonl"));
    ck_assert_int_eq(run_program("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl")), 1);
    ck_runs("train --data=%s %s --stateful --document-end=124 --metrics=%s --checkpoint-segments=2", path, flags,
            in_scratch("c.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("c.jsonl"));
}
END_TEST

static const char *const models[] = {"lstm",
                                     "gru",
                                     "mingru",
                                     "minlstm",
                                     "mamba",
                                     "gdn",
                                     "xlstm",
                                     "xlstm --slstm-at=none --heads=2",
                                     "recurrentgemma",
                                     "recurrentgemma --hidden=8 --attention-at=1",
                                     "mamba2",
                                     "xlstm_large",
                                     "m2rnn",
                                     "rwkv7",
                                     "lstm --proj-size=4"};
enum { MODELS = sizeof models / sizeof *models };

/* With carried states, documents as long as samples start like samples. */
START_TEST(packed_documents_match_separate_documents) {
    char flags[256];
    const char *path = make_documents();
    snprintf(flags, sizeof flags,
             "--hidden=6 --threads=1 --batch=1 --steps=20 --no-shuffle --lr=0.05 --tile=3 --model=%s", models[_i]);
    ck_runs("train --data=%s %s --seq-len=8 --metrics=%s", path, flags, in_scratch("a.jsonl"));
    ck_runs("train --data=%s %s --seq-len=8 --stateful --document-end=124 --metrics=%s", path, flags,
            in_scratch("b.jsonl"));
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
}
END_TEST

/* The text that the program writes after a prompt. */
static const char *continuation(const char *from, const char *prompt) {
    ck_runs("sample %s --prompt=%s --length=250 --seed=3", from, prompt);
    ck_assert_msg(!strncmp(program_output, prompt, strlen(prompt)), "%s", program_output);
    return program_output + strlen(prompt);
}

/* As in training, a document after an end starts like the first one. The training state has the flag; weights alone do
 * not. */
START_TEST(sampling_restarts_after_a_document_end) {
    char state[300], weights[300];
    ck_runs("train --data=%s --hidden=24 --model=%s --threads=1 --batch=2 --steps=20 --lr=0.1 --seq-len=8 --save=%s "
            "--document-end=124",
            make_documents(), models[_i], in_scratch("st"));
    snprintf(state, sizeof state, "--resume=%s", in_scratch("st"));
    snprintf(weights, sizeof weights, "--init=%s/step-00000020/model.safetensors", in_scratch("st"));
    char *alone = strdup(continuation(state, "b"));
    ck_assert_str_eq(continuation(state, "dace|b"), alone);
    ck_assert_str_ne(continuation(weights, "dace|b"), alone);
    strcat(weights, " --document-end=124");
    ck_assert_str_eq(continuation(weights, "dace|b"), alone);
    ck_refuses(2, "--document-end=256|token", "sample %s --document-end=256", weights);
    free(alone);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("lengths");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, padding_does_not_matter, 0, 5);
    tcase_add_test(tcase, short_samples_match_short_arrays);
    tcase_add_test(tcase, longer_samples_are_not_truncated_silently);
    tcase_add_test(tcase, transcripts_end_with_their_samples);
    tcase_add_test(tcase, lengths_count_in_the_budget);
    tcase_add_test(tcase, invalid_lengths_are_refused);
    tcase_add_test(tcase, buckets_have_similar_lengths);
    tcase_add_test(tcase, documents_start_after_ends);
    tcase_add_test(tcase, states_do_not_cross_a_document_end);
    tcase_add_loop_test(tcase, packed_documents_match_separate_documents, 0, MODELS);
    tcase_add_loop_test(tcase, sampling_restarts_after_a_document_end, 0, MODELS);
    return run_cases("lengths", tcase);
}

/* test_transcribe.c: --task=transcribe: labels are learned without their times; `remat eval` counts what `remat
 * predict` reads; invalid rows of labels are refused. */
#include "train/data/npy.h"
#include "train/run/outputs.h"

#include "tests/train/train_test.h"

#include <math.h>

/* ---- Reading and comparing -------------------------------------------------------------------------------------- */

static const struct {
    const char *path, *labels;
} paths[] = {{"", ""}, {"000", ""}, {"1122", "12"}, {"1011", "11"}, {"0120", "12"}, {"222", "2"}, {"2102", "212"}};

/* Two samples in a batch: the other one's logits are not read. */
START_TEST(paths_are_read_as_ctc_reads_them) {
    enum { K = 3, MOST = 8 };
    float logits[MOST][2][K];
    int32_t out[MOST];
    int64_t T = (int64_t)strlen(paths[_i].path), n = (int64_t)strlen(paths[_i].labels);
    for (int t = 0; t < MOST; t++)
        for (int k = 0; k < K; k++) logits[t][0][k] = 9, logits[t][1][k] = t < T && paths[_i].path[t] == '0' + k;
    ck_assert_int_eq(rm_transcript_read(logits[0][1], T, sizeof logits[0] / sizeof(float), K, out), n);
    for (int64_t i = 0; i < T; i++) ck_assert_int_eq(out[i], i < n ? paths[_i].labels[i] - '0' : RM_NO_LABEL);
    ck_assert_int_eq(rm_transcript_length(out, T), n);
}
END_TEST

static const struct {
    const char *a, *b;
    int64_t apart;
} pairs[] = {{"", "", 0},      {"abc", "", 3},           {"", "ab", 2},   {"abc", "abc", 0}, {"abc", "axc", 1},
             {"abc", "bc", 1}, {"kitten", "sitting", 3}, {"ab", "ba", 2}, {"aaaa", "aa", 2}, {"saturday", "sunday", 3}};

static int64_t spell(const char *word, int32_t *out) {
    int64_t n = 0;
    for (; word[n]; n++) out[n] = word[n];
    return n;
}

START_TEST(edits_are_counted) {
    int32_t a[16], b[16];
    int64_t n = spell(pairs[_i].a, a), m = spell(pairs[_i].b, b), scratch[16];
    ck_assert_int_eq(rm_edit_distance(a, n, b, m, scratch), pairs[_i].apart);
    ck_assert_int_eq(rm_edit_distance(b, m, a, n, scratch), pairs[_i].apart);
}
END_TEST

/* ---- The program ------------------------------------------------------------------------------------------------ */

enum { N = 203, T = 24, F = 3, S = 4 };
#define SMALL "--hidden=24 --layers=1 --threads=1 --batch=16 --bidirectional --lr=0.01 --seed=1 "

static const char *make_array(const char *name, const char *type, const char *shape, const void *data, size_t bytes) {
    char *file = calloc(1, 128 + bytes);
    memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
    memset(file + 10, ' ', 118);
    int n = snprintf(file + 10, 118, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, shape);
    file[10 + n] = ' ';
    memcpy(file + 128, data, bytes);
    const char *path = make_file(name, file, 128 + bytes);
    free(file);
    return path;
}

static uint32_t draw(uint32_t n) {
    static uint64_t seed = 5;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static float x[N][T][F];
static int32_t y[N][S];
static const char *x_path, *y_path;

/* Up to four labels: each one's feature is high for two or three timesteps, followed by a pause. */
static void make_toy(void) {
    memset(x, 0, sizeof x);
    memset(y, -1, sizeof y);
    for (int i = 0; i < N; i++) {
        uint32_t t = draw(3);
        for (uint32_t k = 0, count = draw(S + 1); k < count; k++) {
            uint32_t label = 1 + draw(F), steps = 2 + draw(2);
            for (uint32_t end = t + steps; t < end; t++) x[i][t][label - 1] = 1;
            y[i][k] = (int32_t)label, t += 1 + draw(2);
        }
    }
    for (float *at = x[0][0]; at < x[N - 1][T - 1] + F; at++) *at += (float)draw(100) / 500;
    x_path = make_array("x.npy", "<f4", "203, 24, 3", x, sizeof x);
    y_path = make_array("y.npy", "<i4", "203, 4", y, sizeof y);
}

static double number_after(const char *label) {
    const char *at = strstr(program_output, label);
    ck_assert_msg(at, "no %s in %s", label, program_output);
    return strtod(at + strlen(label), NULL);
}

/* The label error rate of the rows that `remat predict` printed, in percent. */
static double errors_of_rows(void) {
    const char *at = program_output;
    char *end;
    int64_t wrong = 0, all = 0, scratch[S + 1];
    for (int i = 0; i < N; i++) {
        int32_t row[T];
        for (int t = 0; t < T; t++, at = end + 1) {
            row[t] = (int32_t)strtol(at, &end, 10);
            ck_assert_msg(end > at && *end == (t + 1 < T ? ',' : '\n'), "row %d: %.60s", i, at);
        }
        int64_t m = rm_transcript_length(y[i], S);
        wrong += rm_edit_distance(row, rm_transcript_length(row, T), y[i], m, scratch);
        all += m;
    }
    ck_assert_int_eq(*at, 0);
    return 100.0 * (double)wrong / (double)all;
}

/* At first almost no label is read. The last batch of 16 is short. */
START_TEST(labels_are_learned_without_their_times) {
    char *state = in_scratch("st");
    make_toy();
    ck_runs("train --task=transcribe --data=%s --labels=%s " SMALL "--steps=1 --save=%s", x_path, y_path, state);
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, x_path, y_path);
    ck_assert_msg(number_after("label error rate ") > 60, "%s", program_output);
    ck_runs("train --resume=%s --data=%s --labels=%s --steps=240 --eval-data=%s --eval-labels=%s --eval-every=120",
            state, x_path, y_path, x_path, y_path);
    ck_says_all(program_output, "label error rate");
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, x_path, y_path);
    double rate = number_after("label error rate ");
    ck_assert_msg(rate < 10, "%s", program_output);
    ck_runs("predict --resume=%s --data=%s", state, x_path);
    ck_assert_msg(fabs(errors_of_rows() - rate) < 0.006, "%g %%, not %g %%", errors_of_rows(), rate);
}
END_TEST

/* The printed rows. */
START_TEST(rows_are_written_as_npy) {
    char *state = in_scratch("st"), *npy = in_scratch("read.npy");
    uint8_t file[RM_NPY_HEADER + 4 * N * T];
    rm_array array;
    make_toy();
    ck_runs("train --task=transcribe --data=%s --labels=%s " SMALL "--steps=1 --save=%s", x_path, y_path, state);
    ck_runs("predict --resume=%s --data=%s --out=%s", state, x_path, npy);
    FILE *in = fopen(npy, "rb");
    ck_assert_uint_eq(fread(file, 1, sizeof file, in), sizeof file);
    fclose(in);
    ck_ok(rm_npy_parse(file, sizeof file, npy, &array));
    ck_assert(array.rank == 2 && array.dim[0] == N && array.dim[1] == T);
    ck_runs("predict --resume=%s --data=%s", state, x_path);
    const char *at = program_output;
    for (int i = 0; i < N * T; i++, at += strcspn(at, ",\n") + 1)
        ck_assert_int_eq(atoi(at), (int)rm_array_at(&array, i / T, i % T, 0));
}
END_TEST

START_TEST(segments_change_no_bit) {
    make_toy();
    static const char *const ways[] = {"", "--checkpoint-segments=6 --tile=4"};
    char *states[2];
    for (int i = 0; i < 2; i++) {
        states[i] = in_scratch(i ? "many.jsonl" : "one.jsonl");
        ck_runs("train --task=transcribe --data=%s --labels=%s " SMALL "--tile=4 --steps=5 --metrics=%s %s", x_path,
                y_path, states[i], ways[i]);
    }
    ck_runs("report %s %s", states[0], states[1]);
    ck_says_all(program_output, "identical");
}
END_TEST

/* Evaluation data may have no labels at all; then no rate is reported, not even 0 %. */
START_TEST(no_labels_have_no_error_rate) {
    make_toy();
    const char *state = in_scratch("st");
    ck_runs("train --task=transcribe --data=%s --labels=%s " SMALL "--steps=1 --save=%s", x_path, y_path, state);
    memset(y, -1, sizeof y);
    const char *none = make_array("none.npy", "<i4", "203, 4", y, sizeof y);
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, x_path, none);
    ck_says_all(program_output, "label error rate|labels");
    ck_runs("eval --resume=%s --data=%s --labels=%s --json", state, x_path, none);
    ck_says_all(program_output, "\"label_error_rate\":null");
}
END_TEST

static const struct {
    int32_t row[S];
    const char *says;
} rows[] = {{{1, 0, -1, -1}, "label 0|sample 1|1..3|blank|-1"},
            {{1, 4, -1, -1}, "label 4|sample 1|1..3"},
            {{1, -1, 2, -1}, "sample 1|label|-1"},
            {{2, 2, 2, -1}, "sample 1|3 labels|5 timesteps|4"}};

START_TEST(invalid_rows_of_labels_are_refused) {
    float few[2 * 4] = {0};
    int32_t both[2][S] = {{1, 2, 3, -1}};
    memcpy(both[1], rows[_i].row, sizeof both[1]);
    const char *data = make_array("few.npy", "<f4", "2, 4", few, sizeof few),
               *labels = make_array("rows.npy", "<i4", "2, 4", both, sizeof both);
    ck_refuses(2, rows[_i].says, "train --task=transcribe --data=%s --labels=%s --classes=4 --batch=2", data, labels);
}
END_TEST

START_TEST(unsupported_flags_are_refused) {
    make_toy();
    ck_refuses(2, "transcribe|--data=FILE|[N,T,F]|--labels=FILE", "train --task=transcribe --data=%s", x_path);
    ck_refuses(1, "labels|[N,S]|--data", "train --task=transcribe --data=%s --labels=%s", y_path, x_path);
    memset(y, -1, sizeof y);
    ck_refuses(2, "label|-1", "train --task=transcribe --data=%s --labels=%s", x_path,
               make_array("none.npy", "<i4", "203, 4", y, sizeof y));
    ck_refuses(2, "--tbptt", "train --task=transcribe --data=%s --labels=%s --tbptt=4", x_path, y_path);
    ck_refuses(2, "--model=cnn", "train --task=transcribe --data=%s --labels=%s --model=cnn", x_path, y_path);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("transcribe");
    tcase_add_loop_test(tests, paths_are_read_as_ctc_reads_them, 0, sizeof paths / sizeof *paths);
    tcase_add_loop_test(tests, edits_are_counted, 0, sizeof pairs / sizeof *pairs);
    tcase_add_test(tests, labels_are_learned_without_their_times);
    tcase_add_test(tests, rows_are_written_as_npy);
    tcase_add_test(tests, segments_change_no_bit);
    tcase_add_test(tests, no_labels_have_no_error_rate);
    tcase_add_loop_test(tests, invalid_rows_of_labels_are_refused, 0, sizeof rows / sizeof *rows);
    tcase_add_test(tests, unsupported_flags_are_refused);
    return run_suite("train/transcribe", tests);
}

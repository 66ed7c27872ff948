/* test_transcribe.c: --task=transcribe: labels are learnt without their times; what `remat predict` reads is what `remat eval`
 * counts; rows of labels that cannot be learnt are named. */
#include "train/data/npy.h"
#include "train/run/transcript.h"

#include "tests/train/train_test.h"

#include <math.h>

/* ---- Reading and comparing ------------------------------------------------------------------------------------------ */

static const struct {
    const char *path, *labels;
} paths[] = {{"", ""}, {"000", ""}, {"1122", "12"}, {"1011", "11"}, {"0120", "12"}, {"222", "2"}, {"2102", "212"}};

/* Two samples side by side: the other one's logits are not looked at. */
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

/* ---- The program ---------------------------------------------------------------------------------------------------- */

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

/* Up to four labels: of each its feature is up for two or three timesteps, with a pause behind. */
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

/* The label error rate of the rows that `remat predict` has printed, in percent. */
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

/* At first hardly a label is read. Batches of 16 leave a short one. */
START_TEST(labels_are_learnt_without_their_times) {
    char *state = in_scratch("st");
    make_toy();
    ck_runs("train --task=transcribe --data=%s --labels=%s " SMALL "--steps=1 --save=%s", x_path, y_path, state);
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, x_path, y_path);
    ck_assert_msg(number_after("label error rate ") > 60, "%s", program_output);
    ck_runs("train --resume=%s --data=%s --labels=%s --steps=240 --eval-data=%s --eval-labels=%s --eval-every=120",
            state, x_path, y_path, x_path, y_path);
    ck_assert_msg(strstr(program_output, "label error rate"), "%s", program_output);
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, x_path, y_path);
    double rate = number_after("label error rate ");
    ck_assert_msg(rate < 10, "%s", program_output);
    ck_runs("predict --resume=%s --data=%s", state, x_path);
    ck_assert_msg(fabs(errors_of_rows() - rate) < 0.006, "%g %%, not %g %%", errors_of_rows(), rate);
}
END_TEST

/* The rows that are printed. */
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
    ck_assert_msg(strstr(program_output, "identical, to the last bit"), "%s", program_output);
}
END_TEST

/* Data held out may be without labels altogether: then there is no rate, and no 0 % either. */
START_TEST(no_labels_have_no_error_rate) {
    make_toy();
    const char *state = in_scratch("st");
    ck_runs("train --task=transcribe --data=%s --labels=%s " SMALL "--steps=1 --save=%s", x_path, y_path, state);
    memset(y, -1, sizeof y);
    const char *none = make_array("none.npy", "<i4", "203, 4", y, sizeof y);
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, x_path, none);
    ck_assert_msg(strstr(program_output, "no label error rate: there are no labels"), "%s", program_output);
    ck_runs("eval --resume=%s --data=%s --labels=%s --json", state, x_path, none);
    ck_assert_msg(strstr(program_output, "\"label_error_rate\":null"), "%s", program_output);
}
END_TEST

static const struct {
    int32_t row[S];
    const char *says;
} rows[] = {{{1, 0, -1, -1}, "label 0 of sample 1 is none of 1..3: 0 is the blank, and -1 fills up rows"},
            {{1, 4, -1, -1}, "label 4 of sample 1 is none of 1..3"},
            {{1, -1, 2, -1}, "sample 1 has a label behind -1, which ends its row"},
            {{2, 2, 2, -1}, "sample 1 has 3 labels, which need 5 timesteps, and there are 4: give longer samples"}};

START_TEST(rows_that_cannot_be_learnt_are_named) {
    float few[2 * 4] = {0};
    int32_t both[2][S] = {{1, 2, 3, -1}};
    memcpy(both[1], rows[_i].row, sizeof both[1]);
    const char *data = make_array("few.npy", "<f4", "2, 4", few, sizeof few),
               *labels = make_array("rows.npy", "<i4", "2, 4", both, sizeof both);
    ck_refuses(2, rows[_i].says, "train --task=transcribe --data=%s --labels=%s --classes=4 --batch=2", data, labels);
}
END_TEST

START_TEST(flags_that_do_not_fit_are_named) {
    make_toy();
    ck_refuses(2, "transcribe needs --data=FILE (.npy [N,T,F]) and --labels=FILE", "train --task=transcribe --data=%s",
               x_path);
    ck_refuses(1, "rows of labels have two, [N,S]: is this the file for --data?",
               "train --task=transcribe --data=%s --labels=%s", y_path, x_path);
    memset(y, -1, sizeof y);
    ck_refuses(2, "has no label but -1", "train --task=transcribe --data=%s --labels=%s", x_path,
               make_array("none.npy", "<i4", "203, 4", y, sizeof y));
    ck_refuses(2, "--tbptt", "train --task=transcribe --data=%s --labels=%s --tbptt=4", x_path, y_path);
    ck_refuses(2, "--model=cnn", "train --task=transcribe --data=%s --labels=%s --model=cnn", x_path, y_path);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("transcribe");
    tcase_add_loop_test(tests, paths_are_read_as_ctc_reads_them, 0, sizeof paths / sizeof *paths);
    tcase_add_loop_test(tests, edits_are_counted, 0, sizeof pairs / sizeof *pairs);
    tcase_add_test(tests, labels_are_learnt_without_their_times);
    tcase_add_test(tests, rows_are_written_as_npy);
    tcase_add_test(tests, segments_change_no_bit);
    tcase_add_test(tests, no_labels_have_no_error_rate);
    tcase_add_loop_test(tests, rows_that_cannot_be_learnt_are_named, 0, sizeof rows / sizeof *rows);
    tcase_add_test(tests, flags_that_do_not_fit_are_named);
    return run_suite("train/transcribe", tests);
}

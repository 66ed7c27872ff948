/* test_values.c: --task=regress: numbers as labels, one target per sample or per timestep. The loss of `remat eval` is
 * that of the values that `remat predict` writes. */
#include "train/data/dataset.h"

#include "tests/train/train_test.h"

#include <math.h>

enum { N = 7, T = 6, F = 3, V = 2 };
#define SMALL "--task=regress --hidden=5 --layers=1 --threads=1 --batch=4 --seed=2 "

static const char *make_floats(const char *name, const char *shape, const float *values, int count) {
    return make_npy(name, "<f4", shape, values, (size_t)count * sizeof *values);
}

static float features[N * T * F], answers[N * T * V];
static const char *data_path;

static void make_data(void) {
    for (int i = 0; i < N * T * F; i++) features[i] = (float)sin(0.37 * i);
    for (int i = 0; i < N * T * V; i++) answers[i] = (float)(2 * cos(0.91 * i));
    data_path = make_floats("x.npy", "(7, 6, 3)", features, N * T * F);
}

/* Shapes of labels: (N), (N,V), (N,T,V), and (N,T) with --every-step. */
static const struct {
    const char *shape, *flag, *predicted;
    int width;
} kinds[] = {{"(7,)", "", "(7, 1)", 1},
             {"(7, 2)", "", "(7, 2)", 2},
             {"(7, 6, 2)", "", "(7, 6, 2)", 12},
             {"(7, 6)", "--every-step", "(7, 6, 1)", 6}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const char *make_labels(int kind) {
    return make_floats("y.npy", kinds[kind].shape, answers, N * kinds[kind].width);
}

static double number_after(const char *label) {
    const char *at = strstr(program_output, label);
    ck_assert_msg(at, "no %s in %s", label, program_output);
    return strtod(at + strlen(label), NULL);
}

/* ---- Losses ----------------------------------------------------------------------------------------------------- */

static double loss_of(const char *name, double d) {
    d = fabs(d);
    if (!strcmp(name, "mae")) return d;
    if (!strcmp(name, "huber")) return d <= 1 ? d * d / 2 : d - 0.5;
    if (!strcmp(name, "bce")) return -log(1 - d); /* of a probability and a label, 0 or 1 */
    return d * d;
}

/* Computed from the rows of CSV that the program printed, in the order of the labels' file. */
static double loss_of_rows(const char *name, int width) {
    const char *at = program_output;
    char *end;
    double sum = 0;
    for (int i = 0; i < N * width; i++, at = end + 1) {
        sum += loss_of(name, strtod(at, &end) - (double)answers[i]);
        ck_assert_msg(end > at && *end == ((i + 1) % width ? ',' : '\n'), "number %d: %.60s", i, at);
    }
    ck_assert_int_eq(*at, 0);
    return sum / (N * width);
}

static void check_file(const char *state, const char *shape) {
    char header[128], *npy = in_scratch("p.npy");
    ck_runs("predict --resume=%s --data=%s --out=%s", state, data_path, npy);
    FILE *in = fopen(npy, "rb");
    ck_assert_uint_eq(fread(header, 1, sizeof header, in), sizeof header);
    fclose(in);
    header[127] = 0;
    ck_assert_msg(strstr(header + 10, shape), "%s is not of shape %s", header + 10, shape);
}

/* The last batch of 4 is short, and 6 timesteps are not a multiple of the tile of 4. */
START_TEST(eval_scores_predicted_numbers) {
    static const char *const losses[] = {"mse", "mae", "huber", "bce"};
    static const char *const models[] = {"lstm", "gru --bidirectional", "mingru", "lstm"};
    int kind = _i % KINDS, loss = _i / KINDS;
    make_data();
    for (size_t i = 0; loss == 3 && i < sizeof answers / sizeof *answers; i++) answers[i] = answers[i] > 0;
    const char *labels = make_labels(kind), *state = in_scratch("st");
    ck_runs("train " SMALL "--model=%s --loss=%s --data=%s --labels=%s --tile=4 --checkpoint-segments=2 --lr=0.01 "
            "--steps=5 --save=%s %s",
            models[loss], losses[loss], data_path, labels, state, kinds[kind].flag);
    ck_runs("eval --resume=%s --data=%s --labels=%s", state, data_path, labels);
    ck_assert_msg(!strstr(program_output, "accuracy"), "%s", program_output);
    double eval = number_after("loss ");
    ck_runs("predict --resume=%s --data=%s", state, data_path);
    double ours = loss_of_rows(losses[loss], kinds[kind].width);
    ck_assert_msg(fabs(ours - eval) < 1e-6 * (1 + eval), "%s of %s: %.9g, not %.9g", losses[loss], kinds[kind].shape,
                  ours, eval);
    check_file(state, kinds[kind].predicted);
}
END_TEST

/* The next number of a wave, at each timestep. */
START_TEST(a_wave_is_forecast) {
    static float x[40 * 20], y[40 * 20];
    for (int i = 0; i < 40; i++)
        for (int t = 0; t < 20; t++) {
            x[i * 20 + t] = (float)sin(0.5 * t + 0.3 * i);
            y[i * 20 + t] = (float)sin(0.5 * (t + 1) + 0.3 * i);
        }
    const char *data = make_floats("wave.npy", "(40, 20, 1)", x, 800),
               *next = make_floats("next.npy", "(40, 20, 1)", y, 800);
    ck_runs("train --task=regress --data=%s --labels=%s --eval-data=%s --eval-labels=%s --hidden=16 --layers=1 "
            "--threads=1 --lr=0.02 --steps=150",
            data, next, data, next);
    double loss = number_after("eval    150  loss ");
    ck_assert_msg(loss < 0.02, "%g, of a wave whose mean square is 0.5", loss);
}
END_TEST

/* The same bits for every plan, with truncated windows, and after a resume. */
START_TEST(regressions_have_the_same_bits_in_plans_and_resumes) {
    char run[800];
    make_data();
    const char *labels = make_labels(2), *a = in_scratch("a"), *b = in_scratch("b");
    snprintf(run, sizeof run, SMALL "--data=%s --labels=%s --tile=2 --tbptt=%d --dropout=0", data_path, labels,
             _i ? 0 : 3);
    ck_runs("train %s --steps=4 --save=%s", run, a);
    ck_runs("train %s --steps=2 --save=%s --checkpoint-segments=2", run, b);
    ck_runs("train --resume=%s --steps=4 --checkpoint=lean", b);
    char command[600];
    snprintf(command, sizeof command, "cmp %s/step-00000004/model.safetensors %s/step-00000004/model.safetensors", a,
             b);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* ---- Refusals --------------------------------------------------------------------------------------------------- */

START_TEST(unsuitable_numbers_are_refused) {
    static const struct {
        const char *shape, *flags, *sentence;
        int count;
    } wrong[] = {{"(6, 2)", "", "6 samples|7", 12},
                 {"(7, 5, 1)", "", "5 timesteps|6", 35},
                 {"(7,)", "--every-step", "sample|model|timestep", 7},
                 {"(7, 6, 1)", "--values=1", "timestep|model|sample", 42},
                 {"(7, 2)", "--values=3", "2|model|3", 14},
                 {"(7, 2)", "--tbptt=3", "--tbptt=3|windows|[N,T,V]", 14},
                 {"(7, 2)", "--label-smoothing=0.1", "--task=lm, classify, copy, s5 or seq2seq", 14}};
    make_data();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_refuses(2, wrong[i].sentence, "train " SMALL "--data=%s --labels=%s %s", data_path,
                   make_floats("y.npy", wrong[i].shape, answers, wrong[i].count), wrong[i].flags);
    answers[3] = NAN;
    ck_refuses(2, "y.npy|number 1|sample 1|nan|--allow-nan", "train " SMALL "--data=%s --labels=%s", data_path,
               make_floats("y.npy", "(7, 2)", answers, 14));
    ck_refuses(2, "y.npy|number 0|timestep 3|sample 0|nan", "train " SMALL "--data=%s --labels=%s", data_path,
               make_floats("y.npy", "(7, 6, 1)", answers, 42));
    answers[3] = 1.5f, answers[0] = answers[1] = answers[2] = 0;
    ck_refuses(2, "y.npy|number 1|sample 1|1.5|--loss=bce|0 to 1", "train " SMALL "--loss=bce --data=%s --labels=%s",
               data_path, make_floats("y.npy", "(7, 2)", answers, 14));
    ck_refuses(2, "--labels=FILE.npy", "train " SMALL "--data=%s", data_path);
    ck_refuses(2, "regress|--data=FILE", "train " SMALL);
    ck_refuses(2, "--loss=bce|--task=regress", "train --task=adding --loss=bce");
    ck_refuses(2, "--loss|--task=copy|regress or adding",
               "train --task=copy "
               "--loss=mae");
}
END_TEST

/* Other labels must not change the kind of a saved model's outputs. */
START_TEST(numbers_of_another_kind_are_refused) {
    make_data();
    const char *state = in_scratch("st"), *labels = make_labels(2);
    ck_runs("train " SMALL "--data=%s --labels=%s --steps=1 --save=%s", data_path, labels, state);
    ck_refuses(2, "sample|model|timestep", "eval --resume=%s --data=%s --labels=%s", state, data_path,
               make_floats("z.npy", "(7,)", answers, 7));
    ck_refuses(2, "1|model|2", "eval --resume=%s --data=%s --labels=%s", state, data_path,
               make_floats("z.npy", "(7, 6, 1)", answers, 42));
    ck_refuses(2, "labels", "eval --resume=%s --data=%s", state, data_path);
    char weights[300];
    snprintf(weights, sizeof weights, "--init=%s/step-00000001/model.safetensors", state);
    ck_runs("eval " SMALL "%s --data=%s --labels=%s", weights, data_path, labels);
    answers[0] += 1;
    ck_refuses(2, "data|checksum", "train --resume=%s --steps=2 --labels=%s", state, make_labels(2));
}
END_TEST

/* A file of weights implies the number of outputs, and excludes some tasks. */
START_TEST(weights_imply_task_and_outputs) {
    make_data();
    char state[300], flags[400];
    snprintf(state, sizeof state, "%s", in_scratch("st"));
    ck_runs("train " SMALL "--data=%s --labels=%s --steps=1 --save=%s", data_path, make_labels(1), state);
    snprintf(flags, sizeof flags, "--init=%s/step-00000001/model.safetensors --data=%s", state, data_path);
    ck_runs("predict --resume=%s --data=%s", state, data_path);
    static char row[sizeof program_output];
    strcpy(row, program_output);
    ck_runs("predict --task=regress %s", flags);
    ck_assert_str_eq(program_output, row);
    ck_refuses(2, "head.weight|(2,5)", "predict --task=regress --values=7 %s", flags);
    for (int named = 0; named < 2; named++)
        ck_refuses(2, "embedding|--task=lm|--task=classify, regress, transcribe or adding", "eval %s --labels=%s %s",
                   flags, make_labels(1), named ? "--model=lstm" : "");
}
END_TEST

/* The message does not name flags that were not given. */
START_TEST(weights_of_other_tasks_are_refused) {
    static const char *const small = "--hidden=5 --layers=1 --threads=1 --batch=4 --steps=1";
    char pairs[300], both[300];
    snprintf(pairs, sizeof pairs, "%s", in_scratch("pairs"));
    snprintf(both, sizeof both, "%s", in_scratch("both"));
    ck_runs("train --task=seq2seq --generate=copy --samples=8 %s --save=%s", small, pairs);
    ck_runs("eval --init=%s/step-00000001/model.safetensors --generate=copy --samples=8", pairs);
    ck_runs("eval --model=lstm --init=%s/step-00000001/model.safetensors --generate=copy --samples=8", pairs);
    ck_refuses(2, "--task=lm", "eval --task=lm --init=%s/step-00000001/model.safetensors --generate=copy", pairs);
    ck_runs("train --task=copy --bidirectional --seq-len=24 --samples=8 %s --save=%s", small, both);
    ck_runs("eval --task=copy --init=%s/step-00000001/model.safetensors --seq-len=24 --samples=8", both);
    ck_refuses(2, "direction|--task=lm|--task=copy or s5",
               "eval --init=%s/step-00000001/model.safetensors --seq-len=24", both);
    ck_runs("train --task=adding --model=mingru --seq-len=24 --samples=8 %s --save=%s", small, in_scratch("minimal"));
    ck_refuses(2, "embedding", "plan --init=%s/step-00000001/model.safetensors", in_scratch("minimal"));
}
END_TEST

/* The sample's own row is NaN, and other rows are unchanged; training stops at a NaN. */
START_TEST(allow_nan_accepts_nan_in_data) {
    static char before[sizeof program_output];
    make_data();
    const char *state = in_scratch("st"), *labels = make_labels(1);
    ck_runs("train " SMALL "--data=%s --labels=%s --steps=2 --save=%s", data_path, labels, state);
    ck_runs("predict --resume=%s --data=%s", state, data_path);
    strcpy(before, program_output);
    features[2 * T * F + 4] = NAN;
    data_path = make_floats("x.npy", "(7, 6, 3)", features, N * T * F);
    ck_refuses(2, "sample 2|timestep 1|feature 1|nan", "predict --resume=%s --data=%s", state, data_path);
    ck_runs("predict --resume=%s --data=%s --allow-nan", state, data_path);
    const char *a = before, *b = program_output;
    for (int i = 0; i < N; i++, a = strchr(a, '\n') + 1, b = strchr(b, '\n') + 1) {
        size_t length = strcspn(a, "\n") + 1;
        ck_assert_msg(i == 2 ? strstr(b, "nan") && strstr(b, "nan") < strchr(b, '\n') : !strncmp(a, b, length),
                      "row %d: %.30s, then %.30s", i, a, b);
    }
    ck_refuses(2, "nan|input|data", "train " SMALL "--batch=7 --data=%s --labels=%s --allow-nan", data_path, labels);
    make_data();
    answers[1] = NAN;
    ck_refuses(2, "nan|input|data", "train " SMALL "--batch=7 --data=%s --labels=%s --allow-nan", data_path,
               make_labels(1));
    answers[1] = 0;
    answers[2 * 3 + 1] = NAN; /* in the second batch */
    ck_refuses(2, "nan|input|data", "train " SMALL "--batch=3 --no-shuffle --data=%s --labels=%s --allow-nan",
               data_path, make_labels(1));
    make_data();
    answers[1] = INFINITY;
    ck_refuses(2, "number 1|sample 0|inf", "train " SMALL "--data=%s --labels=%s --allow-nan", data_path,
               make_labels(1));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("values");
    tcase_add_loop_test(tests, eval_scores_predicted_numbers, 0, 4 * KINDS);
    tcase_add_test(tests, allow_nan_accepts_nan_in_data);
    tcase_add_test(tests, a_wave_is_forecast);
    tcase_add_loop_test(tests, regressions_have_the_same_bits_in_plans_and_resumes, 0, 2);
    tcase_add_test(tests, unsuitable_numbers_are_refused);
    tcase_add_test(tests, numbers_of_another_kind_are_refused);
    tcase_add_test(tests, weights_imply_task_and_outputs);
    tcase_add_test(tests, weights_of_other_tasks_are_refused);
    return run_suite("train/values", tests);
}

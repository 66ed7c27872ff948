/* test_predict.c: `remat eval` scores exactly what `remat predict` writes, sample by sample; saved weights are refused
 * on data of another shape than in training. */
#include "train/tasks/task.h"
#include "train/data/dataset.h"
#include "train/data/npy.h"

#include "tests/train/train_test.h"

#include <math.h>

enum { N = 23, SIDE = 3, CLASSES = 3 };
#define SMALL "--hidden=5 --layers=1 --threads=1 --batch=4 "

static uint8_t labels[8 + N] = {0, 0, 8, 1, 0, 0, 0, N};
static const char *images_path, *labels_path;

static void make_images(void) {
    uint8_t images[16 + N * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    for (int i = 0; i < N * SIDE * SIDE; i++) images[16 + i] = (uint8_t)(i * 37);
    for (int i = 0; i < N; i++) labels[8 + i] = (uint8_t)(i % CLASSES);
    images_path = make_file("images", images, sizeof images);
    labels_path = make_file("labels", labels, sizeof labels);
}

static double number_after(const char *label) {
    const char *at = strstr(program_output, label);
    ck_assert_msg(at, "no %s in %s", label, program_output);
    return strtod(at + strlen(label), NULL);
}

/* The rows of CSV that the program has printed. */
static void read_rows(int64_t rows, int64_t columns, double *out) {
    const char *at = program_output;
    char *end;
    for (int64_t i = 0; i < rows * columns; i++, at = end + 1) {
        out[i] = strtod(at, &end);
        ck_assert_msg(end > at && *end == ((i + 1) % columns ? ',' : '\n'), "row %lld: %.60s", (long long)(i / columns),
                      at);
    }
    ck_assert_int_eq(*at, 0);
}

/* ---- Agreement with eval ----------------------------------------------------------------------------------------- */

/* The last batch of 4 is short. The run's plan, budget and shards do not matter, nor does another --batch. */
static void compare_with_eval(const char *state, const char *more) {
    double p[N * CLASSES], loss = 0;
    int right = 0;
    ck_runs("eval --resume=%s --data=%s --labels=%s %s", state, images_path, labels_path, more);
    double eval_loss = number_after("loss "), eval_accuracy = number_after("accuracy ");
    ck_runs("predict --resume=%s --data=%s %s", state, images_path, more);
    read_rows(N, CLASSES, p);
    for (int i = 0; i < N; i++) {
        const double *row = p + i * CLASSES;
        int best = 0;
        for (int k = 1; k < CLASSES; k++)
            if (row[k] > row[best]) best = k;
        right += best == labels[8 + i];
        loss -= log(row[labels[8 + i]]) / N;
        ck_assert(fabs(row[0] + row[1] + row[2] - 1) < 1e-6);
    }
    ck_assert_msg(fabs(100.0 * right / N - eval_accuracy) < 0.006, "%d of %d right, not %g %%", right, N,
                  eval_accuracy);
    ck_assert_msg(fabs(loss - eval_loss) < 1e-6, "loss %.9g, not %.9g", loss, eval_loss);
}

START_TEST(predicted_classes_match_eval) {
    static const char *const runs[] = {"", "--rows --checkpoint-segments=2", "--memory-budget=10MiB --calibration=off",
                                       "--deterministic-world=2"};
    make_images();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char state[16];
        snprintf(state, sizeof state, "st%zu", i);
        char *path = in_scratch(state);
        ck_runs("train --task=classify --data=%s --labels=%s " SMALL "--lr=0.05 --steps=20 --save=%s %s", images_path,
                labels_path, path, runs[i]);
        compare_with_eval(path, "");
        compare_with_eval(path, "--batch=7");
    }
}
END_TEST

/* A step over all samples with learning rate 0 has the accuracy of an evaluation. */
START_TEST(training_accuracy_matches_eval) {
    static const char *const runs[] = {"", "--rows --tile=1 --checkpoint-segments=2",
                                       "--memory-budget=10MiB --calibration=off"};
    make_images();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char *state = in_scratch(i == 0 ? "a" : i == 1 ? "b" : "c");
        ck_runs(
            "train --task=classify --data=%s --labels=%s --hidden=5 --layers=1 --threads=1 --seed=4 --batch=%d --lr=0 "
            "--steps=1 --save=%s --metrics=- %s",
            images_path, labels_path, N, state, runs[i]);
        double accuracy = number_after("\"accuracy\":");
        ck_runs("eval --resume=%s --data=%s --labels=%s", state, images_path, labels_path);
        ck_assert_msg(fabs(100 * accuracy - number_after("accuracy ")) < 0.006, "%s: %g in training", runs[i],
                      accuracy);
    }
}
END_TEST

START_TEST(csv_and_npy_have_the_same_numbers) {
    make_images();
    char *state = in_scratch("st"), *csv = in_scratch("p.csv"), *npy = in_scratch("p.npy");
    double p[N * CLASSES];
    uint8_t file[RM_NPY_HEADER + 4 * N * CLASSES];
    rm_array array;
    ck_runs("train --task=classify --data=%s --labels=%s " SMALL "--steps=2 --save=%s", images_path, labels_path,
            state);
    ck_runs("predict --resume=%s --data=%s --out=%s", state, images_path, npy);
    ck_assert_str_eq(program_output, "");
    ck_runs("predict --resume=%s --data=%s --out=%s", state, images_path, csv);
    ck_runs("predict --resume=%s --data=%s --out=-", state, images_path);
    read_rows(N, CLASSES, p);
    FILE *in = fopen(npy, "rb");
    ck_assert_uint_eq(fread(file, 1, sizeof file, in), sizeof file);
    ck_assert_int_eq(fgetc(in), EOF);
    fclose(in);
    ck_ok(rm_npy_parse(file, sizeof file, npy, &array));
    ck_assert(array.rank == 2 && array.dim[0] == N && array.dim[1] == CLASSES && array.kind == 'f' && array.bytes == 4);
    for (int i = 0; i < N * CLASSES; i++)
        ck_assert((float)p[i] == (float)rm_array_at(&array, i / CLASSES, i % CLASSES, 0));
    char text[sizeof program_output] = "";
    in = fopen(csv, "r");
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, in), 0);
    fclose(in);
    ck_assert_str_eq(text, program_output);
}
END_TEST

START_TEST(predicted_values_match_eval) {
    enum { SAMPLES = 10, T = 12 };
    char *state = in_scratch("st");
    double p[SAMPLES], loss = 0;
    rm_dataset *d;
    rm_data_source held_out = {.timesteps = T, .samples = SAMPLES, .held_out = true};
    ck_runs("train --task=adding --samples=%d --seq-len=%d " SMALL "--steps=5 --save=%s", SAMPLES, T, state);
    ck_runs("eval --resume=%s", state);
    double eval_loss = number_after("loss ");
    ck_runs("predict --resume=%s", state);
    read_rows(SAMPLES, 1, p);
    ck_ok(rm_task_open("adding", &held_out, &d));
    for (int i = 0; i < SAMPLES; i++) {
        float x[T * 2], y;
        ck_ok(rm_dataset_fill(d, i, 0, 1, x, &y));
        loss += (p[i] - (double)y) * (p[i] - (double)y) / SAMPLES;
    }
    rm_dataset_close(d);
    ck_assert_msg(fabs(loss - eval_loss) < 1e-6, "loss %.9g, not %.9g", loss, eval_loss);
}
END_TEST

/* ---- Refusals --------------------------------------------------------------------------------------------------- */

static void ck_disk_full(const char *command, const char *state, const char *out) {
    struct stat before, after;
    char beside[4096];
    snprintf(beside, sizeof beside, "%s.unfinished", out);
    ck_runs("%s --resume=%s --out=%s", command, state, out);
    ck_assert_int_eq(stat(out, &before), 0);
    largest_file = 500;
    int status = run_program("%s --resume=%s --out=%s", command, state, out);
    largest_file = 0;
    ck_assert_int_eq(status, 1);
    ck_says_all(program_errors, "make room");
    ck_assert_int_eq(stat(out, &after), 0);
    ck_assert(before.st_ino == after.st_ino && before.st_size == after.st_size && access(beside, F_OK));
}

/* If the disk is full, the earlier file stays, and no temporary file is left. */
START_TEST(a_full_disk_keeps_the_earlier_file) {
    char *state = in_scratch("st");
    ck_runs("train --task=adding --samples=900 --seq-len=4 " SMALL "--steps=1 --save=%s", state);
    ck_disk_full("predict", state, in_scratch("p.npy"));
    ck_disk_full("export", state, in_scratch("w.safetensors"));
    ck_assert_int_eq(symlink("/dev/full", in_scratch("full.csv")), 0);
    ck_refuses(1, "full.csv", "predict --resume=%s --out=%s", state, in_scratch("full.csv"));
}
END_TEST

/* A link stays one, and what it points to is replaced. */
START_TEST(outputs_replace_what_a_link_points_to) {
    struct stat link, file;
    char state[4096], out[4096];
    snprintf(state, sizeof state, "%s/st", scratch());
    snprintf(out, sizeof out, "%s/link.csv", scratch());
    ck_runs("train --task=adding --samples=20 --seq-len=4 " SMALL "--steps=1 --save=%s", state);
    fclose(fopen(in_scratch("real.csv"), "w"));
    ck_assert_int_eq(symlink("real.csv", out), 0);
    ck_runs("predict --resume=%s --out=%s", state, out);
    ck_assert(!lstat(out, &link) && S_ISLNK(link.st_mode));
    ck_assert(!stat(in_scratch("real.csv"), &file) && file.st_size > 0);
}
END_TEST

/* Two samples with `features` features at each of `timesteps`. */
static const char *make_features(const char *name, int timesteps, int features) {
    char header[118];
    uint8_t file[128 + 100] = "\x93NUMPY\1\0\x76\0";
    int n = snprintf(header, sizeof header, "{'descr': '|u1', 'fortran_order': False, 'shape': (2, %d, %d), }",
                     timesteps, features);
    memset(file + 10, ' ', 118);
    memcpy(file + 10, header, (size_t)n);
    return make_file(name, file, 128 + 2 * (size_t)(timesteps * features));
}

START_TEST(data_of_another_shape_are_refused) {
    static const uint8_t two[] = {0, 0, 8, 1, 0, 0, 0, 2, 0, 1};
    const char *x = make_features("x.npy", 4, 3), *wide = make_features("wide.npy", 4, 5),
               *brief = make_features("brief.npy", 3, 3), *y = make_file("y", two, sizeof two),
               *state = in_scratch("st");
    char train[700];
    snprintf(train, sizeof train, "--task=classify --data=%s --labels=%s --hidden=5 --layers=1 --threads=1 --batch=2",
             x, y);
    static const char *const commands[] = {"train", "plan"};
    for (int i = 0; i < 2; i++) {
        ck_refuses(2, "wide.npy|5 features|--data=", "%s %s --eval-data=%s --eval-labels=%s", commands[i], train, wide,
                   y);
        ck_refuses(2, "brief.npy|3 timesteps|4|--seq-len", "%s %s --eval-data=%s --eval-labels=%s", commands[i], train,
                   brief, y);
        ck_refuses(2, "--eval-labels=FILE", "%s %s --eval-data=%s", commands[i], train, x);
    }
    ck_runs("train %s --steps=1 --save=%s", train, state);
    ck_refuses(2, "wide.npy|5 features|model|3", "predict --resume=%s --data=%s", state, wide);
    ck_refuses(2, "wide.npy|5 features|model|3", "eval --resume=%s --data=%s --labels=%s", state, wide, y);
    ck_refuses(2, "--data=FILE|--labels=FILE", "eval --resume=%s", state);
    ck_refuses(2, "labels", "eval --resume=%s --data=%s", state, x);
    ck_refuses(2, "--data=FILE", "predict --resume=%s", state);
    ck_runs("predict --resume=%s --data=%s --seq-len=3", state, brief);
    ck_refuses(2, "--data=", "predict --resume=%s --data=%s --out=%s", state, x, x);
    ck_refuses(2, "--rows=true|training state", "eval --resume=%s --data=%s --labels=%s --rows", state, x, y);
}
END_TEST

/* Without weights, flags have the defaults of another model, so no other message would help. */
START_TEST(missing_weights_are_reported_first) {
    ck_refuses(2, "no weights|--resume=DIR|--init=FILE", "predict");
    ck_refuses(2, "no weights|--resume=DIR|--init=FILE", "eval --task=classify");
    const char *text = make_text("text", 200), *state = in_scratch("st");
    ck_runs("train --data=%s --seq-len=4 --hidden=5 --layers=1 --threads=1 --batch=2 --steps=1 --save=%s", text, state);
    ck_refuses(2, "target|timestep", "predict --resume=%s --data=%s", state, text);
    ck_refuses(2, "--data=FILE", "eval --resume=%s", state);
    ck_runs("train --task=adding --seq-len=4 --hidden=5 --layers=1 --threads=1 --batch=2 --steps=1 --save=%s2", state);
    ck_refuses(2, "predict|--device=null", "predict --resume=%s2 --device=null", state);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("predict");
    tcase_add_test(tests, predicted_classes_match_eval);
    tcase_add_test(tests, training_accuracy_matches_eval);
    tcase_add_test(tests, csv_and_npy_have_the_same_numbers);
    tcase_add_test(tests, predicted_values_match_eval);
    tcase_add_test(tests, a_full_disk_keeps_the_earlier_file);
    tcase_add_test(tests, outputs_replace_what_a_link_points_to);
    tcase_add_test(tests, data_of_another_shape_are_refused);
    tcase_add_test(tests, missing_weights_are_reported_first);
    return run_suite("train/predict", tests);
}

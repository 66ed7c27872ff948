/* test_class_weights.c: --class-weights and --ignore-index: losses and accuracies of training and evaluation match
 * those computed from the probabilities that `remat predict` writes. */
#include "train/models/model.h"

#include "train/state/state_json.h"
#include "train/run/outputs.h"

#include "tests/train/train_test.h"

#include <math.h>

enum { N = 23, T = 9, CLASSES = 3, IGNORED = 255 };
#define SMALL "--task=classify --hidden=5 --layers=1 --threads=1 --seed=4 "

static uint8_t labels[8 + N] = {0, 0, 8, 1, 0, 0, 0, N};
static const char *images_path, *labels_path;
static const double weights[CLASSES] = {0.5, 2, 0.25};
static double p[N][CLASSES];

static bool counts(int i) { return labels[8 + i] != IGNORED; }

/* In each unshuffled batch of 4 some labels are ignored; in the second batch, all. */
static void make_images(bool with_ignored) {
    uint8_t images[16 + N * T] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, 3, 0, 0, 0, 3};
    for (int i = 0; i < N * T; i++) images[16 + i] = (uint8_t)(i * 37);
    for (int i = 0; i < N; i++)
        labels[8 + i] = with_ignored && (i % 3 == 1 || i / 4 == 1) ? IGNORED : (uint8_t)(i * 5 % 7 % CLASSES);
    images_path = make_file("images", images, sizeof images);
    labels_path = make_file("labels", labels, sizeof labels);
}

static double number_in(const char *text, const char *label) {
    const char *at = strstr(text, label);
    ck_assert_msg(at, "no %s in %s", label, program_output);
    return strtod(at + strlen(label), NULL);
}

static double number_after(const char *label) { return number_in(program_output, label); }

static void predict(const char *state) {
    ck_runs("predict --resume=%s --data=%s", state, images_path);
    const char *at = program_output;
    char *end;
    for (int i = 0; i < N * CLASSES; i++, at = end + 1) p[i / CLASSES][i % CLASSES] = strtod(at, &end);
    ck_assert_int_eq(*at, 0);
}

typedef struct {
    double loss, accuracy;
    int samples;
} judged;

/* With label smoothing e, if it is above 0. */
static judged judge(const double *weight, double e) {
    judged j = {0};
    double sum = 0;
    for (int i = 0; i < N; i++) {
        if (!counts(i)) continue;
        int class = labels[8 + i], best = p[i][1] > p[i][0];
        double w = weight ? weight[class] : 1;
        if (p[i][2] > p[i][best]) best = 2;
        j.samples++;
        j.accuracy += best == class;
        j.loss -= (1 - e) * w * log(p[i][class]);
        for (int k = 0; k < CLASSES && e > 0; k++) j.loss -= e / CLASSES * (weight ? weight[k] : 1) * log(p[i][k]);
        sum += w;
    }
    j.loss /= sum;
    j.accuracy /= j.samples;
    return j;
}

static void check_eval(const judged *j) {
    char samples[32];
    const char *line = strstr(program_output, "eval ");
    if (!line) line = program_output;
    snprintf(samples, sizeof samples, "(%d samples)", j->samples);
    ck_says_all(program_output, samples);
    ck_assert_msg(fabs(number_in(line, "loss ") - j->loss) < 1e-6, "loss %.9g: %s", j->loss, program_output);
    ck_assert_msg(fabs(number_in(line, "accuracy ") - 100 * j->accuracy) < 0.006, "%g: %s", j->accuracy,
                  program_output);
}

START_TEST(ignored_labels_count_nowhere) {
    make_images(true);
    char *state = in_scratch("st");
    ck_runs("train " SMALL "--data=%s --labels=%s --ignore-index=255 --batch=4 --no-shuffle --lr=0.02 --tile=4 "
            "--checkpoint=sqrt --steps=10 --save=%s",
            images_path, labels_path, state);
    predict(state);
    judged j = judge(NULL, 0);
    static const char *const more[] = {"", "--batch=7"};
    for (int i = 0; i < 2; i++) { /* the training state contains the ignored label */
        ck_runs("eval --resume=%s --data=%s --labels=%s %s", state, images_path, labels_path, more[i]);
        check_eval(&j);
    }
    ck_refuses(2, "--ignore-index=1|training state", "train --resume=%s --ignore-index=1 --steps=11", state);
    ck_runs("eval --resume=%s --data=%s --labels=%s --json", state, images_path, labels_path);
    int confused = 0;
    const char *at = strstr(program_output, "\"confusion\"");
    ck_assert_ptr_nonnull(at);
    for (at += 12; *at; at++)
        if (*at >= '0' && *at <= '9') confused += (int)strtol(at, (char **)&at, 10);
    ck_assert_int_eq(confused, j.samples);
    /* ranks share the evaluation, and a resumed run knows the ignored label */
    ck_runs("train --resume=%s --steps=11 --lr=0 --eval-data=%s --eval-labels=%s", state, images_path, labels_path);
    check_eval(&j);
    ck_runs("train " SMALL "--data=%s --labels=%s --ignore-index=255 --batch=4 --lr=0 --steps=1 --devices=cpu:2 "
            "--init=%s/step-00000010/model.safetensors --eval-data=%s --eval-labels=%s",
            images_path, labels_path, state, images_path, labels_path);
    check_eval(&j);
}
END_TEST

/* --allow-nan may give NaN logits for --eval-data. */
START_TEST(nan_logits_make_no_line_exact) {
    const float logits[] = {NAN, NAN, NAN, 1, NAN, 0, 3, 2, 1};
    const int32_t targets[] = {1, 0, 0};
    ck_assert_int_eq(rm_count_exact(logits, targets, 1, 3, 3), 1);
}
END_TEST

/* A step over all samples with learning rate 0 has the loss and accuracy of an evaluation. */
START_TEST(training_weights_classes) {
    static const char header[118] = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
    uint8_t file[128 + 12] = "\x93NUMPY\1\0\x76\0";
    for (int k = 0; k < 3; k++) memcpy(file + 128 + 4 * k, &(float){(float)weights[k]}, 4);
    memset(file + 10, ' ', 118);
    memcpy(file + 10, header, strlen(header));
    char in_file[300], *state = in_scratch("st");
    snprintf(in_file, sizeof in_file, "%s", make_file("w.npy", file, sizeof file));
    make_images(_i & 1);
    double smoothing = _i >= 4 ? 0.2 : 0;
    ck_runs("train " SMALL "--data=%s --labels=%s --class-weights=%s %s --label-smoothing=%g --batch=%d --lr=0 "
            "--steps=1 --save=%s --metrics=- "
            "--tile=4 --checkpoint-segments=2 --eval-data=%s --eval-labels=%s",
            images_path, labels_path, _i & 2 ? in_file : "0.5,2,0.25", _i & 1 ? "--ignore-index=255" : "", smoothing, N,
            state, images_path, labels_path);
    double loss = number_after("\"loss\":"), accuracy = number_after("\"accuracy\":"), plain;
    plain = strtod(strstr(strstr(program_output, "\"event\":\"eval\""), "\"loss\":") + 7, NULL);
    predict(state);
    judged weighted = judge(weights, smoothing), j = judge(NULL, 0);
    ck_assert_msg(fabs(loss - weighted.loss) < 1e-6, "loss %.9g, not %.9g", loss, weighted.loss);
    ck_assert_msg(fabs(plain - j.loss) < 1e-6, "eval's loss %.9g, not %.9g", plain, j.loss);
    ck_assert_msg(fabs(accuracy - j.accuracy) < 1e-6, "accuracy %.9g, not %.9g", accuracy, j.accuracy);
}
END_TEST

START_TEST(invalid_class_weights_are_refused) {
    static const struct {
        const char *flags, *sentence;
    } wrong[] = {{"", "label 255|sample 1|0..2|--labels|--classes"},
                 {"--ignore-index=255 --class-weights=1,2", "--class-weights=1,2 has 2 numbers for 3 classes"},
                 {"--ignore-index=255 --class-weights=1,x,2", "'x,2'|number"},
                 {"--ignore-index=255 --class-weights=1,-1,2", "class 1|-1"},
                 {"--ignore-index=255 --class-weights=1,nan,2", "class 1|nan"},
                 {"--ignore-index=255 --class-weights=0,0,0", "--class-weights are all 0"}};
    make_images(true);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_refuses(2, wrong[i].sentence, "train " SMALL "--classes=3 --data=%s --labels=%s %s", images_path,
                   labels_path, wrong[i].flags);
    ck_refuses(1, "nowhere", "train " SMALL "--ignore-index=255 --class-weights=/nowhere --data=%s --labels=%s",
               images_path, labels_path);
    memset(labels + 8, IGNORED, N);
    ck_refuses(2, "label|255", "train " SMALL "--ignore-index=255 --data=%s --labels=%s", images_path,
               make_file("labels", labels, sizeof labels));
    memset(labels + 8, 0, N);
    ck_refuses(2, "labels|0", "train " SMALL "--data=%s --labels=%s", images_path,
               make_file("labels", labels, sizeof labels));
    ck_refuses(2, "--task=classify", "train --task=copy --ignore-index=0");
    ck_refuses(2, "--task=classify", "train --task=copy --class-weights=1,2");
}
END_TEST

/* ---- Batches in parts ------------------------------------------------------------------------------------------- */

enum { SAMPLES = 16, STEPS = 6, FEATURES = 3, SIDE = 16 };

/* In the first four samples no target counts; in the sixth all do, in the others some. */
static bool is_left_out(int i, int at) { return i < 4 || (i != 5 && (i * 7 + at * 5) % 3 == 1); }

static void make_parts(char flags[600], int task) {
    static float x[SAMPLES * STEPS * FEATURES], y[SAMPLES * STEPS * 2];
    static int32_t tags[SAMPLES * STEPS], rows[SAMPLES * 2], lengths[SAMPLES];
    static uint8_t images[SAMPLES * SIDE * SIDE], pixels[SAMPLES * SIDE * SIDE];
    for (int i = 0; i < SAMPLES * STEPS * FEATURES; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < SAMPLES * STEPS * 2; i++) y[i] = (float)(i * 53 % 97) / 48 - 1;
    for (int i = 0; i < SAMPLES * STEPS; i++) tags[i] = is_left_out(i / STEPS, i) ? 9 : i * 5 % 7 % 3;
    for (int i = 0; i < SAMPLES * SIDE * SIDE; i++) images[i] = (uint8_t)(i * 37);
    for (int i = 0; i < SAMPLES * SIDE * SIDE; i++)
        pixels[i] = (uint8_t)(is_left_out(i / SIDE / SIDE, i) ? 9 : images[i] / 90);
    for (int i = 0; i < SAMPLES; i++) rows[2 * i] = 1 + i % 2, rows[2 * i + 1] = i % 3 ? 1 + i % 3 % 2 : -1;
    for (int i = 0; i < SAMPLES; i++) lengths[i] = 4 + i * 5 % 3 - i / 4 % 2 * 3;
    const char *x_path = make_npy("x.npy", "<f4", "(16, 6, 3)", x, sizeof x);
    const char *y_path = make_npy("y.npy", "<f4", "(16, 6, 2)", y, sizeof y);
    const char *t_path = make_npy("t.npy", "<i4", "(16, 6)", tags, sizeof tags);
    const char *l_path = make_npy("l.npy", "<i4", "(16,)", lengths, sizeof lengths);
    const char *r_path = make_npy("r.npy", "<i4", "(16, 2)", rows, sizeof rows);
    const char *p_path = make_npy("p.npy", "|u1", "(16, 1, 16, 16)", images, sizeof images);
    const char *q_path = make_npy("q.npy", "|u1", "(16, 16, 16)", pixels, sizeof pixels);
    make_images(true);
    const char *const of[][4] = {
        {"classify", images_path, labels_path, "--ignore-index=255"},
        {"classify", images_path, labels_path, "--ignore-index=255 --model=mlp"},
        {"classify", images_path, labels_path, "--ignore-index=255 --class-weights=0.5,2,0.25"},
        {"classify", x_path, t_path, "--ignore-index=9 --label-smoothing=0.1"},
        {"regress", x_path, y_path, "--lengths="},
        {"transcribe", x_path, r_path, ""},
        {"classify", p_path, q_path, "--ignore-index=9 --model=unet --sync-batchnorm"},
        {"seq2seq", "", "", "--generate=reverse --samples=16"}};
    const char *const *f = of[task];
    snprintf(flags, 600, "--task=%s %s%s %s%s %s%s --layers=1 --hidden=4 --optimizer=sgd --threads=1 --no-shuffle",
             f[0], *f[1] ? "--data=" : "", f[1], *f[2] ? "--labels=" : "", f[2], f[3], task == 4 ? l_path : "");
}

/* The loss after an update with this gradient. */
static double second_loss(const char *flags, const char *parts) {
    ck_runs("train %s %s --lr=0.3 --clip-grad-norm=0.5 --steps=2 --metrics=-", flags, parts);
    return number_in(strstr(program_output, "\"step\":2,"), "\"loss\":");
}

/* Micro steps, ranks and shards; in some of them no target counts. */
START_TEST(batches_in_parts_match_one_batch) {
    static const char *const parts[] = {
        "--batch=4 --devices=cpu:2",         "--batch=4 --accumulate-steps=2",
        "--batch=1 --accumulate-steps=8",    "--batch=2 --accumulate-steps=2 --devices=cpu:2 --zero=1",
        "--batch=8 --deterministic-world=8", "--batch=4 --deterministic-world=8 --devices=cpu:2"};
    char flags[600];
    make_parts(flags, _i);
    double whole = second_loss(flags, "--batch=8"), of_shards = 0;
    for (size_t i = 0; i < (strstr(flags, "unet") ? 1 : sizeof parts / sizeof *parts); i++) {
        double loss = second_loss(flags, parts[i]);
        ck_assert_msg(fabs(loss - whole) < 2e-6 * whole, "%s %s: loss %.9g, and %.9g of one batch", flags, parts[i],
                      loss, whole);
        if (i == 4) of_shards = loss;
        if (i == 5) ck_assert(loss == of_shards);
    }
    if (strstr(flags, "transcribe"))
        ck_refuses(2, "--loss-mean|parts|targets", "train %s --loss-mean=parts", flags);
    else
        ck_assert(second_loss(flags, "--batch=4 --devices=cpu:2 --loss-mean=parts") != whole);
}
END_TEST

/* A training state of a version before --loss-mean. */
static void forget_mean(const char *state) {
    char path[RM_PATH_BYTES];
    json_t *root;
    ck_ok(rm_state_json_read(state, path, &root));
    json_object_del(json_object_get(root, "flags"), "loss-mean"); /* present if the loss counts targets */
    ck_ok(rm_state_json_write(path, root));
    json_decref(root);
}

/* A run with means of parts continues with them and prints that. If there is no difference, nothing is printed. */
START_TEST(state_before_loss_mean_continues_with_means_of_parts) {
    static const char *const cases[][2] = {{"--ignore-index=255", "--batch=4 --accumulate-steps=2"},
                                           {"--ignore-index=255", "--batch=4 --devices=cpu:2"},
                                           {"--ignore-index=255", "--batch=8"},
                                           {"", "--batch=4 --accumulate-steps=2"}};
    bool counts = *cases[_i][0], parts = counts && !strstr(cases[_i][1], "--batch=8");
    char flags[600];
    make_images(counts);
    snprintf(flags, sizeof flags, SMALL "--data=%s --labels=%s --no-shuffle %s %s", images_path, labels_path,
             cases[_i][0], cases[_i][1]);
    ck_runs("train %s --steps=4 %s --metrics=%s", flags, parts ? "--loss-mean=parts" : "", in_scratch("a.jsonl"));
    ck_runs("train %s --steps=2 %s --metrics=%s --save=%s", flags, parts ? "--loss-mean=parts" : "",
            in_scratch("b.jsonl"), in_scratch("old"));
    forget_mean(in_scratch("old/step-00000002"));
    const char *again = strstr(cases[_i][1], "--devices") ? "--devices=cpu:2" : "";
    ck_runs("train --resume=%s --steps=5 %s --loss-mean=batch", in_scratch("old/step-00000002"), again);
    ck_assert_ptr_null(strstr(program_errors, "--loss-mean"));
    ck_runs("train --resume=%s --steps=3 %s --metrics=%s", in_scratch("old"), again, in_scratch("b.jsonl"));
    ck_assert_msg(parts == (says_all(program_errors, "--loss-mean=parts")), "%s", program_errors);
    ck_runs("train --resume=%s --steps=4 %s --metrics=%s", in_scratch("old"), again, in_scratch("b.jsonl"));
    ck_assert_ptr_null(strstr(program_errors, "--loss-mean")); /* the new state contains the flag */
    ck_runs("report --require-identical %s %s", in_scratch("a.jsonl"), in_scratch("b.jsonl"));
}
END_TEST

/* Each window is a micro step; ignored targets reduce its weight. */
START_TEST(windows_are_weighted_by_counting_targets) {
    char flags[600];
    make_parts(flags, 3);
    ck_runs("train %s --batch=8 --steps=1 --metrics=-", flags);
    double whole = number_after("\"loss\":");
    ck_runs("train %s --batch=8 --steps=1 --metrics=- --tbptt=2", flags);
    double loss = number_after("\"loss\":");
    ck_assert_msg(fabs(loss - whole) < 1e-6, "loss %.9g in windows, %.9g in one", loss, whole);
}
END_TEST

/* The budget includes the new arrays, and holds. */
START_TEST(class_weights_fit_the_budget) {
    make_images(true);
    ck_runs("train " SMALL "--data=%s --labels=%s --ignore-index=255 --class-weights=1,2,3 --batch=4 --steps=2 "
            "--memory-budget=10MiB --calibration=off",
            images_path, labels_path);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("class_weights");
    tcase_add_test(tests, ignored_labels_count_nowhere);
    tcase_add_loop_test(tests, state_before_loss_mean_continues_with_means_of_parts, 0, 4);
    tcase_add_test(tests, nan_logits_make_no_line_exact);
    tcase_add_loop_test(tests, training_weights_classes, 0, 6);
    tcase_add_test(tests, invalid_class_weights_are_refused);
    tcase_add_loop_test(tests, batches_in_parts_match_one_batch, 0, 8);
    tcase_add_test(tests, windows_are_weighted_by_counting_targets);
    tcase_add_test(tests, class_weights_fit_the_budget);
    return run_suite("train/class_weights", tests);
}

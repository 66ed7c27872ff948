/* test_part.c: --eval-split: training and evaluation share the samples of one data set, each sample once; the random share is that of
 * PyTorch's random_split. */
#include "train/data/part.h"
#include "train/run/setup.h"

#include "tests/train/train_test.h"

#include <math.h>

enum { T = 3, ALL = 10 };

/* A text whose sample i begins with the letter i. */
static const char *letters(void) {
    char text[ALL * T + 1];
    for (int i = 0; i <= ALL * T; i++) text[i] = (char)(i % T ? '.' : 'a' + i / T);
    return make_file("letters", text, sizeof text);
}

static void open_parts(const char *split, rm_dataset *part[2]) {
    rm_options o;
    char data[300], *argv[] = {data, (char *)split, "--seq-len=3", "--seed=3"};
    snprintf(data, sizeof data, "--data=%s", letters());
    ck_ok(rm_options_parse(&o, RM_TRAIN, 4, argv));
    ck_ok(rm_setup_dataset(&o, &part[0]));
    ck_ok(rm_setup_held_out(&o, part[0], &part[1]));
    rm_options_free(&o);
}

static void expect(const char *split, bool held_out, const char *samples) {
    rm_dataset *part[2];
    open_parts(split, part);
    const rm_dataset *d = part[held_out];
    int32_t x[T], y[T];
    ck_assert_int_eq(d->count, (int64_t)strlen(samples));
    ck_assert_uint_eq(d->target_bytes, (uint64_t)d->count * T);
    for (int64_t i = 0; i < d->count; i++) {
        ck_ok(rm_dataset_fill(part[held_out], i, 0, 1, x, y));
        ck_assert_int_eq(x[0], 'a' + samples[i] - '0');
    }
    rm_dataset_close(part[1]);
    rm_dataset_close(part[0]);
}

START_TEST(split_takes_the_last_samples) {
    expect("--eval-split=0.3", false, "0123456");
    expect("--eval-split=0.3", true, "789");
}
END_TEST

/* random_split(range(10), [0.7, 0.3], generator=torch.Generator().manual_seed(3)) */
START_TEST(random_split_matches_pytorch) {
    expect("--eval-split=0.3:random", false, "6037851");
    expect("--eval-split=0.3:random", true, "924");
}
END_TEST

/* nanoGPT's get_batch: any place, but not one that reaches into the part for evaluations. */
START_TEST(random_windows_stay_in_their_part) {
    rm_options o;
    rm_dataset *d, *held_out;
    char data[300], text[ALL * T + 1], *argv[] = {data, "--seq-len=3", "--sampler=random", "--eval-split=0.3"};
    bool seen[ALL * T] = {false};
    int32_t x[T], y[T], again[T];
    for (int i = 0; i <= ALL * T; i++) text[i] = (char)i;
    snprintf(data, sizeof data, "--data=%s", make_file("places", text, sizeof text));
    ck_ok(rm_options_parse(&o, RM_TRAIN, 4, argv));
    ck_ok(rm_setup_dataset(&o, &d));
    ck_ok(rm_setup_held_out(&o, d, &held_out));
    for (int epoch = 0; epoch < 60; epoch++) {
        rm_dataset_set_epoch(d, epoch);
        for (int i = 0; i < 7; i++) {
            ck_ok(rm_dataset_fill(d, i, 0, 1, x, y));
            ck_assert(x[0] >= 0 && x[0] <= 7 * T - T && x[2] == x[0] + 2 && y[2] == x[0] + 3);
            seen[x[0]] = true;
            ck_ok(rm_dataset_fill(d, i, 0, 1, again, y));
            ck_assert(x[0] == again[0]);
        }
    }
    for (int i = 0; i <= 7 * T - T; i++) ck_assert_msg(seen[i], "no window begins at %d", i);
    ck_ok(rm_dataset_fill(held_out, 0, 0, 1, x, y));
    ck_assert_int_eq(x[0], 7 * T);
    rm_dataset_close(held_out);
    rm_dataset_close(d);
    rm_options_free(&o);
}
END_TEST

#define RUN "train --task=classify --rows --hidden=4 --layers=1 --batch=2 --seed=1 --threads=1 --steps=4 "

#define IMAGES                                                                                                         \
    "train --task=classify --model=mlp --layers=1 --hidden=4 --batch=2 --threads=1 --steps=4 --augment=flip "          \
    "--loader-threads=1 --eval-every=2 "

static void make_images(void) {
    uint8_t images[16 + 8 * 2 * 2] = {0, 0, 8, 3, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0, 2};
    uint8_t labels[8 + 8] = {0, 0, 8, 1, 0, 0, 0, 8, 0, 1, 2, 0, 1, 2, 2, 1};
    for (int i = 0; i < 8 * 4; i++) images[16 + i] = (uint8_t)(i * 37);
    make_file("x", images, sizeof images);
    make_file("y", labels, sizeof labels);
    images[7] = labels[7] = 6;
    make_file("x6", images, 16 + 6 * 4);
    make_file("y6", labels, 8 + 6);
    images[7] = labels[7] = 2;
    memmove(images + 16, images + 16 + 6 * 4, 2 * 4);
    memmove(labels + 8, labels + 8 + 6, 2);
    make_file("x2", images, 16 + 2 * 4);
    make_file("y2", labels, 8 + 2);
}

static void last_lines(char *text, size_t bytes) {
    const char *eval = strstr(program_output, "eval "), *end = eval ? strchr(eval, '\n') : NULL;
    ck_assert_msg(end, "%s", program_output);
    snprintf(text, bytes, "%.*s", (int)(end - eval), eval);
}

/* Also of images that are augmented for training, while a thread prepares the next batch. */
START_TEST(split_run_matches_run_with_two_files) {
    const char *run = _i ? IMAGES : RUN;
    char one[200], two[200];
    make_images();
    ck_runs("%s --data=%s --labels=%s --eval-split=0.25", run, in_scratch("x"), in_scratch("y"));
    last_lines(one, sizeof one);
    ck_runs("%s --data=%s --labels=%s --eval-data=%s --eval-labels=%s", run, in_scratch("x6"), in_scratch("y6"),
            in_scratch("x2"), in_scratch("y2"));
    last_lines(two, sizeof two);
    ck_assert_str_eq(one, two);
    ck_says_all(one, "accuracy|2 samples");
}
END_TEST

START_TEST(parts_share_one_copy_of_the_data) {
    rm_options o;
    rm_dataset *d, *held_out;
    char data[300], labels[300];
    char *argv[] = {"--task=classify", "--rows", data, labels, "--eval-split=0.25"};
    make_images();
    snprintf(data, sizeof data, "--data=%s", in_scratch("x"));
    snprintf(labels, sizeof labels, "--labels=%s", in_scratch("y"));
    ck_ok(rm_options_parse(&o, RM_TRAIN, 5, argv));
    ck_ok(rm_setup_dataset(&o, &d));
    ck_ok(rm_setup_held_out(&o, d, &held_out));
    ck_assert_uint_gt(d->held_bytes, 8 * 2 * 2);
    ck_assert_uint_eq(held_out->held_bytes, 0);
    ck_assert_int_eq(held_out->count, 2);
    rm_dataset_close(held_out);
    rm_dataset_close(d);
    rm_options_free(&o);
}
END_TEST

START_TEST(impossible_split_is_refused) {
    const char *data = letters();
    ck_refuses(2, "--eval-split=1.5|0.1:random", "train --seq-len=3 --data=%s --eval-split=1.5", data);
    ck_refuses(2, "--eval-split=0.1:tail|0.1:random", "train --seq-len=3 --data=%s --eval-split=0.1:tail", data);
    ck_refuses(2, "--eval-split|10 samples|larger", "train --seq-len=3 --data=%s --eval-split=0.01", data);
    ck_refuses(2, "--eval-split|10 samples|smaller", "train --seq-len=3 --data=%s --eval-split=0.99", data);
    ck_refuses(2, "--eval-data|--eval-split", "train --data=%s --eval-split=0.5 --eval-data=%s", data, data);
    ck_refuses(2, "--eval-split|adding|--eval-every", "train --task=adding --eval-split=0.5");
    ck_refuses(2, "--eval-split|--sampler=random",
               "train --seq-len=3 --sampler=random --data=%s --eval-split=0.5:random", data);
    ck_refuses(2, "--eval-split|--stateful", "train --seq-len=3 --stateful --data=%s --eval-split=0.5:random", data);
}
END_TEST

/* Whoever resumes must not train on what the state was evaluated with. */
START_TEST(resumed_run_keeps_its_split) {
    make_images();
    ck_runs(RUN "--data=%s --labels=%s --eval-split=0.25:random --save=%s", in_scratch("x"), in_scratch("y"),
            in_scratch("s"));
    ck_runs("train --resume=%s --steps=6", in_scratch("s"));
    ck_says_all(program_output, "eval|2 samples");
    ck_refuses(2, "--eval-split=0.5", "train --resume=%s --steps=8 --eval-split=0.5", in_scratch("s"));
    ck_runs(RUN "--data=%s --labels=%s --save=%s", in_scratch("x"), in_scratch("y"), in_scratch("whole"));
    ck_refuses(2, "--eval-split=0.5", "train --resume=%s --steps=8 --eval-split=0.5", in_scratch("whole"));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("part");
    tcase_add_test(tests, split_takes_the_last_samples);
    tcase_add_test(tests, random_split_matches_pytorch);
    tcase_add_test(tests, random_windows_stay_in_their_part);
    tcase_add_loop_test(tests, split_run_matches_run_with_two_files, 0, 2);
    tcase_add_test(tests, parts_share_one_copy_of_the_data);
    tcase_add_test(tests, impossible_split_is_refused);
    tcase_add_test(tests, resumed_run_keeps_its_split);
    return run_suite("train/part", tests);
}

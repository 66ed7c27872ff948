/* test_vectors.c: arrays [N,F] are vectors for --model=mlp, with classes or numbers for answers, and are not taken for sequences unless a
 * recurrent model is named; --normalize applies to them and to sequences. */
#include "train/tasks/task.h"

#include "tests/train/train_test.h"

enum { N = 6, F = 3 };

static const char *make_x(void) {
    float x[N * F];
    for (int i = 0; i < N * F; i++) x[i] = (float)(i * 7 % 5) - 2;
    return make_npy("x.npy", "<f4", "(6, 3)", x, sizeof x);
}

/* A linear function. */
static const char *make_y(void) {
    float y[N];
    for (int i = 0; i < N; i++) y[i] = (float)(i * 21 % 5 - (i * 21 + 14) % 5) / 2;
    return make_npy("y.npy", "<f4", "(6,)", y, sizeof y);
}

#define MLP "--task=regress --model=mlp --layers=1 --hidden=8 --batch=6 --threads=1 "

START_TEST(mlp_learns_numbers_of_vectors) {
    const char *x = make_x(), *y = make_y(), *st = in_scratch("st");
    ck_runs("train " MLP "--data=%s --labels=%s --lr=0.03 --steps=300 --save=%s", x, y, st);
    ck_says_all(program_output, "6 samples of 3 numbers|samples/s");
    ck_runs("eval --resume=%s --data=%s --labels=%s --json", st, x, y);
    ck_assert(atof(strstr(program_output, "loss") + 6) < 0.01);
    ck_runs("predict --resume=%s --data=%s --out=-", st, x);
    double first = atof(program_output);
    ck_assert(first > -2.2 && first < -1.8); /* its label is (0 - 14 % 5) / 2 */
    ck_runs("eval "
            "--task=regress --init=%s/step-00000300/model.safetensors --data=%s --labels=%s",
            st, x, y);
}
END_TEST

START_TEST(vectors_are_not_taken_for_sequences) {
    const char *x = make_x(), *y = make_y();
    ck_refuses(2, "x.npy|--model=mlp|--model=lstm", "train --task=regress --data=%s --labels=%s", x, y);
    ck_runs("train --task=regress --model=lstm --hidden=4 --layers=1 --batch=6 --steps=1 --data=%s --labels=%s", x, y);
    ck_says_all(program_output, "6 samples of 3 timesteps");
    ck_refuses(2, "--model=cnn|--task=regress", "train --task=regress --model=cnn --data=%s --labels=%s", x, y);
    ck_refuses(2, "--image-size|x.npy", "train " MLP "--image-size=4 --data=%s --labels=%s", x, y);
    ck_refuses(2, "6 samples,|more samples|--batch=7", "train " MLP "--batch=7 --data=%s --labels=%s", x, y);
}
END_TEST

/* One pair for all features, or one for each; time after a sample's end stays 0. */
START_TEST(sequences_are_normalised) {
    float x[2 * 2 * F], in[2 * F], y[2];
    int32_t lengths[2] = {2, 1};
    for (int i = 0; i < 2 * 2 * F; i++) x[i] = (float)i;
    rm_data_source source = {.data = make_npy("s.npy", "<f4", "(2, 2, 3)", x, sizeof x),
                             .labels = make_y(),
                             .lengths = make_npy("l.npy", "<i4", "(2,)", lengths, sizeof lengths)};
    y[0] = y[1] = 0;
    source.labels = make_npy("two.npy", "<f4", "(2,)", y, sizeof y);
    rm_dataset *d;
    source.normalize = "1:2,2:4,3:0.5";
    ck_ok(rm_task_open("regress", &source, &d));
    ck_ok(rm_dataset_fill(d, 1, 0, 1, in, y));
    ck_assert(in[0] == 2.5f && in[1] == 1.25f && in[2] == 10);
    ck_assert(in[3] == 0 && in[4] == 0 && in[5] == 0);
    rm_dataset_close(d);
    source.normalize = "1:2";
    ck_ok(rm_task_open("regress", &source, &d));
    ck_ok(rm_dataset_fill(d, 0, 0, 1, in, y));
    for (int i = 0; i < 2 * F; i++) ck_assert(in[i] == ((float)i - 1) / 2);
    rm_dataset_close(d);
    source.normalize = "1:2,2:4";
    ck_fails(rm_task_open("regress", &source, &d), REMAT_INVALID, "--normalize|2 pairs|3");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("vectors");
    tcase_add_test(tests, mlp_learns_numbers_of_vectors);
    tcase_add_test(tests, vectors_are_not_taken_for_sequences);
    tcase_add_test(tests, sequences_are_normalised);
    return run_suite("train/vectors", tests);
}

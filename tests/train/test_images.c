/* test_images.c: images as data: kinds of files, and transforms, which depend only on (seed, epoch, sample). */
#include "train/tasks/task.h"
#include "train/data/transform.h"
#include "train/data/loader.h"

#include "memory/host.h"
#include "tests/train/train_test.h"

#include <math.h>
#include <sys/stat.h>

static rm_dataset *open_ok(rm_data_source source) {
    rm_dataset *dataset;
    source.images = true;
    ck_ok(rm_task_open("classify", &source, &dataset));
    return dataset;
}
static void open_fails(rm_data_source source, remat_status status, const char *part) {
    rm_dataset *dataset;
    source.images = true;
    ck_fails(rm_task_open("classify", &source, &dataset), status, part);
    ck_assert_ptr_null(dataset);
}

/* ---- Kinds of files ---------------------------------------------------------------------------------------------- */

static const uint8_t bytes[48] = {0,  51, 102, 153, 204, 255, 5,  6,  7,   8,   9,   10,  11,  12,  13, 14,
                                  15, 16, 17,  18,  19,  20,  21, 22, 100, 101, 102, 103, 104, 105, 25, 26,
                                  27, 28, 29,  30,  31,  32,  33, 34, 35,  36,  37,  38,  39,  40,  41, 42};
static const uint8_t idx_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 9};

/* Reads sample 1 of 2 into column 1 of 3, and compares its values. */
static const float *second(rm_dataset *d, int32_t *label) {
    static float x[3 * 64];
    int32_t target[3];
    ck_ok(rm_dataset_fill(d, 1, 1, 3, x, target));
    *label = target[1];
    return x + d->shape.features;
}

/* The position of image 1, channel c, row y, column x in the file's bytes. */
typedef int place(int c, int y, int x);
static int in_planes(int c, int y, int x) { return 24 + c * 8 + y * 2 + x; } /* (2,3,4,2) */
static int alone(int c, int y, int x) { return 24 + c * 0 + y * 4 + x; }     /* (2,6,4) */
static int ambiguous(int c, int y, int x) { return 24 + c * 8 + y * 4 + x; } /* (2,3,2,4): as PyTorch has it */

START_TEST(axes_of_arrays_are_recognised) {
    static const struct {
        const char *shape;
        int64_t C, H, W;
        place *at;
    } cases[] = {{"(2, 3, 4, 2)", 3, 4, 2, in_planes},
                 {"(2, 6, 4)", 1, 6, 4, alone},
                 {"(2, 3, 2, 4)", 3, 2, 4, ambiguous},
                 {"(2, 6, 4, 1)", 1, 6, 4, alone},
                 {"(2, 1, 6, 4)", 1, 6, 4, alone}};
    const char *labels = make_file("l", idx_labels, sizeof idx_labels);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rm_dataset *d =
            open_ok((rm_data_source){.data = make_npy("x.npy", "|u1", cases[i].shape, bytes, 48), .labels = labels});
        const rm_data_shape *s = &d->shape;
        ck_assert_msg(s->channels == cases[i].C && s->height == cases[i].H && s->width == cases[i].W, "%s",
                      cases[i].shape);
        ck_assert(d->count == 2 && s->classes == 10 && s->timesteps == 1 && s->features == 24);
        int32_t label;
        const float *x = second(d, &label);
        ck_assert_int_eq(label, 9);
        for (int c = 0; c < s->channels; c++)
            for (int y = 0; y < s->height; y++)
                for (int k = 0; k < s->width; k++)
                    ck_assert(x[(c * s->height + y) * s->width + k] == (float)(bytes[cases[i].at(c, y, k)] / 255.0));
        rm_dataset_close(d);
    }
}
END_TEST

/* (N,H,W,C), if the second axis cannot be the channels; floats stay unchanged. */
START_TEST(channels_may_come_last) {
    float value[30];
    for (int i = 0; i < 30; i++) value[i] = (float)i / 8;
    rm_data_source source = {
        .data = make_npy("x.npy", "<f4", "(1, 5, 2, 3)", value, sizeof value), .unlabelled = true, .classes = 2};
    rm_dataset *d = open_ok(source);
    float x[30];
    int32_t label;
    ck_assert(d->shape.channels == 3 && d->shape.height == 5 && d->shape.width == 2 && d->shape.classes == 2);
    ck_ok(rm_dataset_fill(d, 0, 0, 1, x, &label));
    for (int c = 0; c < 3; c++)
        for (int p = 0; p < 10; p++) ck_assert(x[c * 10 + p] == value[p * 3 + c]);
    rm_dataset_close(d);
    source.channels = 1;
    open_fails(source, REMAT_INVALID, "3 channels|--channels=1");
    source.channels = 0;
    value[7] = NAN;
    source.data = make_npy("n.npy", "<f4", "(1, 5, 2, 3)", value, sizeof value);
    open_fails(source, REMAT_INVALID, "0, channel 1, row 1, column 0");
    source.data = make_npy("two.npy", "<f4", "(5, 6)", value, sizeof value);
    open_fails(source, REMAT_INVALID, "(N,H,W)|(N,C,H,W)|(N,H,W,C)");
    source.data = make_npy("x.npy", "|u1", "(2, 6, 4)", bytes, 48);
    source.unlabelled = false;
    open_fails(source, REMAT_INVALID, "--labels=FILE");
}
END_TEST

/* A CIFAR-10 file with this many images, whose bytes count up. */
static const char *make_cifar(const char *name, int images, int first_label) {
    static uint8_t data[4 * 3073];
    for (int i = 0; i < images * 3073; i++) data[i] = (uint8_t)(i * 7);
    for (int i = 0; i < images; i++) data[i * 3073] = (uint8_t)(first_label + i);
    return make_file(name, data, (size_t)images * 3073);
}

START_TEST(cifar_files_are_read) {
    char list[600];
    static float x[3072];
    int32_t label;
    mkdir(in_scratch("c"), 0700);
    const char *one = make_cifar("c/data_batch_1.bin", 2, 3), *two = make_cifar("c/data_batch_2.bin", 1, 7);
    make_cifar("c/test_batch.bin", 1, 1);
    snprintf(list, sizeof list, "%s,%s", one, two);
    const char *ways[] = {list, in_scratch("c")};
    for (int i = 0; i < 2; i++) {
        rm_dataset *d = open_ok((rm_data_source){.data = ways[i]});
        ck_assert(d->count == 3 && d->shape.channels == 3 && d->shape.height == 32 && d->shape.width == 32 &&
                  d->shape.classes == 10);
        ck_ok(rm_dataset_fill(d, 2, 0, 1, x, &label));
        ck_assert_int_eq(label, 7);
        for (int k = 0; k < 3072; k++) ck_assert(x[k] == (float)((uint8_t)((k + 1) * 7) / 255.0));
        rm_dataset_close(d);
    }
    mkdir(in_scratch("set1"), 0700); /* a match of set[1], if it were a pattern */
    mkdir(in_scratch("set[1]"), 0700);
    make_cifar("set1/data_batch_1.bin", 2, 3);
    make_cifar("set[1]/data_batch_9.bin", 1, 6);
    make_cifar("set[1]/data_batch_10.bin", 2, 4);
    rm_dataset *d = open_ok((rm_data_source){.data = in_scratch("set[1]")});
    ck_assert_int_eq(d->count, 3);
    for (int i = 0; i < 3; i++) {
        ck_ok(rm_dataset_fill(d, i, 0, 1, x, &label));
        ck_assert_int_eq(label, 4 + i);
    }
    rm_dataset_close(d);
    open_fails((rm_data_source){.data = one, .labels = one}, REMAT_INVALID, "labels|--labels");
    open_fails((rm_data_source){.data = one, .classes = 9}, REMAT_INVALID, "10 classes|--classes=9");
    open_fails((rm_data_source){.data = make_cifar("d.bin", 1, 10)}, REMAT_IO, "0|label|10");
    open_fails((rm_data_source){.data = make_file("e.bin", bytes, 48)}, REMAT_IO, "3073");
}
END_TEST

/* ---- Transforms -------------------------------------------------------------------------------------------------- */

enum { SIDE = 6 };

static rm_array image_of(const uint8_t *data, int64_t height, int64_t width) {
    return (rm_array){
        .kind = 'u', .bytes = 1, .rank = 3, .dim = {1, height, width, 1}, .stride = {0, width, 1, 0}, .item = data};
}

static void frame(const rm_transform *f, const rm_array *image, const char *normalize, float *out) {
    float line[64];
    rm_normalize n;
    ck_ok(rm_normalize_parse(normalize, 1, &n));
    rm_transform_apply(f, image, 1, &n, line, out);
}

START_TEST(crops_are_windows_of_the_padded_image) {
    static uint8_t data[SIDE * SIDE];
    rm_augment augment;
    int flipped = 0, moved[5] = {0};
    for (int i = 0; i < SIDE * SIDE; i++) data[i] = (uint8_t)(i + 1);
    rm_array image = image_of(data, SIDE, SIDE);
    ck_ok(rm_augment_parse("crop:2,flip", &augment));
    for (int64_t sample = 0; sample < 400; sample++) {
        float out[SIDE * SIDE];
        rm_transform f = rm_transform_random(&augment, 1, 0, sample, SIDE, SIDE, &(rm_crop){SIDE, SIDE, 0});
        ck_assert(f.down >= -2 && f.down <= 2 && f.right >= -2 && f.right <= 2);
        frame(&f, &image, NULL, out);
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                int64_t row = y + f.down, column = (f.flip ? SIDE - 1 - x : x) + f.right;
                bool inside = row >= 0 && row < SIDE && column >= 0 && column < SIDE;
                ck_assert(out[y * SIDE + x] == (inside ? (float)data[row * SIDE + column] : 0));
            }
        flipped += f.flip;
        moved[f.right + 2]++;
    }
    ck_assert(flipped > 150 && flipped < 250);
    for (int i = 0; i < 5; i++) ck_assert(moved[i] > 40 && moved[i] < 120);
}
END_TEST

/* Each of the three alone changes the transform. */
START_TEST(transforms_depend_on_seed_epoch_and_sample) {
    const rm_augment augment = {.resized_crop = true};
    int same = 0;
    for (int i = 0; i < 100; i++) {
        rm_transform a = rm_transform_random(&augment, 1, 2, i, 300, 200, &(rm_crop){64, 64, 0});
        rm_transform b = rm_transform_random(&augment, 1, 2, i, 300, 200, &(rm_crop){64, 64, 0});
        ck_assert(a.top == b.top && a.left == b.left && a.box_height == b.box_height && a.box_width == b.box_width);
        for (int other = 0; other < 3; other++) {
            b = rm_transform_random(&augment, 1 + (other == 0), 2 + (other == 1), i + (other == 2), 300, 200,
                                    &(rm_crop){64, 64, 0});
            same += a.top == b.top && a.left == b.left && a.box_width == b.box_width;
        }
        double area = a.box_height * a.box_width / (300.0 * 200), ratio = a.box_width / a.box_height;
        ck_assert(area > 0.075 && area < 1.01 && ratio > 0.73 && ratio < 1.36);
        ck_assert(a.top >= 0 && a.left >= 0 && a.top + a.box_height <= 300 && a.left + a.box_width <= 200);
    }
    ck_assert_int_le(same, 3);
}
END_TEST

/* Pillow's numbers: the middle 4 rows of Image.fromarray(floats).resize((4, 6), BILINEAR). */
START_TEST(resizing_matches_pillow) {
    static uint8_t data[15 * 10];
    for (int i = 0; i < 15 * 10; i++) data[i] = (uint8_t)(i * i % 251);
    rm_array image = image_of(data, 15, 10);
    rm_transform plain = rm_transform_fixed(15, 10, &(rm_crop){4, 4, 0});
    float out[16];
    static const float resized[16] = {140.4891f, 106.0464f, 123.752f,  114.9291f, 130.0655f, 122.12f,
                                      121.856f,  156.1055f, 128.0818f, 118.336f,  132.624f,  118.4327f,
                                      118.9873f, 132.3616f, 144.744f,  107.0873f};
    ck_assert(plain.top == 2.5 && plain.left == 0 && plain.box_width == 10);
    frame(&plain, &image, NULL, out);
    for (int i = 0; i < 16; i++)
        ck_assert_msg(fabsf(out[i] - resized[i]) < 1e-3f, "%d: %g, not %g", i, out[i], resized[i]);
    /* torchvision's Resize(6), CenterCrop(4): rows 2 to 5 and columns 1 to 4 of resize((6, 9), BILINEAR) */
    static const float cropped[16] = {77.5278f,  126.0156f, 99.0625f,  138.4583f, 127.9444f, 117.8125f,
                                      100.5625f, 171.5417f, 122.1235f, 125.7917f, 108.75f,   114.1235f,
                                      158.4028f, 87.75f,    175.5f,    116.2361f};
    rm_transform larger = rm_transform_fixed(15, 10, &(rm_crop){4, 4, 6});
    frame(&larger, &image, NULL, out);
    for (int i = 0; i < 16; i++)
        ck_assert_msg(fabsf(out[i] - cropped[i]) < 1e-3f, "%d: %g, not %g", i, out[i], cropped[i]);
    rm_transform same = rm_transform_fixed(15, 10, &(rm_crop){15, 10, 0});
    float copy[150];
    frame(&same, &image, "1:2", copy);
    for (int i = 0; i < 150; i++) ck_assert(copy[i] == ((float)data[i] - 1) / 2);
}
END_TEST

START_TEST(invalid_transform_flags_are_refused) {
    rm_augment a;
    rm_normalize n;
    ck_fails(rm_augment_parse("crop", &a), REMAT_INVALID, "'crop'");
    ck_fails(rm_augment_parse("crop:0", &a), REMAT_INVALID, "'crop:0'");
    ck_fails(rm_augment_parse("flip,turn", &a), REMAT_INVALID, "'turn'");
    ck_fails(rm_augment_parse("crop:2,resized-crop", &a), REMAT_INVALID, "crop|resized-crop");
    ck_ok(rm_augment_parse("none", &a));
    ck_fails(rm_normalize_parse("0.5", 3, &n), REMAT_INVALID, "MEAN:STD");
    ck_fails(rm_normalize_parse("0.5:0", 3, &n), REMAT_INVALID, "a standard deviation of 0 cannot be used");
    ck_fails(rm_normalize_parse("0:1,0:1", 3, &n), REMAT_INVALID, "2 pairs|3 channels");
    ck_fails(rm_normalize_parse("0:1,0:1,", 1, &n), REMAT_INVALID, "MEAN:STD");
    ck_ok(rm_normalize_parse("1:2,3:4,5:6", 3, &n));
    ck_assert(n.mean[1] == 3 && n.deviation[2] == 6);
}
END_TEST

/* ---- Order ------------------------------------------------------------------------------------------------------- */

/* A loader of transformed images, as rank r of W, with this many threads. */
static void load(rm_dataset *d, int64_t rank, int64_t size, int64_t threads, rm_loader *out) {
    ck_ok(rm_loader_create(
        d, &(rm_loader_config){.batch = 4, .shuffle = true, .rank = rank, .size = size, .threads = threads}, out));
}

/* Any number of threads, ranks and restarts gives the same images. */
START_TEST(images_do_not_depend_on_threads_or_ranks) {
    uint8_t data[2000];
    enum { FEATURES = 100, UPDATES = 12 };
    for (int i = 0; i < 2000; i++) data[i] = (uint8_t)(i * 31);
    rm_data_source source = {
        .data = make_npy("x.npy", "|u1", "(20, 10, 10)", data, 2000), .unlabelled = true, .classes = 2};
    source.augment = "crop:3,flip", source.threads = 3;
    rm_dataset *one = open_ok(source), *other = open_ok(source);
    for (int64_t threads = 0; threads < 4; threads++) {
        rm_loader whole, half;
        ck_ok(rm_loader_create(one, &(rm_loader_config){.batch = 8, .shuffle = true}, &whole));
        load(other, 1, 2, threads, &half);
        for (int i = 0; i < UPDATES; i++) {
            if (i == UPDATES / 2) ck_ok(rm_loader_seek(&half, half.epoch, half.consumed));
            ck_ok(rm_loader_next(&whole));
            ck_ok(rm_loader_next(&half));
            ck_assert(half.epoch == whole.epoch && half.consumed == whole.consumed && one->epoch == whole.epoch);
            for (int k = 0; k < 4; k++)
                ck_assert_msg(!memcmp((float *)half.batch.data[RM_INPUT] + k * FEATURES,
                                      (float *)whole.batch.data[RM_INPUT] + (2 * k + 1) * FEATURES,
                                      FEATURES * sizeof(float)),
                              "update %d, row %d of rank 1, %d threads", i, k, (int)threads);
        }
        ck_assert_int_ge(whole.epoch, 2);
        rm_loader_free(&whole);
        rm_loader_free(&half);
    }
    rm_dataset_close(one);
    rm_dataset_close(other);
}
END_TEST

/* Transforms differ between epochs. */
START_TEST(transforms_differ_between_epochs) {
    float first[24], second_time[24];
    int32_t label;
    rm_data_source source = {
        .data = make_npy("x.npy", "|u1", "(2, 6, 4)", bytes, 48), .unlabelled = true, .classes = 2};
    source.augment = "crop:2";
    rm_dataset *d = open_ok(source);
    int changed = 0;
    for (d->epoch = 0; d->epoch < 8; d->epoch++) {
        ck_ok(rm_dataset_fill(d, 0, 0, 1, second_time, &label));
        changed += d->epoch && memcmp(first, second_time, sizeof first);
        memcpy(first, second_time, sizeof first);
    }
    ck_assert_int_ge(changed, 5);
    rm_dataset_close(d);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("images");
    tcase_add_test(tests, axes_of_arrays_are_recognised);
    tcase_add_test(tests, channels_may_come_last);
    tcase_add_test(tests, cifar_files_are_read);
    tcase_add_test(tests, crops_are_windows_of_the_padded_image);
    tcase_add_test(tests, transforms_depend_on_seed_epoch_and_sample);
    tcase_add_test(tests, resizing_matches_pillow);
    tcase_add_test(tests, invalid_transform_flags_are_refused);
    tcase_add_test(tests, images_do_not_depend_on_threads_or_ranks);
    tcase_add_test(tests, transforms_differ_between_epochs);
    return run_suite("images", tests);
}

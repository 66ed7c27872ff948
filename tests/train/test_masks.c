/* test_masks.c: folders of images and masks give the samples of the same arrays; Dice scores. Without a PNG
 * decoder in the build only these are tested. */
#include "tests/train/train_test.h"

#include "train/data/decode.h"
#include "train/models/model.h"
#include "train/run/outputs.h"

#include <zlib.h>

enum { N = 12, SIDE = 8, PIXELS = SIDE * SIDE };
#define UNET "--model=unet --layers=1 --hidden=4 --batch=4 --steps=3 --eval-split=0.25 "

static uint8_t image[N][PIXELS][3], mask[N][PIXELS];

static uint8_t *put(uint8_t *at, uint32_t x) {
    for (int i = 0; i < 4; i++) *at++ = (uint8_t)(x >> (24 - 8 * i));
    return at;
}
static uint8_t *put_chunk(uint8_t *at, const char *kind, const void *data, uint32_t bytes) {
    uint8_t *begin = at = put(at, bytes);
    memcpy(at, kind, 4);
    if (bytes) memcpy(at + 4, data, bytes);
    at += 4 + bytes;
    return put(at, (uint32_t)crc32(crc32(0, NULL, 0), begin, 4 + bytes));
}

static void make_png(const char *name, const uint8_t *pixel, int channels, int side) {
    uint8_t header[13] = {0, 0, 0, (uint8_t)side, 0, 0, 0, (uint8_t)side, 8, channels == 3 ? 2 : 0}, rows[1000],
            packed[2000], file[3000];
    size_t row = (size_t)(side * channels);
    uLongf bytes = sizeof packed;
    for (int y = 0; y < side; y++) {
        rows[(size_t)y * (row + 1)] = 0;
        memcpy(rows + (size_t)y * (row + 1) + 1, pixel + (size_t)y * row, row);
    }
    ck_assert_int_eq(compress(packed, &bytes, rows, (size_t)side * (row + 1)), Z_OK);
    memcpy(file, "\x89PNG\r\n\x1a\n", 8);
    uint8_t *at = put_chunk(file + 8, "IHDR", header, sizeof header);
    at = put_chunk(put_chunk(at, "IDAT", packed, (uint32_t)bytes), "IEND", NULL, 0);
    make_file(name, file, (size_t)(at - file));
}

/* Two grey values, 0 and `light`; the names of masks end in `suffix`. */
static void make_folders(int light, const char *suffix) {
    char name[64];
    ck_assert(!mkdir(in_scratch("imgs"), 0700) && !mkdir(in_scratch("masks"), 0700));
    for (int i = 0; i < N; i++) {
        for (int p = 0; p < PIXELS; p++) {
            mask[i][p] = (p * 7 + i * 5) % 11 < 4 ? (uint8_t)light : 0;
            for (int c = 0; c < 3; c++)
                image[i][p][c] = (uint8_t)((p * 31 + c * 17 + i * 3) % 100 + (mask[i][p] ? 90 : 0));
        }
        snprintf(name, sizeof name, "imgs/%c.png", 'a' + i);
        make_png(name, image[i][0], 3, SIDE);
        snprintf(name, sizeof name, "masks/%c%s.png", 'a' + i, suffix);
        make_png(name, mask[i], 1, SIDE);
    }
}

static void make_arrays(void) {
    uint8_t label[N][PIXELS], planes[N][3][PIXELS];
    for (int i = 0; i < N; i++)
        for (int p = 0; p < PIXELS; p++) {
            label[i][p] = mask[i][p] != 0;
            for (int c = 0; c < 3; c++) planes[i][c][p] = image[i][p][c];
        }
    make_npy("x.npy", "|u1", "(12, 3, 8, 8)", planes, sizeof planes);
    make_npy("y.npy", "|u1", "(12, 8, 8)", label, sizeof label);
}

/* Everything about the data but their names: the output after the first lines, without times. */
static void note_losses(char losses[4000], const char *data, const char *labels, const char *state) {
    *losses = 0;
    ck_runs("train " UNET "--data=%s --labels=%s --save=%s --metrics=%s.jsonl", in_scratch(data), in_scratch(labels),
            in_scratch(state), in_scratch(state));
    ck_runs("eval --resume=%s --data=%s --labels=%s", in_scratch(state), in_scratch(data), in_scratch(labels));
    snprintf(losses, 4000, "%.3999s", program_output);
}

START_TEST(folders_give_the_samples_of_arrays) {
    char folders[4000], arrays[4000];
    make_folders(_i ? 1 : 255, _i ? "" : "_mask");
    make_arrays();
    note_losses(folders, "imgs", "masks", "one");
    note_losses(arrays, "x.npy", "y.npy", "two");
    ck_assert_str_eq(folders, arrays);
    ck_says_all(folders, "loss|accuracy|Dice score|(12 samples)");
    ck_runs("eval --resume=%s --data=%s --labels=%s --loader-threads=3", in_scratch("one"), in_scratch("imgs"),
            in_scratch("masks"));
    ck_assert_str_eq(folders, program_output);
    ck_runs("predict --resume=%s --data=%s --out=%s", in_scratch("one"), in_scratch("imgs"), in_scratch("p.npy"));
}
END_TEST

/* Masks are resized and cropped with their images: at half the size a class is that of the nearest pixel. Classes lie at
 * two edges, so that a shift changes their number. */
START_TEST(masks_are_resized_with_images) {
    make_folders(255, "");
    for (int i = 0; i < N; i++) { /* blocks of 2 x 2 pixels have one class */
        char name[64];
        for (int p = 0; p < PIXELS; p++) mask[i][p] = p / 2 % 4 == 0 || (i % 2 && p / 16 == 0) ? 255 : 0;
        snprintf(name, sizeof name, "masks/%c.png", 'a' + i);
        make_png(name, mask[i], 1, SIDE);
    }
    ck_runs("train " UNET "--data=%s --labels=%s --image-size=4 --classes=2 --save=%s", in_scratch("imgs"),
            in_scratch("masks"), in_scratch("st"));
    int light = 0, all = 0;
    for (int i = 0; i < N; i++)
        for (int p = 0; p < 16; p++, all++) light += p % 4 == 0 || (i % 2 && p / 4 == 0);
    ck_runs("eval --resume=%s --data=%s --labels=%s --json", in_scratch("st"), in_scratch("imgs"), in_scratch("masks"));
    const char *at = strstr(program_output, "\"confusion\":[[");
    ck_assert_ptr_nonnull(at);
    int of[4];
    ck_assert_int_eq(sscanf(at, "\"confusion\":[[%d,%d],[%d,%d]]", of, of + 1, of + 2, of + 3), 4);
    ck_assert_int_eq(of[2] + of[3], light);
    ck_assert_int_eq(of[0] + of[1], all - light);
}
END_TEST

START_TEST(unfit_masks_are_refused) {
    make_folders(255, "");
    const char *x = in_scratch("imgs"), *y = in_scratch("masks");
    ck_assert_int_eq(rename(in_scratch("masks/c.png"), in_scratch("c.png")), 0);
    ck_refuses(2, "imgs/c.png|no mask", "train " UNET "--data=%s --labels=%s", x, y);
    make_png("masks/c.png", mask[0], 1, 4);
    ck_refuses(2, "8 x 8|4 x 4|masks/c.png", "train " UNET "--data=%s --labels=%s", x, y);
    make_png("masks/c.png", mask[2], 1, SIDE);
    make_png("masks/c_mask.png", mask[2], 1, SIDE);
    ck_refuses(2, "two masks|c_mask.png", "train " UNET "--data=%s --labels=%s", x, y);
    ck_assert_int_eq(unlink(in_scratch("masks/c_mask.png")), 0);
    ck_refuses(2, "x.npy|folder", "train " UNET "--data=%s --labels=%s", x, in_scratch("x.npy"));
    ck_refuses(2, "--labels", "train " UNET "--data=%s", x);
}
END_TEST

/* The last loss of a run that adds `flags`. */
static double loss_with(const char *flags) {
    double loss;
    ck_runs("train " UNET "--data=%s --labels=%s %s", in_scratch("x.npy"), in_scratch("y.npy"), flags);
    const char *at = strstr(program_output, "loss ");
    for (const char *next; at && (next = strstr(at + 1, "loss ")); at = next) {}
    ck_assert(at && sscanf(at, "loss %lf", &loss) == 1);
    return loss;
}

/* Each Dice loss is near 1/2 with two classes and initial weights. */
START_TEST(dice_loss_is_added_to_the_cross_entropy) {
    make_folders(255, "");
    make_arrays();
    double plain = loss_with("--steps=1"), dice = loss_with("--steps=1 --loss=dice") - plain,
           joint = loss_with("--steps=1 --loss=joint-dice") - plain;
    ck_assert(dice > 0.2 && dice < 0.8 && joint > 0.2 && joint < 0.8 && dice != joint);
    ck_refuses(2, "--loss=mae|--task=regress", "train " UNET "--data=%s --labels=%s --loss=mae", in_scratch("x.npy"),
               in_scratch("y.npy"));
    ck_refuses(2, "--loss=mse|--task=regress", "train " UNET "--data=%s --labels=%s --loss=mse", in_scratch("x.npy"),
               in_scratch("y.npy"));
    ck_refuses(2, "--loss=dice|--model=unet", "train --task=classify --model=lstm --data=%s --labels=%s --loss=dice",
               in_scratch("x.npy"), in_scratch("y.npy"));
}
END_TEST

/* Class 1: pixels 0 and 1 found, 1 and 2 right; class 2: neither found nor there; the last pixel does not count. */
START_TEST(dice_is_the_mean_over_classes_but_the_background) {
    static const float logits[5][3] = {{0, 1, 0}, {0, 1, 0}, {1, 0, 0}, {1, 0, 0}, {0, 0, 1}};
    static const int32_t target[] = {0, 1, 1, 0, -1};
    int64_t count[6];
    ck_assert_double_eq_tol(rm_dice(logits[0], target, 5, 3, count), (0.5 + 1) / 2, 1e-15);
    ck_assert_double_eq_tol(rm_dice(logits[0], target, 4, 3, count), (0.5 + 1) / 2, 1e-15);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("masks");
    tcase_add_test(tests, dice_loss_is_added_to_the_cross_entropy);
    tcase_add_test(tests, dice_is_the_mean_over_classes_but_the_background);
    if (strncmp(rm_png_library(), "not", 3)) {
        tcase_add_loop_test(tests, folders_give_the_samples_of_arrays, 0, 2);
        tcase_add_test(tests, masks_are_resized_with_images);
        tcase_add_test(tests, unfit_masks_are_refused);
    }
    return run_suite("train/masks", tests);
}

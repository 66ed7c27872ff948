/* test_folder.c: folders of JPEG and PNG files: decoding every kind of file, the numbers of classes, damaged files.
 * Skipped if the build has no decoders. */
#include "train/tasks/task.h"
#include "train/data/decode.h"

#include "tests/train/image_files.h"
#include "tests/train/train_test.h"
#include "train/data/dataset.h"

#include <jansson.h>
#include <math.h>

enum { PIXELS = IMAGE_HEIGHT * IMAGE_WIDTH };

static bool has(const char *library) { return strncmp(library, "not", 3) != 0; }

/* Pillow's JPEG decoder may have another version, which rounds differently. */
START_TEST(decoders_match_pillow) {
    const uint8_t *rgb = image_files[_i].rgb;
    const char *name = image_files[_i].name;
    const int within = *name == 'j' ? 2 : 0;
    rm_image_size size;
    uint8_t out[3 * PIXELS], grey[PIXELS];
    ck_ok(rm_image_size_of(image_files[_i].data, image_files[_i].size, name, &size));
    ck_assert(size.height == IMAGE_HEIGHT && size.width == IMAGE_WIDTH);
    ck_ok(rm_image_decode(image_files[_i].data, image_files[_i].size, name, 3, &size, out));
    ck_ok(rm_image_decode(image_files[_i].data, image_files[_i].size, name, 1, &size, grey));
    for (int i = 0; i < 3 * PIXELS; i++)
        ck_assert_msg(abs(out[i] - rgb[i]) <= within, "%s: byte %d is %d, not %d", name, i, out[i], rgb[i]);
    for (int i = 0; i < PIXELS; i++)
        ck_assert_msg(abs(grey[i] - image_files[_i].grey[i]) <= within, "%s: pixel %d is %d, not %d", name, i, grey[i],
                      image_files[_i].grey[i]);
}
END_TEST

/* A JPEG file with missing data but a valid end marker is read as Pillow reads it, not refused. */
START_TEST(files_that_pillow_repairs_are_read) {
    static const uint8_t rgb[3 * PIXELS] = {
        0,   31,  34,  10,  41,  46,  21,  51,  61,  31,  60,  76,  41,  69,  90,  53,  80,  107, 64,  91,  121,
        25,  56,  59,  36,  67,  72,  46,  76,  86,  57,  86,  102, 67,  95,  116, 79,  106, 133, 89,  116, 146,
        49,  80,  83,  60,  91,  96,  71,  101, 111, 82,  111, 127, 91,  119, 140, 103, 130, 157, 114, 141, 171,
        75,  106, 109, 86,  117, 122, 97,  127, 137, 107, 136, 152, 117, 145, 166, 129, 156, 183, 139, 166, 196,
        100, 131, 134, 111, 142, 147, 122, 152, 162, 133, 162, 178, 142, 170, 191, 154, 181, 208, 165, 192, 222};
    uint8_t file[1024], out[3 * PIXELS];
    size_t size = image_files[0].size - 14;
    rm_image_size is;
    memcpy(file, image_files[0].data, size);
    file[size - 2] = 0xff, file[size - 1] = 0xd9;
    ck_ok(rm_image_size_of(file, size, "x", &is));
    ck_ok(rm_image_decode(file, size, "x", 3, &is, out));
    for (int i = 0; i < 3 * PIXELS; i++)
        ck_assert_msg(abs(out[i] - rgb[i]) <= 2, "byte %d is %d, not %d", i, out[i], rgb[i]);
}
END_TEST

/* Truncated at every byte. */
START_TEST(truncated_files_are_refused) {
    rm_image_size size, now;
    uint8_t out[3 * PIXELS];
    size_t whole = image_files[_i].size;
    ck_ok(rm_image_size_of(image_files[_i].data, whole, "x", &size));
    for (size_t n = 0; n + 2 < whole; n++) {
        remat_status status = rm_image_size_of(image_files[_i].data, n, "x", &now);
        if (!status) status = rm_image_decode(image_files[_i].data, n, "x", 3, &size, out);
        ck_assert_msg(status == REMAT_IO, "%s cut at %zu of %zu: status %d", image_files[_i].name, n, whole, status);
    }
    size.width++;
    ck_fails(rm_image_decode(image_files[_i].data, whole, "x", 3, &size, out), REMAT_IO, "changed");
}
END_TEST

static void put(const char *name, int file, size_t cut) {
    make_file(name, image_files[file].data, image_files[file].size - cut);
}

/* Classes by name, files by name in each. */
static const char *make_folder(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", in_scratch("f"));
    ck_assert_int_eq(system(command), 0);
    mkdir(in_scratch("f"), 0700);
    mkdir(in_scratch("f/b"), 0700);
    mkdir(in_scratch("f/a"), 0700);
    mkdir(in_scratch("f/empty"), 0700);
    mkdir(in_scratch("f/.ipynb_checkpoints"), 0700); /* not a class */
    put("f/b/1.JPEG", 0, 0);
    put("f/b/0.png", 4, 0);
    put("f/a/z.jpg", 2, 0);
    make_file("f/a/notes.txt", "no image", 8);
    return in_scratch("f");
}

START_TEST(classes_are_folders) {
    rm_data_source source = {.data = make_folder(), .images = true, .image_size = IMAGE_HEIGHT, .threads = 2};
    rm_dataset *d, *again;
    int32_t label[3];
    static float x[3][3 * 25];
    uint32_t crc[2];
    ck_ok(rm_task_open("classify", &source, &d));
    ck_assert(d->count == 3 && d->shape.classes == 3 && d->shape.channels == 3 && d->shape.height == IMAGE_HEIGHT);
    for (int i = 0; i < 3; i++) ck_ok(rm_dataset_fill(d, i, 0, 1, x[i], &label[i]));
    ck_assert(label[0] == 0 && label[1] == 1 && label[2] == 1);
    for (int c = 0; c < 3; c++) /* the middle five columns of 0.png */
        for (int k = 0; k < 25; k++)
            ck_assert(x[1][c * 25 + k] ==
                      (float)(image_files[4].rgb[(k / 5 * IMAGE_WIDTH + k % 5 + 1) * 3 + c] / 255.0));
    ck_ok(rm_dataset_checksum(d, &crc[0]));
    put("f/b/2.png", 5, 0);
    ck_ok(rm_task_open("classify", &source, &again));
    ck_ok(rm_dataset_checksum(again, &crc[1]));
    ck_assert(again->count == 4 && crc[0] != crc[1]);
    rm_dataset_close(d);
    rm_dataset_close(again);
    source.classes = 4;
    ck_fails(rm_task_open("classify", &source, &d), REMAT_INVALID, "3 folders|4 classes");
    source.unlabelled = true;
    ck_ok(rm_task_open("classify", &source, &d));
    ck_assert_int_eq(d->shape.classes, 4);
    rm_dataset_close(d);
    source.classes = 0, source.unlabelled = false;
    source.image_size = 0;
    ck_fails(rm_task_open("classify", &source, &d), REMAT_INVALID, "--image-size=S");
    source.image_size = 8, source.labels = "l";
    ck_fails(rm_task_open("classify", &source, &d), REMAT_INVALID, "--labels");
    source.labels = NULL, source.channels = 2;
    ck_fails(rm_task_open("classify", &source, &d), REMAT_INVALID, "1 (grey)");
    source.data = in_scratch("f/b"), source.channels = 0; /* images, but no folder */
    ck_fails(rm_task_open("classify", &source, &d), REMAT_INVALID, "ImageNet");
}
END_TEST

/* A folder one level too high, also with empty folders beside it. An explicit --classes is accepted. */
START_TEST(single_class_is_refused) {
    char command[400];
    rm_data_source source = {.data = in_scratch("above"), .images = true, .image_size = 4};
    rm_dataset *d;
    make_folder();
    snprintf(command, sizeof command, "rm -rf %s && mkdir %s && mv %s %s/train", source.data, source.data,
             in_scratch("f"), source.data);
    ck_assert_int_eq(system(command), 0);
    for (int beside = 0; beside < 2; beside++) {
        if (beside) mkdir(in_scratch("above/empty"), 0700);
        ck_fails(rm_task_open("classify", &source, &d), REMAT_INVALID, "above|one folder|train|one class");
        source.classes = 1 + beside;
        ck_ok(rm_task_open("classify", &source, &d));
        rm_dataset_close(d);
        source.classes = 0;
    }
    source.data = in_scratch("above/train");
    ck_ok(rm_task_open("classify", &source, &d));
    rm_dataset_close(d);
}
END_TEST

/* The files that torchvision 0.29's ImageFolder lists, in its order, except for a class that starts with a dot. Each
 * file is damaged, so that the error names it. */
START_TEST(files_match_torchvisions_image_folder) {
    static const char *const folders[] = {".c",  "a",     "a/deep", "a/deep/er", "b",
                                          "b/a", "b/a/y", "b/a-b",  "b/B",       "b/.d"};
    static const char *const listed[] = {"a/deep/er/z.jpg", "b/.h.png",  "b/.jpg",      "b/1.JPEG",
                                         "b/a.png",         "b/n.bmp",   "b/.d/q.png",  "b/B/0.PNG",
                                         "b/a/n.webp",      "b/a/x.png", "b/a-b/z.png", "b/a/y/0.png"};
    enum { LISTED = sizeof listed / sizeof *listed };
    char name[64], command[300], root[300];
    rm_data_source source = {.data = root, .images = true, .image_size = 4};
    rm_dataset *d;
    float x[48];
    int32_t label;
    snprintf(root, sizeof root, "%s", in_scratch("g"));
    snprintf(command, sizeof command, "rm -rf %s", in_scratch("g"));
    ck_assert_int_eq(system(command), 0);
    mkdir(in_scratch("g"), 0700);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(name, sizeof name, "g/%s", folders[i]);
        mkdir(in_scratch(name), 0700);
    }
    for (int i = LISTED - 1; i >= 0; i--) {
        snprintf(name, sizeof name, "g/%s", listed[i]);
        put(name, 4, 30);
    }
    put("g/.c/0.png", 4, 30);
    make_file("g/b/n.txt", "no image", 8);
    make_file("g/0.png", "of no class", 11);
    ck_assert_int_eq(symlink("../a/deep", in_scratch("g/b/link")), 0);
    ck_ok(rm_task_open("classify", &source, &d));
    ck_assert_int_eq(d->count, LISTED + 1);
    ck_assert_int_eq(d->shape.classes, 2);
    for (int i = 0; i <= LISTED; i++) {
        snprintf(name, sizeof name, "g/%s|damaged", i < LISTED ? listed[i] : "b/link/er/z.jpg");
        ck_fails(rm_dataset_fill(d, i, 0, 1, x, &label), REMAT_IO, name);
    }
    rm_dataset_close(d);
    make_file("g/b/a/m.tif", "not an image at all", 19);
    ck_fails(rm_task_open("classify", &source, &d), REMAT_IO, "g/b/a/m.tif|JPEG|PNG");
}
END_TEST

/* EXIF orientation: Pillow's convert, which ImageFolder calls, does not rotate the image. */
START_TEST(images_are_not_rotated) {
    static const uint8_t note[] = {0xFF, 0xE1, 0, 34, 'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8,
                                   0,    1,    1, 18, 0,   3,   0,   0,   0, 1, 0,   6,   0, 0,  0, 0, 0, 0};
    static uint8_t file[4096];
    const size_t size = image_files[0].size;
    rm_image_size plain, noted;
    uint8_t out[2][3 * PIXELS];
    memcpy(file, image_files[0].data, 2);
    memcpy(file + 2, note, sizeof note);
    memcpy(file + 2 + sizeof note, image_files[0].data + 2, size - 2);
    ck_ok(rm_image_size_of(image_files[0].data, size, "x", &plain));
    ck_ok(rm_image_size_of(file, size + sizeof note, "x", &noted));
    ck_assert(noted.height == plain.height && noted.width == plain.width);
    ck_ok(rm_image_decode(image_files[0].data, size, "x", 3, &plain, out[0]));
    ck_ok(rm_image_decode(file, size + sizeof note, "x", 3, &noted, out[1]));
    ck_assert(!memcmp(out[0], out[1], sizeof out[0]));
}
END_TEST

/* A damaged header is detected when the folder is opened, a damaged body when it is read. With --skip the file is
 * ignored. */
START_TEST(damaged_files_are_refused_or_skipped) {
    rm_data_source source = {.data = make_folder(), .images = true, .image_size = 4};
    rm_dataset *d;
    float x[48];
    int32_t label;
    put("f/a/cut.png", 4, 30);
    ck_ok(rm_task_open("classify", &source, &d));
    ck_fails(rm_dataset_fill(d, 0, 0, 1, x, &label), REMAT_IO, "f/a/cut.png|damaged");
    ck_ok(rm_dataset_fill(d, 1, 0, 1, x, &label));
    rm_dataset_close(d);
    make_file("f/b/text.png", "not an image at all", 19);
    ck_fails(rm_task_open("classify", &source, &d), REMAT_IO, "f/b/text.png|JPEG|PNG");
    source.skip_broken = true;
    ck_ok(rm_task_open("classify", &source, &d));
    ck_assert_int_eq(d->count, 3);
    for (int i = 0; i < 3; i++) ck_ok(rm_dataset_fill(d, i, 0, 1, x, &label));
    rm_dataset_close(d);
}
END_TEST

/* A dangling link, a pipe and an unreadable file are also skipped. */
START_TEST(unreadable_files_are_refused_or_skipped) {
    rm_data_source source = {.data = make_folder(), .images = true, .image_size = 4};
    rm_dataset *d;
    ck_ok(rm_task_open("classify", &source, &d));
    int64_t count = d->count;
    rm_dataset_close(d);
    put("f/a/secret.png", 4, 0);
    chmod(in_scratch("f/a/secret.png"), 0);
    bool readable = access(in_scratch("f/a/secret.png"), R_OK) == 0; /* if the test runs as root */
    ck_assert_int_eq(symlink("nothing.jpg", in_scratch("f/a/link.jpg")), 0);
    ck_assert_int_eq(mkfifo(in_scratch("f/b/pipe.jpeg"), 0600), 0);
    ck_fails(rm_task_open("classify", &source, &d), REMAT_IO, "f/");
    source.skip_broken = true;
    ck_ok(rm_task_open("classify", &source, &d));
    ck_assert_int_eq(d->count, count + readable);
    rm_dataset_close(d);
}
END_TEST

/* A file that changes during the run is detected, whatever its new content. */
START_TEST(changed_files_are_detected) {
    rm_data_source source = {.data = make_folder(), .images = true, .image_size = 4};
    rm_dataset *d;
    float x[48];
    int32_t label;
    ck_ok(rm_task_open("classify", &source, &d));
    put("f/a/z.jpg", 4, 0);
    ck_fails(rm_dataset_fill(d, 0, 0, 1, x, &label), REMAT_IO, "f/a/z.jpg|changed");
    ck_assert_uint_gt(d->held_bytes, 1 << 20); /* memory that decoders may need */
    rm_dataset_close(d);
}
END_TEST

/* The program: two folders must have the same class names, because names determine the numbers of classes. */
START_TEST(runs_train_on_folders) {
    char line[600];
    make_folder();
    snprintf(line, sizeof line,
             "--model=cnn --data=%s --image-size=6 --batch=2 --threads=1 --loader-threads=2 --seed=3", in_scratch("f"));
    ck_runs("train %s --eval-data=%s --steps=3 --save=%s --augment=resized-crop,flip", line, in_scratch("f"),
            in_scratch("st"));
    ck_says_all(program_output, "3 samples of 3 x 6 x 6, 3 classes");
    ck_runs("eval --resume=%s --data=%s", in_scratch("st"), in_scratch("f"));
    ck_says_all(program_output, "(3 samples)");
    ck_refuses(2, "3|--batch=400", "train %s --batch=400", line);
    mkdir(in_scratch("g"), 0700);
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "g/%c", "abz"[i]);
        mkdir(in_scratch(name), 0700);
    }
    put("g/a/0.png", 4, 0);
    ck_refuses(2, "names|classes", "train %s --eval-data=%s --steps=1", line, in_scratch("g"));
    make_file("f/b/text.png", "not an image", 12);
    ck_refuses(1, "f/b/text.png|JPEG|PNG", "train %s --steps=1", line);
    ck_runs("train %s --steps=1 --skip-broken", line);
    ck_says_all(program_errors, "f/b/text.png");
    put("f/b/text.png", 4, 30); /* its header is complete */
    ck_refuses(1, "f/b/text.png|damaged", "train %s --steps=4", line);
    ck_refuses(2, "--image-size=S", "train --model=cnn --data=%s", in_scratch("f"));
    ck_refuses(1, "f/nowhere|exist", "train --model=cnn --data=%s", in_scratch("f/nowhere"));
}
END_TEST

static void rename_class(const char *from, const char *to) {
    ck_assert_int_eq(rename(in_scratch(from), in_scratch(to)), 0);
}

/* A state of a version without class names. */
static void forget_names(const char *state_json) {
    json_t *root = json_load_file(state_json, 0, NULL);
    ck_assert_int_eq(json_array_size(json_object_get(root, "classes")), 3);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(root, "classes"), 1)), "b,1");
    json_object_del(root, "classes");
    json_object_del(root, "crc32");
    ck_assert_int_eq(json_dump_file(root, state_json, 0), 0);
    json_decref(root);
}

/* Class names determine the numbers of the classes, so they are part of the model. */
START_TEST(states_contain_class_names) {
    char st[300], f[300];
    make_folder();
    rename_class("f/b", "f/b,1");
    snprintf(st, sizeof st, "%s", in_scratch("st"));
    snprintf(f, sizeof f, "%s", in_scratch("f"));
    ck_runs("train --model=cnn --data=%s --image-size=6 --batch=2 --threads=1 --steps=1 --save=%s", f, st);
    ck_runs("predict --resume=%s --data=%s", st, f);
    ck_assert_msg(!strncmp(program_output, "a,\"b,1\",empty\n", 14), "%s", program_output);
    ck_runs("predict --resume=%s --data=%s --out=%s", st, f, in_scratch("p.npy"));
    ck_assert_str_eq(program_output, "columns: a, b,1, empty\n");
    ck_runs("predict --init=%s/step-00000001/model.safetensors --data=%s --image-size=6", st, f);
    ck_assert_msg(!strncmp(program_output, "a,\"b,1\",empty\n", 14), "%s", program_output);
    ck_runs("eval --init=%s/step-00000001/model.safetensors --data=%s --image-size=6", st, f);
    rename_class("f/a", "f/c");
    ck_refuses(2, "class 0|b,1", "eval --init=%s/step-00000001/model.safetensors --data=%s --image-size=6", st, f);
    ck_refuses(2, "class 0|b,1", "eval --resume=%s --data=%s", st, f);
    ck_says_all(program_errors, "'a'");
    ck_refuses(2, "class 0|b,1", "train --resume=%s --steps=2", st);
    ck_runs("predict --resume=%s --data=%s", st, f); /* predict reads no labels */
    forget_names(in_scratch("st/step-00000001/state.json"));
    ck_runs("eval --resume=%s --data=%s", st, f);
    rename_class("f/c", "f/a");
    ck_runs("train --resume=%s --steps=2", st);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("folder");
    if (!has(rm_jpeg_library()) || !has(rm_png_library())) {
        printf("skipped: JPEG is %s, PNG %s\n", rm_jpeg_library(), rm_png_library());
        return 77;
    }
    tcase_add_loop_test(tests, decoders_match_pillow, 0, IMAGE_FILES);
    tcase_add_loop_test(tests, truncated_files_are_refused, 0, IMAGE_FILES);
    tcase_add_test(tests, classes_are_folders);
    tcase_add_test(tests, single_class_is_refused);
    tcase_add_test(tests, states_contain_class_names);
    tcase_add_test(tests, files_match_torchvisions_image_folder);
    tcase_add_test(tests, images_are_not_rotated);
    tcase_add_test(tests, files_that_pillow_repairs_are_read);
    tcase_add_test(tests, damaged_files_are_refused_or_skipped);
    tcase_add_test(tests, unreadable_files_are_refused_or_skipped);
    tcase_add_test(tests, changed_files_are_detected);
    tcase_add_test(tests, runs_train_on_folders);
    return run_suite("folder", tests);
}

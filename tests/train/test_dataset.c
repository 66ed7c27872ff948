/* test_dataset.c: every kind of data gives the samples that its definition says, and files that do not fit are refused. */
#include "train/dataset.h"
#include "train/loader.h"

#include "memory/host.h"
#include "tests/train/train_test.h"

#include <math.h>
#include <zlib.h>

static rm_dataset *open_ok(const char *task, rm_data_source source) {
    rm_dataset *dataset;
    ck_ok(rm_dataset_open(task, &source, &dataset));
    return dataset;
}
static void open_fails(const char *task, rm_data_source source, remat_status status, const char *part) {
    rm_dataset *dataset;
    ck_fails(rm_dataset_open(task, &source, &dataset), status, part);
    ck_assert_ptr_null(dataset);
}

/* ---- Text ------------------------------------------------------------------------------------------------------- */

START_TEST(text_is_cut_as_defined) {
    const char *path = make_file("t", "abcdefghij", 10); /* T = 3: floor(9/3) = 3 samples */
    rm_dataset *d = open_ok("lm", (rm_data_source){.data = path, .timesteps = 3});
    int32_t x[3 * 2], y[3 * 2];
    ck_assert_int_eq(d->count, 3);
    ck_ok(d->fill(d, 2, 1, 2, x, y)); /* bytes 6..9 into column 1 of 2 */
    for (int t = 0; t < 3; t++) ck_assert(x[t * 2 + 1] == 'g' + t && y[t * 2 + 1] == 'h' + t);
    rm_dataset_close(d);
    d = open_ok("lm", (rm_data_source){.data = path, .timesteps = 9});
    ck_assert_int_eq(d->count, 1);
    rm_dataset_close(d);
    open_fails("lm", (rm_data_source){.data = path, .timesteps = 10}, REMAT_INVALID, "needs 11");
    open_fails("lm", (rm_data_source){.data = make_file("empty", "", 0)}, REMAT_INVALID, "0 bytes");
    open_fails("lm", (rm_data_source){.data = "/nowhere"}, REMAT_IO, "does not exist");
    open_fails("lm", (rm_data_source){.data = "/tmp"}, REMAT_IO, "directory");
    open_fails("lm", (rm_data_source){.data = "/dev/zero"}, REMAT_IO, "not a file that can be read twice");
    open_fails("lm", (rm_data_source){0}, REMAT_INVALID, "--data=FILE");
}
END_TEST

START_TEST(a_file_that_shrinks_is_noticed) {
    const char *path = make_file("t", "abcdefghij", 10);
    rm_dataset *d = open_ok("lm", (rm_data_source){.data = path, .timesteps = 3});
    int32_t x[3], y[3];
    ck_assert_int_eq(truncate(path, 8), 0);
    ck_fails(d->fill(d, 2, 0, 1, x, y), REMAT_IO, "ends at byte 8");
    rm_dataset_close(d);
}
END_TEST

/* ---- Images and features ---------------------------------------------------------------------------------------- */

static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 51, 255, 5, 6, 7};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 9};

static const char *make_gz(const char *name, const void *data, unsigned size) {
    const char *path = in_scratch(name);
    gzFile file = gzopen(path, "wb");
    ck_assert_int_eq(gzwrite(file, data, size), (int)size);
    ck_assert_int_eq(gzclose(file), Z_OK);
    return path;
}

static void check_images(const char *data, const char *label_path) {
    rm_dataset *d = open_ok("classify", (rm_data_source){.data = data, .labels = label_path});
    float x[3 * 2];
    int32_t y[2];
    ck_assert(d->count == 2 && d->shape.timesteps == 3 && d->shape.features == 1 && d->shape.classes == 10);
    ck_ok(d->fill(d, 0, 1, 2, x, y));
    ck_ok(d->fill(d, 1, 0, 2, x, y));
    ck_assert(x[1] == 0 && x[3] == 0.2f && x[5] == 1 && x[0] == 5.0f / 255);
    ck_assert(y[1] == 4 && y[0] == 9);
    rm_dataset_close(d);
}

START_TEST(images_are_sequences_of_pixels) {
    const char *plain = make_file("i", images, sizeof images), *label = make_file("l", labels, sizeof labels);
    check_images(plain, label);
    check_images(make_gz("i.gz", images, sizeof images), make_gz("l.gz", labels, sizeof labels));
    rm_dataset *d =
        open_ok("classify", (rm_data_source){.data = plain, .labels = label, .timesteps = 2, .classes = 12});
    ck_assert(d->shape.timesteps == 2 && d->shape.classes == 12);
    rm_dataset_close(d);
    open_fails("classify", (rm_data_source){.data = plain}, REMAT_INVALID, "--labels=FILE");
    open_fails("classify", (rm_data_source){.data = plain, .labels = label, .timesteps = 4}, REMAT_INVALID, "3 pixels");
    open_fails("classify", (rm_data_source){.data = plain, .labels = label, .classes = 5}, REMAT_INVALID, "label 9");
    open_fails("classify", (rm_data_source){.data = plain, .labels = plain}, REMAT_IO, "dimensions");
    open_fails("classify", (rm_data_source){.data = label, .labels = label}, REMAT_IO, "one dimension");
    open_fails("classify", (rm_data_source){.data = plain, .labels = "/nowhere"}, REMAT_IO, "does not exist");
}
END_TEST

START_TEST(damaged_gzip_is_noticed) {
    const char *path = make_gz("i.gz", images, sizeof images), *label = make_file("l", labels, sizeof labels);
    struct stat about;
    ck_assert_int_eq(stat(path, &about), 0);
    for (off_t size = about.st_size - 1; size > 2; size--) {
        rm_dataset *d;
        rm_data_source source = {.data = path, .labels = label};
        ck_assert_int_eq(truncate(path, size), 0);
        ck_assert_int_eq(rm_dataset_open("classify", &source, &d), REMAT_IO);
    }
}
END_TEST

START_TEST(other_numbers_of_labels_are_refused) {
    static const uint8_t three[] = {0, 0, 8, 1, 0, 0, 0, 3, 4, 9, 1};
    const char *plain = make_file("i", images, sizeof images), *label = make_file("l", three, sizeof three);
    open_fails("classify", (rm_data_source){.data = plain, .labels = label}, REMAT_INVALID, "3 labels for 2 samples");
}
END_TEST

START_TEST(numpy_features) {
    uint8_t file[80 + 48] = "\x93NUMPY\1\0\x46\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 2), }";
    for (int i = 0; i < 12; i++) {
        float value = (float)i;
        memcpy(file + 80 + 4 * i, &value, 4);
    }
    memset(file + 10 + strlen((char *)file + 10), ' ', 80 - 10 - strlen((char *)file + 10));
    const char *path = make_file("x.npy", file, sizeof file), *label = make_file("l", labels, sizeof labels);
    rm_dataset *d = open_ok("classify", (rm_data_source){.data = path, .labels = label, .timesteps = 2});
    float x[2 * 1 * 2];
    int32_t y[1];
    ck_assert(d->count == 2 && d->shape.features == 2 && d->shape.timesteps == 2);
    ck_ok(d->fill(d, 1, 0, 1, x, y)); /* its first two of three timesteps */
    ck_assert(x[0] == 6 && x[1] == 7 && x[2] == 8 && x[3] == 9 && y[0] == 9);
    rm_dataset_close(d);
    open_fails("classify", (rm_data_source){.data = path, .labels = path}, REMAT_INVALID, "real numbers");
}
END_TEST

/* ---- Is it the same? ---------------------------------------------------------------------------------------------- */

static uint32_t checksum_of(const char *task, rm_data_source source) {
    uint32_t crc;
    rm_dataset *d = open_ok(task, source);
    ck_ok(rm_dataset_checksum(d, &crc));
    rm_dataset_close(d);
    return crc;
}

START_TEST(checksums_tell_data_apart) {
    rm_data_source text = {.data = make_file("t", "abcdefghij", 10), .timesteps = 4}; /* 2 samples: bytes 0 .. 8 */
    uint32_t crc = checksum_of("lm", text);
    ck_assert_uint_eq(crc, (uint32_t)crc32(0, (const uint8_t *)"abcdefghi", 9));
    make_file("t", "abcdefghiX", 10);
    ck_assert_uint_eq(checksum_of("lm", text), crc);
    make_file("t", "abcdefghXj", 10);
    ck_assert_uint_ne(checksum_of("lm", text), crc);
    uint8_t other[sizeof images];
    rm_data_source set = {.data = make_file("i", images, sizeof images),
                          .labels = make_file("l", labels, sizeof labels)};
    crc = checksum_of("classify", set);
    ck_assert_uint_ne(crc, 0);
    set.data = make_gz("i.gz", images, sizeof images);
    ck_assert_uint_eq(checksum_of("classify", set), crc);
    memcpy(other, images, sizeof images);
    other[sizeof images - 1]++;
    set.data = make_file("i", other, sizeof other);
    ck_assert_uint_ne(checksum_of("classify", set), crc);
    make_file("i", images, sizeof images);
    ck_assert_uint_eq(checksum_of("classify", set), crc);
    memcpy(other, labels, sizeof labels);
    other[sizeof labels - 1]--;
    make_file("l", other, sizeof labels);
    ck_assert_uint_ne(checksum_of("classify", set), crc);
    ck_assert_uint_eq(checksum_of("adding", (rm_data_source){.timesteps = 5, .samples = 3}), 0);
}
END_TEST

static void put_byte(const char *path, off_t at, char byte) {
    int fd = open(path, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Of a large text only stretches are read: among them its beginning and the end of its last sample. */
START_TEST(checksums_of_large_texts) {
    const off_t samples = 300000, used = 1000 * samples + 1;
    rm_data_source text = {.data = make_file("t", "", 0), .timesteps = 1000};
    ck_assert_int_eq(truncate(text.data, used + 7), 0);
    uint32_t crc = checksum_of("lm", text);
    put_byte(text.data, used + 3, 'x');
    ck_assert_uint_eq(checksum_of("lm", text), crc);
    const off_t places[] = {0, 65535, used - 65536, used - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        put_byte(text.data, places[i], 'x');
        ck_assert_msg(checksum_of("lm", text) != crc, "byte %lld", (long long)places[i]);
        put_byte(text.data, places[i], 0);
        ck_assert_uint_eq(checksum_of("lm", text), crc);
    }
}
END_TEST

/* ---- Generated -------------------------------------------------------------------------------------------------- */

START_TEST(adding_adds) {
    enum { T = 9 };
    float x[T * 2], again[T * 2], other[T * 2], y[1], y_again[1];
    rm_data_source source = {.timesteps = T, .samples = 50, .seed = 3};
    rm_dataset *d = open_ok("adding", source);
    for (int64_t i = 0; i < 50; i++) {
        double sum = 0, marks = 0, early = 0;
        ck_ok(d->fill(d, i, 0, 1, x, y));
        for (int t = 0; t < T; t++) {
            ck_assert(x[2 * t] >= 0 && x[2 * t] < 1 && (x[2 * t + 1] == 0 || x[2 * t + 1] == 1));
            sum += (double)x[2 * t] * (double)x[2 * t + 1];
            marks += (double)x[2 * t + 1];
            if (t < T / 2) early += (double)x[2 * t + 1];
        }
        ck_assert(marks == 2 && early == 1 && fabs(sum - (double)y[0]) < 1e-6);
    }
    ck_ok(d->fill(d, 7, 0, 1, x, y));
    rm_dataset_close(d);
    d = open_ok("adding", source);
    ck_ok(d->fill(d, 7, 0, 1, again, y_again)); /* from the seed and the index alone */
    ck_assert(!memcmp(x, again, sizeof x) && y[0] == y_again[0]);
    rm_dataset_close(d);
    source.held_out = true;
    d = open_ok("adding", source);
    ck_ok(d->fill(d, 7, 0, 1, other, y));
    ck_assert(memcmp(x, other, sizeof x));
    rm_dataset_close(d);
    open_fails("adding", (rm_data_source){.timesteps = 1, .samples = 1}, REMAT_INVALID, "at least 2");
}
END_TEST

START_TEST(copy_copies) {
    for (int T = 21; T < 25; T++) {
        int32_t x[25], y[25];
        rm_dataset *d = open_ok("copy", (rm_data_source){.timesteps = T, .samples = 5, .seed = 1});
        ck_ok(d->fill(d, 4, 0, 1, x, y));
        for (int i = 0; i < 10; i++) ck_assert(x[i] >= 0 && x[i] < 8 && y[T - 10 + i] == x[i]);
        for (int t = 0; t < T - 10; t++) ck_assert_int_eq(y[t], 8);
        for (int t = 10; t < T; t++) ck_assert_int_eq(x[t], t == T - 11 ? 9 : 8);
        rm_dataset_close(d);
    }
    open_fails("copy", (rm_data_source){.timesteps = 20, .samples = 1}, REMAT_INVALID, "at least 21");
}
END_TEST

/* ---- Batches ---------------------------------------------------------------------------------------------------- */

START_TEST(batches_follow_the_order_and_can_start_anywhere) {
    rm_dataset *d = open_ok("copy", (rm_data_source){.timesteps = 21, .samples = 11, .seed = 1});
    rm_loader loader, other;
    int32_t seen[7][21 * 3];
    rm_loader_config order = {.batch = 3, .seed = 5, .shuffle = true};
    ck_ok(rm_loader_create(d, &order, &loader)); /* 3 batches of 3 an epoch; 2 samples dropped */
    ck_assert_int_eq(loader.per_epoch, 3);
    for (int i = 0; i < 7; i++) {
        ck_ok(rm_loader_next(&loader));
        memcpy(seen[i], loader.batch.input, sizeof seen[i]);
    }
    ck_assert(loader.epoch == 2 && loader.consumed == 3);
    ck_assert(memcmp(seen[0], seen[3], sizeof seen[0]) &&
              memcmp(seen[3], seen[6], sizeof seen[0])); /* each its order */
    ck_ok(rm_loader_create(d, &order, &other));
    ck_ok(rm_loader_seek(&other, 1, 6));
    for (int i = 5; i < 7; i++) {
        ck_ok(rm_loader_next(&other));
        ck_assert(!memcmp(seen[i], other.batch.input, sizeof seen[i]));
    }
    ck_fails(rm_loader_seek(&other, 0, 12), REMAT_INVALID, "other data");
    rm_loader_free(&loader);
    rm_loader_free(&other);
    order.batch = 12;
    ck_fails(rm_loader_create(d, &order, &loader), REMAT_INVALID, "11 samples");
    rm_loader_free(&loader);
    rm_dataset_close(d);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("dataset");
    tcase_add_test(tests, text_is_cut_as_defined);
    tcase_add_test(tests, a_file_that_shrinks_is_noticed);
    tcase_add_test(tests, images_are_sequences_of_pixels);
    tcase_add_test(tests, damaged_gzip_is_noticed);
    tcase_add_test(tests, checksums_tell_data_apart);
    tcase_add_test(tests, checksums_of_large_texts);
    tcase_add_test(tests, other_numbers_of_labels_are_refused);
    tcase_add_test(tests, numpy_features);
    tcase_add_test(tests, adding_adds);
    tcase_add_test(tests, copy_copies);
    tcase_add_test(tests, batches_follow_the_order_and_can_start_anywhere);
    return run_suite("train/dataset", tests);
}

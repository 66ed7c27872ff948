/* test_dataset.c: every kind of data gives the samples of its definition, and unsuitable files are refused. */
#include "train/tasks/task.h"
#include "train/data/dataset.h"
#include "train/data/loader.h"

#include "memory/host.h"
#include "tests/train/train_test.h"

#include <math.h>
#include <sys/resource.h>
#include <zlib.h>

static rm_dataset *open_ok(const char *task, rm_data_source source) {
    rm_dataset *dataset;
    ck_ok(rm_task_open(task, &source, &dataset));
    return dataset;
}
static void open_fails(const char *task, rm_data_source source, remat_status status, const char *part) {
    rm_dataset *dataset;
    ck_fails(rm_task_open(task, &source, &dataset), status, part);
    ck_assert_ptr_null(dataset);
}

static const char *make_gz(const char *name, const void *data, unsigned size) {
    const char *path = in_scratch(name);
    gzFile file = gzopen(path, "wb");
    ck_assert_int_eq(gzwrite(file, data, size), (int)size);
    ck_assert_int_eq(gzclose(file), Z_OK);
    return path;
}

static uint32_t checksum_of(const char *task, rm_data_source source) {
    uint32_t crc;
    rm_dataset *d = open_ok(task, source);
    ck_ok(rm_dataset_checksum(d, &crc));
    rm_dataset_close(d);
    return crc;
}

/* ---- Text ------------------------------------------------------------------------------------------------------- */

START_TEST(text_is_split_into_samples) {
    const char *path = make_file("t", "abcdefghij", 10); /* T = 3: floor(9/3) = 3 samples */
    rm_dataset *d = open_ok("lm", (rm_data_source){.data = path, .timesteps = 3});
    int32_t x[3 * 2], y[3 * 2];
    ck_assert_int_eq(d->count, 3);
    ck_ok(rm_dataset_fill(d, 2, 1, 2, x, y)); /* bytes 6..9 into column 1 of 2 */
    for (int t = 0; t < 3; t++) ck_assert(x[t * 2 + 1] == 'g' + t && y[t * 2 + 1] == 'h' + t);
    rm_dataset_close(d);
    d = open_ok("lm", (rm_data_source){.data = path, .timesteps = 9});
    ck_assert_int_eq(d->count, 1);
    rm_dataset_close(d);
    open_fails("lm", (rm_data_source){.data = path, .timesteps = 10}, REMAT_INVALID, "needs 11");
    open_fails("lm", (rm_data_source){.data = make_file("empty", "", 0)}, REMAT_INVALID, "0 bytes");
    open_fails("lm", (rm_data_source){.data = "/nowhere"}, REMAT_IO, "/nowhere|exist");
    open_fails("lm", (rm_data_source){.data = "/tmp"}, REMAT_IO, "directory");
    open_fails("lm", (rm_data_source){.data = "/dev/zero"}, REMAT_IO, "/dev/zero|regular file");
    open_fails("lm", (rm_data_source){0}, REMAT_INVALID, "--data=FILE");
}
END_TEST

/* The message does not name the file a second time, as zlib's does. */
START_TEST(damaged_gz_file_is_refused) {
    uint8_t bytes[128] = {0};
    FILE *file = fopen(make_gz("t.gz", "abcdefghij", 10), "r");
    size_t size = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
    bytes[size - 8] ^= 1; /* the checksum */
    const char *path = make_file("t.gz", bytes, size);
    open_fails("lm", (rm_data_source){.data = path, .timesteps = 3}, REMAT_IO, "t.gz|damaged|data check|fetch");
    ck_assert_ptr_null(strstr(remat_last_error(), "<fd"));
}
END_TEST

/* Tokens as written by NumPy, and without a header in as many bytes as the vocabulary needs; compressed or not. */
START_TEST(tokens_are_read_in_every_format) {
    static const uint16_t two[] = {7, 300, 2, 999, 0, 5, 41};
    static const uint32_t four[] = {7, 300, 2, 99999, 0, 5, 41};
    static const uint8_t big[] = {0, 7, 1, 44, 0, 2, 3, 231, 0, 0, 0, 5, 0, 41};
    const struct {
        const char *path;
        int64_t vocab, last;
    } files[] = {{make_file("two", two, sizeof two), 1000, 999},
                 {make_gz("two.gz", two, sizeof two), 65536, 999},
                 {make_file("four", four, sizeof four), 100000, 99999},
                 {make_npy("two.npy", "<u2", "(7,)", two, sizeof two), 1000, 999},
                 {make_npy("big.npy", ">i2", "(7,)", big, sizeof big), 1000, 999},
                 {make_npy("four.npy", "<i4", "(7,)", four, sizeof four), 100000, 99999}};
    uint32_t crc[6];
    for (int i = 0; i < 6; i++) {
        rm_data_source source = {.data = files[i].path, .timesteps = 2, .vocab = files[i].vocab};
        rm_dataset *d = open_ok("lm", source);
        int32_t x[2 * 2], y[2 * 2];
        ck_assert(d->count == 3 && d->shape.vocabulary == files[i].vocab && d->shape.classes == files[i].vocab);
        ck_ok(rm_dataset_fill(d, 1, 1, 2, x, y));
        ck_assert(x[1] == 2 && x[3] == files[i].last && y[1] == files[i].last && y[3] == 0);
        rm_dataset_close(d);
        crc[i] = checksum_of("lm", source);
        source.vocab = files[i].last; /* one less than needed */
        if (files[i].last == 999 || i == 5)
            open_fails("lm", source, REMAT_INVALID, i == 5 ? "token 3|99999" : "0 to 998|--vocab");
    }
    rm_dataset *d = open_ok("lm", (rm_data_source){.data = files[0].path, .timesteps = 2, .vocab = 1000});
    static const uint16_t later[] = {
        7, 300, 2, 1000, 0, 5, 41}; /* values that are not checked before the run are checked when they are read */
    int32_t x[2], y[2];
    make_file("two", later, sizeof later);
    ck_fails(rm_dataset_fill(d, 1, 0, 1, x, y), REMAT_INVALID, "token 3|1000");
    rm_dataset_close(d);
    ck_assert(crc[0] == crc[1] && crc[0] == crc[3] && crc[0] != crc[2]);
    open_fails("lm", (rm_data_source){.data = make_file("odd", two, 7), .timesteps = 2, .vocab = 9}, REMAT_IO,
               "7 bytes|--vocab=9|2");
    open_fails("lm", (rm_data_source){.data = make_file("short", two, 4), .timesteps = 2, .vocab = 9}, REMAT_INVALID,
               "2 tokens");
    open_fails("lm", (rm_data_source){.data = make_npy("f.npy", "<f4", "(3,)", four, 12), .timesteps = 2, .vocab = 9},
               REMAT_INVALID, "integers|one dimension");
    open_fails("lm", (rm_data_source){.data = make_npy("l.npy", "<u2", "(9,)", two, 14), .timesteps = 2, .vocab = 9},
               REMAT_IO, "save");
    uint32_t wide[40];
    for (uint32_t i = 0; i < 40; i++) wide[i] = i % 9;
    const char *path = make_file("wide", wide, sizeof wide);
    open_fails("lm", (rm_data_source){.data = path, .timesteps = 2, .vocab = 9}, REMAT_INVALID, "token|0|4-byte|--vocab=9");
    wide[30] = 0x10000; /* a nonzero second half */
    rm_dataset_close(
        open_ok("lm", (rm_data_source){.data = make_file("wide", wide, sizeof wide), .timesteps = 2, .vocab = 9}));
}
END_TEST

START_TEST(shrinking_files_are_detected) {
    const char *path = make_file("t", "abcdefghij", 10);
    rm_dataset *d = open_ok("lm", (rm_data_source){.data = path, .timesteps = 3});
    int32_t x[3], y[3];
    ck_assert_int_eq(truncate(path, 8), 0);
    ck_fails(rm_dataset_fill(d, 2, 0, 1, x, y), REMAT_IO, "byte 8");
    rm_dataset_close(d);
}
END_TEST

/* The unpacked text is the same data, so a run may continue with either file. It is not unpacked beyond the budget. */
START_TEST(packed_texts_are_unpacked) {
    rm_data_source plain = {.data = make_file("t", "abcdefghij", 10), .timesteps = 3}, packed = plain;
    packed.data = make_gz("t.gz", "abcdefghij", 10);
    packed.budget = 10;
    rm_dataset *a = open_ok("lm", plain), *b = open_ok("lm", packed);
    int32_t x[2][3], y[2][3];
    uint32_t crc[2];
    ck_assert(a->count == 3 && b->count == 3 && b->held_bytes == a->held_bytes + 10);
    ck_ok(rm_dataset_fill(a, 2, 0, 1, x[0], y[0]));
    ck_ok(rm_dataset_fill(b, 2, 0, 1, x[1], y[1]));
    ck_assert(!memcmp(x[0], x[1], sizeof x[0]) && !memcmp(y[0], y[1], sizeof y[0]));
    ck_ok(rm_dataset_checksum(a, &crc[0]));
    ck_ok(rm_dataset_checksum(b, &crc[1]));
    ck_assert_uint_eq(crc[0], crc[1]);
    rm_dataset_close(a);
    rm_dataset_close(b);
    packed.budget = 9;
    open_fails("lm", packed, REMAT_INFEASIBLE, "9 bytes|memory budget");
}
END_TEST

/* ---- Images and features ---------------------------------------------------------------------------------------- */

static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 51, 255, 5, 6, 7};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 9};

static void check_images(const char *data, const char *label_path) {
    rm_dataset *d = open_ok("classify", (rm_data_source){.data = data, .labels = label_path});
    float x[3 * 2];
    int32_t y[2];
    ck_assert(d->count == 2 && d->shape.timesteps == 3 && d->shape.features == 1 && d->shape.classes == 10);
    ck_ok(rm_dataset_fill(d, 0, 1, 2, x, y));
    ck_ok(rm_dataset_fill(d, 1, 0, 2, x, y));
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
    open_fails("classify", (rm_data_source){.data = plain, .held_out = true}, REMAT_INVALID, "--eval-labels=FILE");
    open_fails("classify", (rm_data_source){.data = plain, .labels = label, .timesteps = 4}, REMAT_INVALID, "3 pixels");
    open_fails("classify", (rm_data_source){.data = plain, .labels = label, .classes = 5}, REMAT_INVALID, "label 9");
    open_fails("classify", (rm_data_source){.data = plain, .labels = plain}, REMAT_IO, "dimensions");
    open_fails("classify", (rm_data_source){.data = label, .labels = label}, REMAT_IO, "1 dimension|--labels");
    open_fails("classify", (rm_data_source){.data = plain, .labels = "/nowhere"}, REMAT_IO, "/nowhere|exist");
}
END_TEST

START_TEST(images_are_sequences_of_rows) {
    static const uint8_t image[] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 51, 102, 153, 204, 255, 0};
    rm_data_source source = {
        .data = make_file("i", image, sizeof image), .rows = true, .unlabelled = true, .classes = 4};
    rm_dataset *d = open_ok("classify", source);
    float x[2 * 3];
    int32_t y = 9;
    ck_assert(d->shape.timesteps == 2 && d->shape.features == 3 && d->shape.classes == 4);
    ck_ok(rm_dataset_fill(d, 0, 0, 1, x, &y));
    for (int i = 0; i < 6; i++) ck_assert(x[i] == (float)image[16 + i] / 255);
    ck_assert_int_eq(y, 0); /* no label was given */
    rm_dataset_close(d);
    source.timesteps = 3;
    open_fails("classify", source, REMAT_INVALID, "2 timesteps|3");
    source.timesteps = 0;
    source.classes = 0;
    open_fails("classify", source, REMAT_INVALID, "--classes=N");
    source.unlabelled = false;
    open_fails("classify", source, REMAT_INVALID, "--labels=FILE");
    source.labels = make_file("l", labels, sizeof labels);
    source.data = make_npy("x.npy", "|u1", "(2, 3)", image, 6);
    open_fails("classify", source, REMAT_INVALID, "--rows|IDX");
}
END_TEST

START_TEST(damaged_gzip_is_detected) {
    const char *path = make_gz("i.gz", images, sizeof images), *label = make_file("l", labels, sizeof labels);
    struct stat about;
    ck_assert_int_eq(stat(path, &about), 0);
    for (off_t size = about.st_size - 1; size > 2; size--) {
        rm_dataset *d;
        rm_data_source source = {.data = path, .labels = label};
        ck_assert_int_eq(truncate(path, size), 0);
        ck_assert_int_eq(rm_task_open("classify", &source, &d), REMAT_IO);
    }
}
END_TEST

START_TEST(wrong_number_of_labels_is_refused) {
    static const uint8_t three[] = {0, 0, 8, 1, 0, 0, 0, 3, 4, 9, 1};
    const char *plain = make_file("i", images, sizeof images), *label = make_file("l", three, sizeof three);
    open_fails("classify", (rm_data_source){.data = plain, .labels = label}, REMAT_INVALID, "3 labels|2 samples");
}
END_TEST

START_TEST(numpy_features_are_read) {
    float number[12];
    for (int i = 0; i < 12; i++) number[i] = (float)i;
    const char *path = make_npy("x.npy", "<f4", "(2, 3, 2)", number, sizeof number),
               *label = make_file("l", labels, sizeof labels);
    rm_dataset *d = open_ok("classify", (rm_data_source){.data = path, .labels = label, .timesteps = 2});
    float x[2 * 1 * 2];
    int32_t y[1];
    ck_assert(d->count == 2 && d->shape.features == 2 && d->shape.timesteps == 2);
    ck_ok(rm_dataset_fill(d, 1, 0, 1, x, y)); /* the first two of three timesteps */
    ck_assert(x[0] == 6 && x[1] == 7 && x[2] == 8 && x[3] == 9 && y[0] == 9);
    rm_dataset_close(d);
    static const uint8_t byte[] = {0, 51, 255, 102}; /* only unsigned bytes are divided by 255 */
    path = make_npy("x.npy", "|u1", "(2, 2)", byte, 4);
    d = open_ok("classify", (rm_data_source){.data = path, .labels = label});
    ck_ok(rm_dataset_fill(d, 1, 0, 1, x, y));
    ck_assert(d->shape.features == 1 && x[0] == 1 && x[1] == 0.4f);
    rm_dataset_close(d);
    path = make_npy("x.npy", "|i1", "(2, 2)", byte, 4);
    d = open_ok("classify", (rm_data_source){.data = path, .labels = label});
    ck_ok(rm_dataset_fill(d, 1, 0, 1, x, y));
    ck_assert(x[0] == -1 && x[1] == 102);
    rm_dataset_close(d);
}
END_TEST

START_TEST(labels_of_any_type_are_read) {
    static const struct {
        const char *descr;
        uint8_t bytes[16];
        size_t size;
    } same[] = {{"|i1", {1, 0}, 2},     {"|b1", {1, 0}, 2},     {"<i2", {1, 0, 0, 0}, 4}, {">u2", {0, 1, 0, 0}, 4},
                {"<u8", {[0] = 1}, 16}, {">i8", {[7] = 1}, 16}, {"<f2", {0, 0x3c}, 4},    {">f8", {0x3f, 0xf0}, 16}};
    const char *data = make_file("i", images, sizeof images);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const char *path = make_npy("y.npy", same[i].descr, "(2,)", same[i].bytes, same[i].size);
        rm_dataset *d = open_ok("classify", (rm_data_source){.data = data, .labels = path});
        float x[3];
        int32_t y[2];
        for (int n = 0; n < 2; n++) ck_ok(rm_dataset_fill(d, n, 0, 1, x, y + n));
        ck_assert_msg(d->shape.classes == 2 && y[0] == 1 && y[1] == 0, "%s", same[i].descr);
        rm_dataset_close(d);
    }
    static const float broken[] = {1, 2.5f}, missing[] = {1, NAN};
    static const int8_t negative[] = {0, -1};
    rm_data_source source = {.data = data, .labels = make_npy("y.npy", "<f4", "(2,)", broken, 8)};
    open_fails("classify", source, REMAT_INVALID, "y.npy|label 2.5|sample 1|integer");
    make_npy("y.npy", "<f4", "(2,)", missing, 8);
    open_fails("classify", source, REMAT_INVALID, "nan|sample 1");
    make_npy("y.npy", "|i1", "(2,)", negative, 2);
    open_fails("classify", source, REMAT_INVALID, "--ignore-index");
}
END_TEST

/* A non-finite value is reported with its position when it is read; later it would look like a too large learning
 * rate. */
START_TEST(non_finite_values_are_reported) {
    float number[20 * 4 * 2] = {0};
    double large[4] = {0, 0, -1e300, 0};
    uint8_t twenty[8 + 20] = {0, 0, 8, 1, 0, 0, 0, 20, 1};
    rm_data_source source = {.labels = make_file("l", twenty, sizeof twenty)};
    number[17 * 8 + 3 * 2] = NAN;
    source.data = make_npy("x.npy", "<f4", "(20, 4, 2)", number, sizeof number);
    open_fails("classify", source, REMAT_INVALID, "x.npy|sample 17|timestep 3|feature 0|nan");
    source.timesteps = 3; /* it is in no sample */
    rm_dataset_close(open_ok("classify", source));
    source.timesteps = 0;
    number[2 * 8 + 1] = -INFINITY;
    make_npy("x.npy", "<f4", "(20, 4, 2)", number, sizeof number);
    open_fails("classify", source, REMAT_INVALID, "x.npy|sample 2|timestep 0|feature 1|-inf");
    source.labels = make_file("l", labels, sizeof labels);
    make_npy("x.npy", "<f8", "(2, 2)", large, sizeof large);
    open_fails("classify", source, REMAT_INVALID, "sample 1, timestep 0, feature 0 is -1e+300, too large");
}
END_TEST

/* ---- Files of the wrong kind ------------------------------------------------------------------------------------ */

START_TEST(files_of_the_wrong_kind_are_named) {
    static const float none[1];
    static const uint8_t no_images[] = {0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3};
    static const char weights[] = "\20\0\0\0\0\0\0\0{\"a\":{\"dtype\"}}";
    rm_data_source source = {.labels = make_file("l", labels, sizeof labels)};
    static const char *const shapes[] = {"(0, 3, 2)", "(2, 0, 2)", "(2, 3, 0)"};
    for (int i = 0; i < 3; i++) {
        source.data = make_npy("x.npy", "<f4", shapes[i], none, 0);
        open_fails("classify", source, REMAT_IO, shapes[i]);
    }
    source.data = make_file("i", no_images, sizeof no_images);
    open_fails("classify", source, REMAT_IO, "empty|(0, 1, 3)");
    source.data = make_file("x.npz", "PK\3\4and more", 12);
    open_fails("classify", source, REMAT_IO, "numpy.save('x.npy', numpy.load('/");
    static const char torch[] = "PK\3\4\0\0\x8\x8\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\2\0archive/data.pklFB",
                      older[] = "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";
    for (int i = 0; i < 2; i++) {
        source.data = i ? make_file("x.pt", older, sizeof older - 1) : make_file("x.pt", torch, sizeof torch - 1);
        open_fails("classify", source, REMAT_IO, "torch.save");
        open_fails("lm", (rm_data_source){.data = source.data}, REMAT_INVALID, "torch.save|text");
    }
    source.data = make_file("x.npy", "nothing of NumPy's", 18);
    open_fails("classify", source, REMAT_IO, "numpy.save");
    source.data = make_file("w", weights, sizeof weights);
    open_fails("classify", source, REMAT_IO, "--init");
    open_fails("lm", source, REMAT_INVALID, "--init");
    open_fails("lm", (rm_data_source){.data = source.labels}, REMAT_INVALID, "IDX|text");
    open_fails("lm", (rm_data_source){.data = in_scratch("x.npz")}, REMAT_INVALID, "unpack");
    static const char *const packed[] = {"BZh91AY",
                                         "\xFD"
                                         "7zXZ",
                                         "\x28\xB5\x2F\xFD", NULL};
    char tar[512] = "book.txt";
    memcpy(tar + 257, "ustar", 5);
    for (int i = 0; i < 4; i++) {
        const char *path = make_file("packed", packed[i] ? packed[i] : tar, packed[i] ? strlen(packed[i]) : sizeof tar);
        open_fails("lm", (rm_data_source){.data = path}, REMAT_INVALID, "packed");
    }
    source.data = make_npy("text", "<f4", "(1,)", none, 4); /* with any name, packed or not */
    open_fails("lm", source, REMAT_INVALID, ".npy|text|--task=classify");
    source.data = make_gz("text.gz", "\x93NUMPY", 6);
    open_fails("lm", source, REMAT_INVALID, ".npy");
    source.data = make_file("i", images, sizeof images);
    source.labels = make_npy("y.npy", "<f4", "(0,)", none, 0);
    open_fails("classify", source, REMAT_IO, "y.npy|empty");
    float x[3];
    int32_t y;
    uint8_t npy[128 + 8]; /* packed, and with another name */
    FILE *file = fopen(make_npy("y.npy", "<i4", "(2,)", labels, 8), "rb");
    ck_assert_uint_eq(fread(npy, 1, sizeof npy, file), sizeof npy);
    fclose(file);
    memset(npy + 128, 0, 8);
    npy[132] = 3;
    source.labels = make_gz("labels", npy, sizeof npy);
    rm_dataset *d = open_ok("classify", source);
    ck_ok(rm_dataset_fill(d, 1, 0, 1, x, &y));
    ck_assert_int_eq(y, 3);
    rm_dataset_close(d);
}
END_TEST

static long peak_kib(void) {
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

/* A packed file is unpacked only up to the size in its header, and not at all if that size is impossible or over the
 * limit. */
START_TEST(packed_files_are_unpacked_within_limits) {
    enum { MIB = 32 };
    static uint8_t zeros[1 << 20];
    uint8_t header[16] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3};
    rm_data_source source = {.data = in_scratch("i.gz"), .labels = make_file("l", labels, sizeof labels)};
    for (int claims_all = 0; claims_all < 2; claims_all++) {
        gzFile file = gzopen(source.data, "wb1");
        if (claims_all) memcpy(header + 4, (uint8_t[]){0, 0, 0, MIB, 0, 0, 4, 0, 0, 0, 4, 0}, 12);
        ck_assert_int_eq(gzwrite(file, header, 16), 16);
        for (int i = 0; i < MIB; i++) ck_assert_int_eq(gzwrite(file, zeros, sizeof zeros), (int)sizeof zeros);
        ck_assert_int_eq(gzclose(file), Z_OK);
        long before = peak_kib();
        source.budget = claims_all ? 1 << 20 : 0;
        if (claims_all)
            open_fails("classify", source, REMAT_INFEASIBLE, "memory budget|1048576");
        else
            open_fails("classify", source, REMAT_IO, "header|6 bytes");
        source.timesteps = 1 << 21;
        source.budget = 0;
        if (claims_all) open_fails("classify", source, REMAT_INVALID, "1048576|2097152");
        source.timesteps = 0;
        ck_assert_int_lt(peak_kib() - before, 1024 * MIB / 2);
    }
    memcpy(header + 4, (uint8_t[]){0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0}, 12); /* 1 GiB, and the header */
    uint8_t *long_enough = calloc(1, 2 << 20);
    FILE *packed = fopen(make_gz("i.gz", header, 16), "ab");
    ck_assert(packed && fwrite(long_enough, 1, 2 << 20, packed) == 2 << 20 && !fclose(packed));
    free(long_enough);
    open_fails("classify", source, REMAT_INFEASIBLE, "1073741824|--memory-budget");
    memcpy(header + 4, (uint8_t[]){0, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0}, 12);
    source.budget = 0;
    source.data = make_gz("i.gz", header, 16);
    open_fails("classify", source, REMAT_IO, "1095216660496 bytes|header");
    source.data = make_file("i", header, 16);
    open_fails("classify", source, REMAT_IO, "16 bytes|1095216660496|header");
}
END_TEST

/* ---- Checksums -------------------------------------------------------------------------------------------------- */

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

/* The checksum of a large text covers only parts of it, including its start and the end of its last sample. */
START_TEST(checksums_of_large_texts_read_parts) {
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

START_TEST(adding_task_sums_marked_values) {
    enum { T = 9 };
    float x[T * 2], again[T * 2], other[T * 2], y[1], y_again[1];
    rm_data_source source = {.timesteps = T, .samples = 50, .seed = 3};
    rm_dataset *d = open_ok("adding", source);
    for (int64_t i = 0; i < 50; i++) {
        double sum = 0, marks = 0, early = 0;
        ck_ok(rm_dataset_fill(d, i, 0, 1, x, y));
        for (int t = 0; t < T; t++) {
            ck_assert(x[2 * t] >= 0 && x[2 * t] < 1 && (x[2 * t + 1] == 0 || x[2 * t + 1] == 1));
            sum += (double)x[2 * t] * (double)x[2 * t + 1];
            marks += (double)x[2 * t + 1];
            if (t < T / 2) early += (double)x[2 * t + 1];
        }
        ck_assert(marks == 2 && early == 1 && fabs(sum - (double)y[0]) < 1e-6);
    }
    ck_ok(rm_dataset_fill(d, 7, 0, 1, x, y));
    rm_dataset_close(d);
    d = open_ok("adding", source);
    ck_ok(rm_dataset_fill(d, 7, 0, 1, again, y_again)); /* depends only on the seed and the index */
    ck_assert(!memcmp(x, again, sizeof x) && y[0] == y_again[0]);
    rm_dataset_close(d);
    source.held_out = true;
    d = open_ok("adding", source);
    ck_ok(rm_dataset_fill(d, 7, 0, 1, other, y));
    ck_assert(memcmp(x, other, sizeof x));
    rm_dataset_close(d);
    open_fails("adding", (rm_data_source){.timesteps = 1, .samples = 1}, REMAT_INVALID, "2");
}
END_TEST

START_TEST(copy_task_repeats_its_input) {
    for (int T = 21; T < 25; T++) {
        int32_t x[25], y[25];
        rm_dataset *d = open_ok("copy", (rm_data_source){.timesteps = T, .samples = 5, .seed = 1});
        ck_ok(rm_dataset_fill(d, 4, 0, 1, x, y));
        for (int i = 0; i < 10; i++) ck_assert(x[i] >= 0 && x[i] < 8 && y[T - 10 + i] == x[i]);
        for (int t = 0; t < T - 10; t++) ck_assert_int_eq(y[t], 8);
        for (int t = 10; t < T; t++) ck_assert_int_eq(x[t], t == T - 11 ? 9 : 8);
        rm_dataset_close(d);
    }
    open_fails("copy", (rm_data_source){.timesteps = 20, .samples = 1}, REMAT_INVALID, "21");
}
END_TEST

/* Compares with composed maps, and with all permutations in lexicographic order. */
START_TEST(s5_task_composes_transpositions) {
    enum { T = 300 };
    static const int pair[10][2] = {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {1, 2}, {1, 3}, {1, 4}, {2, 3}, {2, 4}, {3, 4}};
    char order[120][6], here[6] = "01234";
    int n = 0;
    for (int i = 0; i < 3125; i++) {
        int digit[5], seen = 0;
        for (int d = 4, rest = i; d >= 0; d--, rest /= 5) seen |= 1 << (digit[d] = rest % 5);
        for (int d = 0; seen == 31 && d < 5; d++) order[n][d] = (char)('0' + digit[d]);
        n += seen == 31;
    }
    ck_assert_int_eq(n, 120);
    int32_t x[T], y[T];
    rm_dataset *d = open_ok("s5", (rm_data_source){.timesteps = T, .samples = 5, .seed = 1});
    ck_ok(rm_dataset_fill(d, 3, 0, 1, x, y));
    bool met[10] = {false};
    for (int t = 0; t < T; t++) {
        ck_assert(x[t] >= 0 && x[t] < 10);
        met[x[t]] = true;
        char kept = here[pair[x[t]][0]];
        here[pair[x[t]][0]] = here[pair[x[t]][1]], here[pair[x[t]][1]] = kept;
        ck_assert(!memcmp(order[y[t]], here, 5));
    }
    for (int i = 0; i < 10; i++) ck_assert(met[i]);
    rm_dataset_close(d);
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
        memcpy(seen[i], loader.batch.data[RM_INPUT], sizeof seen[i]);
    }
    ck_assert(loader.epoch == 2 && loader.consumed == 3);
    ck_assert(memcmp(seen[0], seen[3], sizeof seen[0]) &&
              memcmp(seen[3], seen[6], sizeof seen[0])); /* each epoch has its own order */
    ck_ok(rm_loader_create(d, &order, &other));
    ck_ok(rm_loader_seek(&other, 1, 6));
    for (int i = 5; i < 7; i++) {
        ck_ok(rm_loader_next(&other));
        ck_assert(!memcmp(seen[i], other.batch.data[RM_INPUT], sizeof seen[i]));
    }
    ck_fails(rm_loader_seek(&other, 0, 12), REMAT_INVALID, "sample 12|epoch 0|11");
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
    tcase_add_test(tests, text_is_split_into_samples);
    tcase_add_test(tests, damaged_gz_file_is_refused);
    tcase_add_test(tests, tokens_are_read_in_every_format);
    tcase_add_test(tests, shrinking_files_are_detected);
    tcase_add_test(tests, packed_texts_are_unpacked);
    tcase_add_test(tests, images_are_sequences_of_pixels);
    tcase_add_test(tests, images_are_sequences_of_rows);
    tcase_add_test(tests, damaged_gzip_is_detected);
    tcase_add_test(tests, checksums_tell_data_apart);
    tcase_add_test(tests, checksums_of_large_texts_read_parts);
    tcase_add_test(tests, wrong_number_of_labels_is_refused);
    tcase_add_test(tests, numpy_features_are_read);
    tcase_add_test(tests, labels_of_any_type_are_read);
    tcase_add_test(tests, non_finite_values_are_reported);
    tcase_add_test(tests, files_of_the_wrong_kind_are_named);
    tcase_add_test(tests, packed_files_are_unpacked_within_limits);
    tcase_add_test(tests, adding_task_sums_marked_values);
    tcase_add_test(tests, copy_task_repeats_its_input);
    tcase_add_test(tests, s5_task_composes_transpositions);
    tcase_add_test(tests, batches_follow_the_order_and_can_start_anywhere);
    return run_suite("train/dataset", tests);
}

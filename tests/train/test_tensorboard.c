/* test_tensorboard.c: an event file, read back: lengths, checksums, and the numbers in it. */
#include "train/report/tensorboard.h"

#include "tests/train/train_test.h"

#include <dirent.h>

static uint8_t file[1 << 16];
static size_t size;

/* The definition: the remainder of the message, bit by bit, most significant first, so all bits are mirrored. */
static uint32_t crc32c(const uint8_t *data, size_t bytes) {
    uint32_t crc = 0xffffffff, mirrored = 0;
    for (size_t i = 0; i < 8 * bytes; i++) {
        uint32_t bit = (data[i / 8] >> i % 8 & 1u) ^ crc >> 31;
        crc = crc << 1 ^ (bit ? 0x1edc6f41u : 0);
    }
    for (int i = 0; i < 32; i++) mirrored |= (crc >> i & 1u) << (31 - i);
    return ~mirrored;
}
static uint32_t masked(const uint8_t *data, size_t bytes) {
    uint32_t crc = crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}
static uint64_t little(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

/* Reads the one file in the directory. */
static void read_events(const char *directory) {
    struct dirent *entry;
    DIR *stream = opendir(directory);
    char path[512] = "";
    ck_assert_ptr_nonnull(stream);
    while ((entry = readdir(stream)))
        if (*entry->d_name != '.') {
            ck_assert_msg(!*path, "two files: %s and %s", path, entry->d_name);
            ck_assert(!strncmp(entry->d_name, "events.out.tfevents.", 20));
            snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        }
    closedir(stream);
    FILE *in = fopen(path, "rb");
    ck_assert_ptr_nonnull(in);
    size = fread(file, 1, sizeof file, in);
    fclose(in);
}

/* The message of the record at *at; moves *at to the next record. NULL: end of the file. */
static const uint8_t *next_record(size_t *at, size_t *bytes) {
    if (*at == size) return NULL;
    ck_assert_uint_le(*at + 16, size);
    const uint8_t *head = file + *at;
    *bytes = (size_t)little(head, 8);
    ck_assert_uint_le(*at + 16 + *bytes, size);
    ck_assert_uint_eq(little(head + 8, 4), masked(head, 8));
    ck_assert_uint_eq(little(head + 12 + *bytes, 4), masked(head + 12, *bytes));
    *at += 16 + *bytes;
    return head + 12;
}

/* The position of these words in the message; NULL: not found. */
static const uint8_t *find(const uint8_t *message, size_t bytes, const char *words) {
    size_t length = strlen(words);
    for (size_t i = 0; message && i + length <= bytes; i++)
        if (!memcmp(message + i, words, length)) return message + i;
    return NULL;
}

/* The simple_value that follows this tag in the message. */
static float value_of(const uint8_t *message, size_t bytes, const char *tag) {
    const uint8_t *at = find(message, bytes, tag);
    ck_assert_msg(at, "no %s", tag);
    uint32_t bits = (uint32_t)little(at + strlen(tag) + 1, 4);
    float value;
    ck_assert_int_eq(at[-1], (int)strlen(tag));
    ck_assert_int_eq(at[strlen(tag)], 0x15); /* field 2, 4 bytes */
    memcpy(&value, &bits, sizeof value);
    return value;
}

START_TEST(records_are_read_back) {
    rm_tensorboard board;
    const rm_metrics_run run = {.name = "a", .resumed_step = 299};
    const rm_step_event step = {
        .step = 300, .computed = true, .loss = 1.25, .grad_norm = 3, .lr = 0.5, .tokens_per_s = 7e6};
    const rm_eval_event eval = {.step = 300,
                                .has = {[RM_LOSS] = true, [RM_ACCURACY] = true, [RM_PERPLEXITY] = true},
                                .score = {[RM_LOSS] = 2.5, [RM_ACCURACY] = 0.75, [RM_PERPLEXITY] = 9}};
    size_t at = 0, bytes;
    ck_assert_uint_eq(crc32c((const uint8_t *)"123456789", 9), 0xe3069283); /* a known value */
    ck_ok(rm_tensorboard_open(in_scratch("a/b"), &run, &board));
    ck_ok(rm_tensorboard_step(&board, &step));
    ck_ok(rm_tensorboard_eval(&board, &eval));
    ck_ok(rm_tensorboard_close(&board));
    read_events(in_scratch("a/b"));
    const uint8_t *m = next_record(&at, &bytes);
    ck_assert(m && find(m, bytes, "brain.Event:2"));
    m = next_record(&at, &bytes);
    ck_assert(m && m[0] == 0x09 && m[9] == 0x10 && m[10] == 0xac && m[11] == 0x02); /* time; step 300 */
    ck_assert(bytes == 16 && !memcmp(m + 12, "\x3a\x02\x08\x01", 4));               /* a session's start */
    m = next_record(&at, &bytes);
    ck_assert(m && m[12] == 0x2a);
    ck_assert(value_of(m, bytes, "train/loss") == 1.25f && value_of(m, bytes, "train/grad_norm") == 3);
    ck_assert(value_of(m, bytes, "train/lr") == 0.5f && value_of(m, bytes, "train/tokens_per_s") == 7e6f);
    m = next_record(&at, &bytes);
    ck_assert(m && value_of(m, bytes, "eval/loss") == 2.5f && value_of(m, bytes, "eval/accuracy") == 0.75f);
    ck_assert(!find(m, bytes, "perplexity"));
    ck_assert_ptr_null(next_record(&at, &bytes));
}
END_TEST

START_TEST(unknown_values_are_omitted) {
    rm_tensorboard board;
    size_t at = 0, bytes;
    ck_ok(rm_tensorboard_open(NULL, NULL, &board));
    ck_ok(rm_tensorboard_step(&board, &(rm_step_event){.step = 1}));
    ck_ok(rm_tensorboard_close(&board));
    ck_ok(rm_tensorboard_open(in_scratch("t"), &(rm_metrics_run){.name = "a"}, &board));
    ck_ok(rm_tensorboard_step(&board, &(rm_step_event){.step = 1}));
    ck_ok(rm_tensorboard_eval(&board, &(rm_eval_event){.step = 1}));
    ck_ok(rm_tensorboard_close(&board));
    read_events(in_scratch("t"));
    next_record(&at, &bytes);
    const uint8_t *m = next_record(&at, &bytes);
    ck_assert(!find(m, bytes, "train/loss") && find(m, bytes, "train/lr"));
    m = next_record(&at, &bytes);
    ck_assert(!find(m, bytes, "accuracy") && !next_record(&at, &bytes));
}
END_TEST

START_TEST(a_run_writes_an_event_file) {
    size_t at = 0, bytes, records = 0;
    ck_runs("train --task=copy --hidden=8 --batch=3 --threads=1 --steps=4 --eval-every=2 --samples=9 --tensorboard=%s",
            in_scratch("tb"));
    read_events(in_scratch("tb"));
    while (next_record(&at, &bytes)) records++;
    ck_assert_uint_eq(records, 7);
    make_file("plain", "x", 1);
    ck_refuses(1, "--tensorboard", "train --task=copy --tensorboard=%s/tb", in_scratch("plain"));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("tensorboard");
    tcase_add_test(tests, records_are_read_back);
    tcase_add_test(tests, unknown_values_are_omitted);
    tcase_add_test(tests, a_run_writes_an_event_file);
    return run_suite("train/tensorboard", tests);
}

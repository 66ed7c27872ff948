/* test_safetensors.c: arrays are read as they were written, and hostile files are refused. */
#include "train/models/family.h"
#include "train/state/safetensors.h"

#include "tests/train/train_test.h"
#include "train/state/weights.h"

static uint8_t bytes[4096];

/* A file in memory with this header and this many bytes of data. */
static remat_status parse(const char *header, size_t data_bytes, rm_safetensors *out) {
    size_t length = strlen(header);
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    return rm_safetensors_parse(bytes, 8 + length + data_bytes, "x", out);
}

static void refused(const char *part, size_t data_bytes, const char *header) {
    rm_safetensors file;
    ck_fails(parse(header, data_bytes, &file), REMAT_IO, part);
    rm_safetensors_free(&file);
}

START_TEST(good_headers_are_read) {
    rm_safetensors file;
    ck_ok(parse("{\"__metadata__\":{\"format\":\"pt\"},"
                "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[2,26]},"
                "\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]},"
                "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[26,26]}}  ",
                26, &file));
    ck_assert_int_eq(file.count, 3);
    ck_assert_str_eq(file.array[0].name, "a"); /* in order of position */
    const rm_st_array *b = rm_safetensors_find(&file, "b");
    ck_assert_ptr_nonnull(b);
    ck_assert(b->rank == 2 && b->dim[0] == 2 && b->dim[1] == 3 && b->begin == 2 && b->end == 26);
    ck_assert_str_eq(b->dtype, "F32");
    ck_assert_ptr_null(rm_safetensors_find(&file, "c"));
    rm_safetensors_free(&file);
    ck_ok(parse("{}", 0, &file));
    ck_assert_int_eq(file.count, 0);
    rm_safetensors_free(&file);
}
END_TEST

#define ARRAY(name, shape, begin, end)                                                                                 \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

/* Empty arrays with enough information: the blocks of two stages, the convolutions per block, and the stem's filter
 * size. */
static const struct {
    int first, third, convolutions, filter;
    const char *model;
} resnets[] = {{2, 2, 2, 7, "resnet18"},
               {3, 6, 2, 3, "resnet34"},
               {3, 6, 3, 7, "resnet50"},
               {3, 23, 3, 7, NULL /* resnet101 */},
               {2, 2, 3, 7, NULL}};
START_TEST(array_names_identify_resnets) {
    char header[4096];
    rm_model_found found;
    int n = snprintf(header, sizeof header,
                     "{\"module.conv1.weight\":{\"dtype\":\"F32\",\"shape\":[0,3,%d,%d],\"data_offsets\":[0,0]}",
                     resnets[_i].filter, resnets[_i].filter);
    for (int stage = 1; stage <= 3; stage += 2)
        for (int block = 0; block < (stage == 1 ? resnets[_i].first : resnets[_i].third); block++)
            n += snprintf(header + n, sizeof header - (size_t)n,
                          "," ARRAY("module.layer%d.%d.conv%d.weight", "0", "0", "0"), stage, block,
                          resnets[_i].convolutions);
    n += snprintf(header + n, sizeof header - (size_t)n, "}");
    ck_assert_int_lt(n, (int)sizeof header);
    uint8_t file[8 + sizeof header] = {(uint8_t)n, (uint8_t)(n >> 8)};
    memcpy(file + 8, header, (size_t)n);
    ck_ok(rm_model_recognise(make_file("x", file, 8 + (size_t)n), NULL, &found));
    const char *wanted = resnets[_i].model;
    ck_assert_str_eq(found.model ? found.model : "none", wanted ? wanted : "none");
    if (wanted) ck_assert_str_eq(found.flag[0].value, resnets[_i].filter == 3 ? "cifar" : "imagenet");
}
END_TEST

START_TEST(hostile_headers_are_refused) {
    refused("overlap", 8, "{" ARRAY("a", "2", "0", "8") "," ARRAY("b", "1", "4", "8") "}");
    refused("hole", 12, "{" ARRAY("a", "1", "0", "4") "," ARRAY("b", "1", "8", "12") "}");
    refused("hole", 8, "{" ARRAY("a", "1", "4", "8") "}");
    refused("array", 8, "{" ARRAY("a", "1", "0", "4") "}");
    refused("short", 4, "{" ARRAY("a", "2", "0", "8") "}");
    refused("short", 4, "{" ARRAY("a", "2", "9223372036854775799", "9223372036854775807") "}");
    refused("offsets", 4, "{" ARRAY("a", "1", "4", "0") "}");
    refused("offsets", 4, "{" ARRAY("a", "1", "-4", "0") "}");
    refused("offsets", 4, "{" ARRAY("a", "1", "0.0", "4.0") "}");
    refused("shape", 4, "{" ARRAY("a", "2", "0", "4") "}");
    refused("shape", 4, "{" ARRAY("a", "4294967296,4294967296,2", "0", "4") "}");
    refused("shape", 4, "{" ARRAY("a", "-1", "0", "4") "}");
    refused("dimensions", 4, "{" ARRAY("a", "1,1,1,1,1,1,1,1,1", "0", "4") "}");
    refused("duplicate", 8, "{" ARRAY("a", "1", "0", "4") "," ARRAY("a", "1", "4", "8") "}");
    refused("dtype", 4, "{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    refused("dtype", 4, "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}");
    refused("shape", 4, "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}");
    refused("offsets", 4, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}");
    refused("array", 0, "{\"a\":7}");
    refused("{", 0, "[]");
    refused("damaged", 0, "{\"a\":");
    refused("{", 0, "");
}
END_TEST

START_TEST(lengths_are_checked) {
    rm_safetensors file;
    uint8_t prefix[16] = {0};
    ck_fails(rm_safetensors_parse(prefix, 7, "x", &file), REMAT_IO, "7 bytes");
    prefix[0] = 9;
    ck_fails(rm_safetensors_parse(prefix, 16, "x", &file), REMAT_IO, "cut short");
    memset(prefix, 0xff, 8);
    ck_fails(rm_safetensors_parse(prefix, 16, "x", &file), REMAT_IO, "would have");
    ck_fails(rm_safetensors_parse((const uint8_t *)"PK\3\4\0\0\x8\x8\0", 9, "m.pt", &file), REMAT_IO,
             "torch.load(\"m.pt\", weights_only=True); save_file(");
    ck_fails(rm_safetensors_parse((const uint8_t *)"\x80\2\x8a\nl\xfc\x9c\x46\xf9", 9, "m.pt", &file), REMAT_IO,
             "torch.save");
    const uint8_t large[8] = {0x01, 0xe1, 0xf5, 0x05}; /* 100,000,001 */
    ck_fails(rm_safetensors_parse(large, sizeof large, "x", &file), REMAT_IO, "100000000");
    rm_safetensors_free(&file);
}
END_TEST

/* Metadata may contain a tokenizer, for example. */
START_TEST(metadata_may_be_large) {
    enum { BYTES = 5 << 20 };
    static const char begin[] = "{\"__metadata__\":{\"note\":\"", end[] = "\"}," ARRAY("a", "1", "0", "4") "}";
    const size_t length = sizeof begin + BYTES + sizeof end - 2;
    uint8_t *all = malloc(8 + length + 4);
    ck_assert_ptr_nonnull(all);
    memset(all, 'x', 8 + length + 4);
    for (int i = 0; i < 8; i++) all[i] = (uint8_t)((uint64_t)length >> (8 * i));
    memcpy(all + 8, begin, sizeof begin - 1);
    memcpy(all + 8 + length - sizeof end + 1, end, sizeof end - 1);
    rm_safetensors file;
    ck_ok(rm_safetensors_parse(all, 8 + length + 4, "x", &file));
    ck_assert_int_eq(file.count, 1);
    rm_safetensors_free(&file);
    free(all);
}
END_TEST

static const char *write_two(const char *name, const float *a, const float *b) {
    const char *path = in_scratch(name);
    remat_array arrays[] = {{"rnn.weight_ih_l0", REMAT_F32, 2, {2, 3}, 24, 0, 6, {0}},
                            {"head \"bias\"", REMAT_F32, 1, {2}, 8, 0, 2, {0}}};
    rm_file_writer writer;
    ck_ok(rm_file_create(path, &writer));
    ck_ok(rm_safetensors_begin(&writer, arrays, 2));
    ck_ok(rm_file_write(&writer, a, 24));
    ck_ok(rm_file_write(&writer, b, 8));
    ck_ok(rm_file_finish(&writer));
    return path;
}

START_TEST(written_arrays_are_read_back) {
    float a[6] = {1, 2, 3, 4, 5, 6.5f}, b[2] = {-1e-38f, 7}, read[6];
    const char *path = write_two("two.safetensors", a, b);
    rm_safetensors file;
    ck_ok(rm_safetensors_open(path, &file));
    ck_assert_int_eq(file.count, 2);
    ck_assert_uint_eq(file.data_start % 8, 0);
    ck_ok(rm_safetensors_read(&file, rm_safetensors_find(&file, "rnn.weight_ih_l0"), read));
    ck_assert(!memcmp(read, a, sizeof a));
    ck_ok(rm_safetensors_read(&file, rm_safetensors_find(&file, "head \"bias\""), read));
    ck_assert(!memcmp(read, b, sizeof b));
    rm_safetensors_free(&file);
}
END_TEST

START_TEST(truncated_safetensors_are_detected) {
    float a[6] = {0}, b[2] = {0};
    const char *path = write_two("cut.safetensors", a, b);
    struct stat about;
    ck_assert_int_eq(stat(path, &about), 0);
    for (off_t size = about.st_size - 1; size >= 0; size--) {
        rm_safetensors file;
        ck_assert_int_eq(truncate(path, size), 0);
        ck_assert_int_eq(rm_safetensors_open(path, &file), REMAT_IO);
        rm_safetensors_free(&file);
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("safetensors");
    tcase_add_test(tests, good_headers_are_read);
    tcase_add_test(tests, metadata_may_be_large);
    tcase_add_loop_test(tests, array_names_identify_resnets, 0, sizeof resnets / sizeof *resnets);
    tcase_add_test(tests, hostile_headers_are_refused);
    tcase_add_test(tests, lengths_are_checked);
    tcase_add_test(tests, written_arrays_are_read_back);
    tcase_add_test(tests, truncated_safetensors_are_detected);
    return run_suite("train/safetensors", tests);
}

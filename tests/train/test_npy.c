/* test_npy.c: NumPy arrays are read as numpy.save writes them, and damaged files are refused. */
#include "train/data/npy.h"

#include "tests/train/train_test.h"

#include <math.h>

static rm_array array;
static uint8_t file[4096];

/* A file with this header, followed by `data_bytes` bytes 0, 1, 2, ... Returns its size. */
static size_t make(int version, const char *header, size_t data_bytes) {
    size_t start = version == 1 ? 10 : 12, length = strlen(header);
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (uint8_t)version;
    file[7] = 0;
    for (size_t i = 8; i < start; i++) file[i] = (uint8_t)(length >> (8 * (i - 8)));
    memcpy(file + start, header, length);
    for (size_t i = 0; i < data_bytes; i++) file[start + length + i] = (uint8_t)i;
    return start + length + data_bytes;
}

static remat_status parse(const char *header, size_t data_bytes) {
    size_t size = make(1, header, data_bytes);
    return rm_npy_parse(file, size, "x.npy", &array);
}

#define FLOATS "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n"

START_TEST(floats_are_read) {
    float value[6] = {1.5f, -2, 3, 4, 5, 1e-30f};
    for (int version = 1; version <= 3; version++) {
        size_t size = make(version, FLOATS, 24);
        memcpy(file + size - 24, value, 24);
        ck_ok(rm_npy_parse(file, size, "x", &array));
        ck_assert_int_eq(array.rank, 2);
        ck_assert_int_eq(array.dim[1], 3);
        ck_assert_int_eq(array.count, 6);
        for (int i = 0; i < 6; i++) ck_assert(rm_array_at(&array, i / 3, i % 3, 0) == (double)value[i]);
    }
}
END_TEST

/* Each type in each of its byte orders gives the same numbers. */
static const struct {
    const char *type;
    int bytes;
    uint8_t first[8], second[8];
    double value[2];
} types[] = {
    {"f2", 2, {0x3e, 0x00}, {0x80, 0x01}, {1.5, -0x1p-24}},
    {"f4", 4, {0xc0, 0x20, 0, 0}, {0x7f, 0x80, 0, 0}, {-2.5, INFINITY}},
    {"f8", 8, {0x3f, 0xb9, 0x99, 0x99, 0x99, 0x99, 0x99, 0x9a}, {0xc0, 0x59}, {0.1, -100}},
    {"i1", 1, {0x7f}, {0x80}, {127, -128}},
    {"i2", 2, {0x01, 0x02}, {0xff, 0xfe}, {258, -2}},
    {"i4", 4, {0x01, 0x02, 0x03, 0x04}, {0xff, 0xff, 0xff, 0xff}, {16909060, -1}},
    {"i8", 8, {0, 0, 0, 1, 0, 0, 0, 2}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf9}, {4294967298, -7}},
    {"u1", 1, {0x07}, {0xff}, {7, 255}},
    {"u2", 2, {0x01, 0x02}, {0xff, 0xfe}, {258, 65534}},
    {"u4", 4, {0, 0, 0, 3}, {0xff, 0xff, 0xff, 0xff}, {3, 4294967295}},
    {"u8", 8, {0, 0, 0, 0, 0, 0, 0, 9}, {0x80}, {9, 0x1p63}},
    {"b1", 1, {0}, {1}, {0, 1}},
};

START_TEST(every_type_is_read_in_every_byte_order) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (const char *order = types[i].bytes == 1 ? "|<>" : "<>"; *order; order++) {
            char header[100];
            int bytes = types[i].bytes;
            snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': False, 'shape': (2,), }", *order,
                     types[i].type);
            size_t size = make(1, header, 2 * (size_t)bytes);
            for (int b = 0; b < bytes; b++) {
                int at = *order == '>' ? b : bytes - 1 - b;
                file[size - 2 * (size_t)bytes + (size_t)at] = types[i].first[b];
                file[size - (size_t)bytes + (size_t)at] = types[i].second[b];
            }
            ck_ok(rm_npy_parse(file, size, "x.npy", &array));
            for (int n = 0; n < 2; n++)
                ck_assert_msg(rm_array_at(&array, n, 0, 0) == types[i].value[n], "%c%s: %.17g, not %.17g", *order,
                              types[i].type, rm_array_at(&array, n, 0, 0), types[i].value[n]);
        }
}
END_TEST

/* Bytes 0, 1, 2, ... as (2,3,2): the last index varies fastest, or in Fortran order the first. */
START_TEST(c_and_fortran_order_are_read) {
    ck_ok(parse("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 2), }", 12));
    ck_assert(rm_array_at(&array, 1, 0, 0) == 6 && rm_array_at(&array, 0, 2, 1) == 5);
    ck_ok(parse("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 2), }", 12));
    ck_assert(rm_array_at(&array, 1, 0, 0) == 1 && rm_array_at(&array, 0, 2, 1) == 10);
    ck_ok(parse("{'descr': '|u1', 'fortran_order': True, 'shape': (5,), }", 5));
    ck_assert(rm_array_at(&array, 4, 0, 0) == 4);
    ck_ok(parse("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", 8));
    ck_assert_int_eq(array.rank, 0);
    ck_ok(parse("{\"shape\":(1,1,1,1),\"fortran_order\":False,\"descr\":\"<f4\"}",
                4)); /* another order of keys, other quotes */
}
END_TEST

START_TEST(truncated_npy_files_are_detected) {
    size_t size = make(1, FLOATS, 24);
    for (size_t cut = 0; cut < size; cut++) ck_assert_int_eq(rm_npy_parse(file, cut, "x", &array), REMAT_IO);
    ck_assert_int_eq(rm_npy_parse(file, size + 1, "x", &array), REMAT_IO);
}
END_TEST

/* Python 2 wrote long integers this way; NumPy accepts them in the format versions of that time. */
START_TEST(headers_of_python_2_are_read) {
    static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }";
    for (int version = 1; version <= 3; version++) {
        size_t size = make(version, header, 24);
        remat_status status = rm_npy_parse(file, size, "x", &array);
        ck_assert_int_eq(status, version < 3 ? REMAT_OK : REMAT_IO);
        if (!status) ck_assert(array.rank == 2 && array.dim[0] == 2 && array.dim[1] == 3);
    }
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (L, 3), }", 24), REMAT_IO, "not numbers");
}
END_TEST

START_TEST(npy_headers_are_checked) {
    static const char *const refused[][2] = {
        {"'|O'", "Python objects"},       {"'<c8'", "x.real, x.imag"},
        {"'<U7'", "return_inverse"},      {"'|S7'", "return_inverse"},
        {"'<M8[ns]'", "astype('int64')"}, {"'<f16'", "astype('float32')"},
        {"'|V2'", "astype('float32')"},   {"''", "astype('float32')"},
        {"'<i3'", "astype('float32')"},   {"[('a', '<f4')]", "structured_to_unstructured"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char header[100];
        snprintf(header, sizeof header, "{'descr': %s, 'fortran_order': False, 'shape': (6,), }", refused[i][0]);
        ck_fails(parse(header, 24), REMAT_IO, refused[i][1]);
    }
    ck_fails(parse("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (6,), }", 24), REMAT_IO, "'fortran_order'");
    ck_fails(parse("{'descr': '<f4', 'descr': '<f4', 'shape': (6,), }", 24), REMAT_IO, "header|'descr'");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, }", 24), REMAT_IO, "without");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }", 0), REMAT_IO, "empty|(0, 3)");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0, 3), }", 0), REMAT_IO, "(2, 0, 3)");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (-6,), }", 24), REMAT_IO, "not numbers");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (1,2,1,1,3), }", 24), REMAT_IO, "dimensions");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }", 24), REMAT_IO, "shorter");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 24), REMAT_IO,
             "shorter");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 24), REMAT_IO,
             "not numbers");
    ck_fails(rm_npy_parse((const uint8_t *)"hello, world", 12, "x", &array), REMAT_IO, "numpy.save");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("npy");
    tcase_add_test(tests, floats_are_read);
    tcase_add_test(tests, every_type_is_read_in_every_byte_order);
    tcase_add_test(tests, c_and_fortran_order_are_read);
    tcase_add_test(tests, truncated_npy_files_are_detected);
    tcase_add_test(tests, headers_of_python_2_are_read);
    tcase_add_test(tests, npy_headers_are_checked);
    return run_suite("train/npy", tests);
}

/* test_npy.c: NumPy arrays are read as numpy.save writes them, and damaged ones get a sentence. */
#include "train/npy.h"

#include "tests/train/train_test.h"

static rm_npy array;
static uint8_t file[4096];

/* A file with this header and `data_bytes` bytes 0, 1, 2, ... behind it; returns its size. */
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
        for (int i = 0; i < 6; i++) ck_assert(rm_npy_real(&array, i) == (double)value[i]);
    }
}
END_TEST

START_TEST(other_types_are_read) {
    ck_ok(parse("{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }", 5));
    ck_assert(rm_npy_integer(&array, 4) == 4 && rm_npy_real(&array, 3) == 3 && rm_npy_is_integer(&array));
    ck_ok(parse("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", 8));
    ck_assert_int_eq(rm_npy_integer(&array, 1), 0x07060504);
    ck_ok(parse("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", 8));
    ck_assert_int_eq(rm_npy_integer(&array, 0), 0x0706050403020100);
    ck_ok(parse("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", 8));
    ck_assert_int_eq(array.rank, 0);
    ck_assert(!rm_npy_is_integer(&array));
    ck_ok(parse("{\"shape\":(1,1,1,1),\"fortran_order\":False,\"descr\":\"<f4\"}", 4)); /* other order and quotes */
}
END_TEST

START_TEST(every_cut_is_noticed) {
    size_t size = make(1, FLOATS, 24);
    for (size_t cut = 0; cut < size; cut++) ck_assert_int_eq(rm_npy_parse(file, cut, "x", &array), REMAT_IO);
    ck_assert_int_eq(rm_npy_parse(file, size + 1, "x", &array), REMAT_IO);
}
END_TEST

START_TEST(headers_are_checked) {
    ck_fails(parse("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", 24), REMAT_IO, "Fortran order");
    ck_fails(parse("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", 24), REMAT_IO, "'>f4'");
    ck_fails(parse("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }", 24), REMAT_IO, "astype");
    ck_fails(parse("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", 24), REMAT_IO, "structured");
    ck_fails(parse("{'descr': '<f4', 'descr': '<f4', 'shape': (6,), }", 24), REMAT_IO, "damaged header at 'descr'");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, }", 24), REMAT_IO, "without");
    ck_fails(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }", 0), REMAT_IO, "empty");
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
    tcase_add_test(tests, other_types_are_read);
    tcase_add_test(tests, every_cut_is_noticed);
    tcase_add_test(tests, headers_are_checked);
    return run_suite("train/npy", tests);
}

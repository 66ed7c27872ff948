/* test_idx.c: IDX images are read, and damaged files are refused. */
#include "train/data/idx.h"

#include "tests/train/train_test.h"

/* Two images of 2 x 3. */
static const uint8_t good[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static rm_array idx;

START_TEST(images_are_read) {
    ck_ok(rm_idx_parse(good, sizeof good, "x", &idx));
    ck_assert_int_eq(idx.rank, 3);
    ck_assert_int_eq(idx.dim[0], 2);
    ck_assert_int_eq(idx.dim[2], 3);
    ck_assert_int_eq(idx.count, 12);
    ck_assert_uint_eq(idx.item[11], 12);
    ck_assert(rm_array_at(&idx, 1, 0, 2) == 9);
}
END_TEST

START_TEST(truncated_idx_files_are_detected) {
    for (size_t size = 0; size < sizeof good; size++) ck_assert_int_eq(rm_idx_parse(good, size, "x", &idx), REMAT_IO);
}
END_TEST

static remat_status parse_with(size_t at, uint8_t byte) {
    uint8_t bad[sizeof good];
    memcpy(bad, good, sizeof good);
    bad[at] = byte;
    return rm_idx_parse(bad, sizeof bad, "x.idx", &idx);
}

START_TEST(idx_headers_are_checked) {
    ck_fails(parse_with(0, 1), REMAT_IO, "x.idx|IDX");
    ck_fails(parse_with(2, 0x0d), REMAT_IO, "type 0x0d");
    ck_fails(parse_with(3, 0), REMAT_IO, "0 dimensions");
    ck_fails(parse_with(3, 5), REMAT_IO, "5 dimensions");
    ck_fails(parse_with(7, 0), REMAT_IO, "empty|(0, 2, 3)");
    ck_fails(parse_with(7, 3), REMAT_IO, "shorter");
    ck_fails(parse_with(4, 0xff), REMAT_IO, "shorter");
    ck_fails(parse_with(7, 1), REMAT_IO, "longer");
}
END_TEST

/* 65536^4 elements: the product does not fit 63 bits. */
START_TEST(sizes_do_not_overflow) {
    uint8_t huge[4 + 16 + 4] = {0, 0, 8, 4};
    for (int i = 0; i < 4; i++) huge[4 + 4 * i + 1] = 1;
    ck_fails(rm_idx_parse(huge, sizeof huge, "x", &idx), REMAT_IO, "shorter");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("idx");
    tcase_add_test(tests, images_are_read);
    tcase_add_test(tests, truncated_idx_files_are_detected);
    tcase_add_test(tests, idx_headers_are_checked);
    tcase_add_test(tests, sizes_do_not_overflow);
    return run_suite("train/idx", tests);
}

/* test_place_csv.c: the table that `remat place` reads, and the command from outside: its answers, refusals and statuses. */
#include "tests/train/train_test.h"

#include "memory/host.h"
#include "train/commands/lifetimes_csv.h"

static remat_status parse(const char *text, rm_lifetimes_csv *csv) {
    return rm_lifetimes_csv_parse(text, strlen(text), "t.csv", csv);
}

START_TEST(columns_in_any_order) {
    static const char *const texts[] = {
        "id,lower,upper,size\na,0,3,10\nb,1,2,20\n",
        "id,lower,upper,size\r\na,0,3,10\r\nb,1,2,20\r\n",
        "\xEF\xBB\xBFid,lower,upper,size\na,0,3,10\nb,1,2,20",
        "size,hint,upper,lower,id\n10,x,3,0,a\n20,,2,1,b\n",
        "\n id , lower,upper\t,size \n\n a ,0, 3,10\n   \nb,1,2,20\n\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        rm_lifetimes_csv csv;
        ck_ok(parse(texts[i], &csv));
        ck_assert_int_eq(csv.count, 2);
        ck_assert_int_eq(csv.row[0].id_length, 1);
        ck_assert_int_eq(csv.row[0].id[0], 'a');
        ck_assert_int_eq(csv.row[0].lower, 0);
        ck_assert_int_eq(csv.row[0].upper, 3);
        ck_assert_uint_eq(csv.row[0].size, 10);
        ck_assert_int_eq(csv.row[1].lower, 1);
        ck_assert_uint_eq(csv.row[1].size, 20);
        ck_assert_str_eq(csv.unused, i == 3 ? "hint" : "");
        rm_lifetimes_csv_free(&csv);
    }
}
END_TEST

START_TEST(mistakes_are_named) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "t.csv is empty"},
        {"\n \n", "t.csv is empty"},
        {"id,lower,upper\n", "line 1: no column is called size"},
        {"id,lower,upper,size,size\n", "line 1: two columns are called size"},
        {"id,lower,upper,size\n1,2,3\n", "line 2: 3 fields where the header names 4"},
        {"id,lower,upper,size\n1,2,3,4,5\n", "line 2: 5 fields"},
        {"id,lower,upper,size\n\n1,x,3,4\n", "line 3: lower is 'x'"},
        {"id,lower,upper,size\n1,-2,3,4\n", "lower is '-2'; it must be a whole number from 0"},
        {"id,lower,upper,size\n1,2,3.5,4\n", "upper is '3.5'"},
        {"id,lower,upper,size\n1,2,3,\n", "size is empty"},
        {"id,lower,upper,size\n1,3,3,4\n", "upper is the larger"},
        {"id,lower,upper,size\n1,2,99999999999999999999,4\n", "upper is 99999999999999999999; it must be at most"},
        {"id,lower,upper,size\n1,2,4611686018427387904,4\n", "at most 4611686018427387903"},
        {"id,lower,upper,size\n1,2,3,1152921504606846976\n", "size is 1152921504606846976"},
        {"id,lower,upper,size\n1,2,3,1152921504606846975\n2,2,3,1\n", "line 3: up to here the sizes add up"},
        {"id,lower,upper,size\n1,2,3,\x01\x02\n", "size is '?\?'"},
        {"id,lower,upper,size\na,2,3,1\nb,2,3,1\n\nb,2,3,1\na,2,3,1\n", "lines 3 and 5 have the same id 'b'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rm_lifetimes_csv csv;
        ck_fails(parse(cases[i].text, &csv), REMAT_INVALID, cases[i].part);
        ck_assert_ptr_null(csv.row);
    }
}
END_TEST

START_TEST(failed_allocations) {
    rm_lifetimes_csv csv;
    rm_host_fail_at(1);
    ck_fails(parse("id,lower,upper,size\na,0,3,10\n", &csv), REMAT_MEMORY, "no memory");
    rm_host_fail_at(0);
    ck_assert_ptr_null(csv.row);
}
END_TEST

#define TABLE "name,id,upper,lower,size\nx,7,2,0,3\nx,8,4,1,2\nx,9,9,3,5\nx,e,3,2,0\n"

START_TEST(offsets_are_printed) {
    const char *path = make_file("t.csv", TABLE, strlen(TABLE));
    ck_runs("place %s", path);
    unsigned long long offset[4];
    ck_assert_int_eq(sscanf(program_output,
                            "id,lower,upper,size,offset\n7,0,2,3,%llu\n8,1,4,2,%llu\n9,3,9,5,%llu\ne,2,3,0,%llu\n",
                            &offset[0], &offset[1], &offset[2], &offset[3]),
                     4);
    ck_assert_uint_eq(offset[3], 0);
    ck_assert(offset[0] + 3 <= offset[1] || offset[1] + 2 <= offset[0]);
    ck_assert(offset[1] + 2 <= offset[2] || offset[2] + 5 <= offset[1]);
    ck_assert_ptr_nonnull(strstr(program_errors, "columns that are not used: name\n"));
    ck_assert_ptr_nonnull(strstr(program_errors, "peak 7, lower bound 7, ratio 1.0000"));
    ck_runs("place --capacity=7 %s", path);
    const char *nothing = make_file("n.csv", "id,lower,upper,size\n", 20);
    ck_runs("place %s", nothing);
    ck_assert_str_eq(program_output, "id,lower,upper,size,offset\n");
}
END_TEST

START_TEST(refusals) {
    const char *path = make_file("t.csv", TABLE, strlen(TABLE));
    ck_refuses(2, "0 files were given", "place");
    ck_refuses(2, "2 files were given", "place %s %s", path, path);
    ck_refuses(1, "does not exist", "place /nowhere.csv");
    const char *bad = make_file("bad.csv", "id,lower\n", 9);
    ck_refuses(2, "line 1: no column is called upper", "place %s", bad);
    ck_assert_int_eq(run_program("place --capacity=6 %s", path), 1);
    ck_assert_ptr_nonnull(strstr(program_errors, "cannot be placed in 6 bytes: 7 are alive at once"));
    ck_assert_str_eq(program_output, "");
}
END_TEST

/* Few steps and many pieces of a full rectangle: too hard for a moment's search, so the best so far must do. */
static const char *hard_table(void) {
    static char text[1 << 15];
    size_t used = (size_t)sprintf(text, "id,lower,upper,size\n");
    uint64_t seed = 1;
    for (int i = 0; i < 600; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int lower = (int)(seed >> 33) % 60, length = 1 + (int)(seed >> 40) % 30, size = 1 + (int)(seed >> 20 & 0xffff);
        used += (size_t)sprintf(text + used, "%d,%d,%d,%d\n", i, lower, lower + length, size);
    }
    return make_file("hard.csv", text, used);
}

START_TEST(the_time_limit_and_signals_leave_the_best_so_far) {
    const char *path = hard_table();
    ck_runs("place --time-limit=0 %s", path);
    ck_assert_ptr_nonnull(strstr(program_errors, "a smaller one may exist"));
    ck_assert_ptr_nonnull(strstr(program_output, "\n599,"));
    ck_assert_int_eq(run_program("place --time-limit=0 --capacity=1 %s", path), 1);
    /* more than alive at once, and less than a sweep finds */
    unsigned long long peak, floor;
    ck_runs("place --time-limit=0 %s", path);
    ck_assert_int_eq(sscanf(program_errors, "peak %llu, lower bound %llu", &peak, &floor), 2);
    ck_assert_uint_gt(peak, floor);
    ck_refuses(1, "nor a proof that there is none", "place --time-limit=0 --capacity=%llu %s", floor, path);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("place_csv");
    tcase_add_test(tests, columns_in_any_order);
    tcase_add_test(tests, mistakes_are_named);
    tcase_add_test(tests, failed_allocations);
    tcase_add_test(tests, offsets_are_printed);
    tcase_add_test(tests, refusals);
    tcase_add_test(tests, the_time_limit_and_signals_leave_the_best_so_far);
    return run_suite("train/place_csv", tests);
}

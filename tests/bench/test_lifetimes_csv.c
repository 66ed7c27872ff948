/* test_lifetimes_csv.c: parsing of the tables of buffers that bench/place.c reads. */
#include "tests/memory/memory_test.h"

#include "memory/host.h"
#include "bench/lifetimes_csv.h"

static remat_status parse(const char *text, rm_lifetimes_csv *csv) {
    return rm_lifetimes_csv_parse(text, strlen(text), "t.csv", csv);
}

START_TEST(columns_may_have_any_order) {
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

START_TEST(errors_name_line_and_reason) {
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
        ck_fails(parse(cases[i].text, &csv), INVALID, cases[i].part);
        ck_assert_ptr_null(csv.row);
    }
}
END_TEST

START_TEST(failed_allocations_are_reported) {
    rm_lifetimes_csv csv;
    rm_host_fail_at(1);
    ck_fails(parse("id,lower,upper,size\na,0,3,10\n", &csv), MEMORY, "no memory");
    rm_host_fail_at(0);
    ck_assert_ptr_null(csv.row);
}
END_TEST

RUN_TESTS("bench/lifetimes_csv", columns_may_have_any_order, errors_name_line_and_reason,
          failed_allocations_are_reported)

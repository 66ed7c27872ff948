/* test_weights.c: weights come back from a file bit for bit, under PyTorch's names; files that do not fit are refused;
 * a hostile header takes little memory (fuzz_safetensors parses any bytes). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/remat.h"
#include "weights/header.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

enum { IN = 3, HIDDEN = 5 };
static char path[64];
static remat_graph *graph;
static remat_session *session;

static void set_up(void) {
    snprintf(path, sizeof path, "weights_%d.safetensors", (int)getpid());
    CHECKED(remat_graph_create(&graph));
    remat_init init = remat_init_normal(1);
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){4, 2, IN});
    remat_value w_ih = remat_param(graph, "rnn.weight_ih_l0", 2, (int64_t[]){4 * HIDDEN, IN}, init);
    remat_value w_hh = remat_param(graph, "rnn.weight_hh_l0", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, init);
    remat_value b = remat_param(graph, "rnn.bias \"\\\n\xc3\xa9", 1, (int64_t[]){4 * HIDDEN}, init);
    remat_value mean = remat_buffer(graph, "bn.running_mean", 1, (int64_t[]){HIDDEN}, init);
    remat_value variance = remat_buffer(graph, "bn.running_var", 1, (int64_t[]){HIDDEN}, remat_init_constant(2));
    remat_value y = remat_lstm(graph, x, w_ih, w_hh, b, REMAT_NONE);
    y = remat_batch_norm(graph, y, REMAT_NONE, REMAT_NONE, mean, variance, 0.1, 1e-5, false);
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1;
    CHECKED(remat_session_create(graph, remat_mse(graph, y, y), &config, &session));
}
static void tear_down(void) {
    unlink(path);
    remat_session_free(session);
    remat_graph_free(graph);
}

static size_t read_all(remat_kind kind, float *out) {
    size_t n = 0;
    for (int64_t i = 0; i < remat_count(session, kind); i++) {
        remat_array array;
        CHECKED(remat_array_info(session, kind, i, &array));
        CHECKED(remat_read(session, kind, i, out + n, array.bytes));
        n += array.bytes / sizeof *out;
    }
    return n;
}

START_TEST(weights_come_back_bit_for_bit) {
    float before[256], after[256];
    size_t n = read_all(REMAT_PARAM, before);
    n += read_all(REMAT_BUFFER, before + n);
    CHECKED(remat_save_weights(session, path));
    for (int kind = 0; kind < 2; kind++)
        for (int64_t i = 0; i < remat_count(session, kind ? REMAT_BUFFER : REMAT_PARAM); i++) {
            static const float zeros[4 * HIDDEN * HIDDEN];
            remat_array array;
            CHECKED(remat_array_info(session, kind ? REMAT_BUFFER : REMAT_PARAM, i, &array));
            CHECKED(remat_write(session, kind ? REMAT_BUFFER : REMAT_PARAM, i, zeros, array.bytes));
        }
    CHECKED(remat_load_weights(session, path));
    size_t m = read_all(REMAT_PARAM, after);
    m += read_all(REMAT_BUFFER, after + m);
    ck_assert_uint_eq(n, m);
    ck_assert_mem_eq(before, after, n * sizeof *before);
}
END_TEST

/* A file with this header and so many zeros. */
static void write_file(const char *header, size_t data_bytes) {
    FILE *file = fopen(path, "wb");
    uint64_t length = strlen(header);
    ck_assert_ptr_nonnull(file);
    fwrite(&length, 8, 1, file), fwrite(header, 1, length, file);
    for (size_t i = 0; i < data_bytes; i++) fputc(0, file);
    fclose(file);
}

static void expect_refused(remat_status status, const char *words) {
    ck_assert_int_eq(remat_load_weights(session, path), status);
    ck_assert_msg(strstr(remat_last_error(), words) != NULL, "\"%s\" does not say %s", remat_last_error(), words);
}

START_TEST(other_files_are_refused) {
    write_file("{}", 0);
    expect_refused(REMAT_INVALID, "rnn.weight_ih_l0");
    write_file("{\"fc.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    expect_refused(REMAT_INVALID, "fc.weight");
    write_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"\\u0061\":"
               "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
               8);
    expect_refused(REMAT_IO, "duplicate");
    write_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}", 4);
    expect_refused(REMAT_IO, "damaged");
    write_file("{\"__metadata__\":{\"\\ud800\":1}}", 0);
    expect_refused(REMAT_IO, "surrogate");
    unlink(path);
    expect_refused(REMAT_IO, path);
}
END_TEST

/* Hundreds of thousands of arrays of nothing: the text, the list, and a list that grows. */
START_TEST(a_large_header_takes_little_memory) {
    enum { BYTES = 16 << 20 };
    char *header = malloc(BYTES), *at = header;
    struct rusage before, after;
    ck_assert_ptr_nonnull(header);
    *at++ = '{';
    for (int i = 0; at - header < BYTES - 100; i++)
        at += sprintf(at, "\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", i);
    at[-1] = '}', *at = 0;
    write_file(header, 0);
    free(header);
    getrusage(RUSAGE_SELF, &before);
    expect_refused(REMAT_INVALID, "which this graph does not have");
    getrusage(RUSAGE_SELF, &after);
    ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 8 * (BYTES >> 10));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("weights");
    TCase *tests = tcase_create("weights");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, weights_come_back_bit_for_bit);
    tcase_add_test(tests, other_files_are_refused);
    tcase_add_test(tests, a_large_header_takes_little_memory);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

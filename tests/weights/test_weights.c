/* test_weights.c: weights come back from a file bit for bit, under PyTorch's names, and training continues from one;
 * parameters go from session to session; files that do not fit are refused; a hostile header takes little memory (fuzz_safetensors parses any bytes). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/remat.h"
#include "weights/header.h"
#include "tests/suite.h"

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
    CHECKED(remat_save(session, path, REMAT_WEIGHTS));
    for (int kind = 0; kind < 2; kind++)
        for (int64_t i = 0; i < remat_count(session, kind ? REMAT_BUFFER : REMAT_PARAM); i++) {
            static const float zeros[4 * HIDDEN * HIDDEN];
            remat_array array;
            CHECKED(remat_array_info(session, kind ? REMAT_BUFFER : REMAT_PARAM, i, &array));
            CHECKED(remat_write(session, kind ? REMAT_BUFFER : REMAT_PARAM, i, zeros, array.bytes));
        }
    CHECKED(remat_load(session, path, REMAT_WEIGHTS));
    size_t m = read_all(REMAT_PARAM, after);
    m += read_all(REMAT_BUFFER, after + m);
    ck_assert_uint_eq(n, m);
    ck_assert_mem_eq(before, after, n * sizeof *before);
}
END_TEST

/* ---- Training --------------------------------------------------------------------------------------------------- */

/* Momentum correction reads the last learning rate, Adam and dropout the number of updates. */
static remat_session *open_training(const char *optimizer, double scale, const remat_ranks *ranks) {
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    float x[4 * 2 * IN];
    CHECKED(remat_graph_create(&g));
    remat_value in = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){4, 2, IN});
    remat_value mean = remat_buffer(g, "bn.running_mean", 1, (int64_t[]){IN}, remat_init_zero());
    remat_value variance = remat_buffer(g, "bn.running_var", 1, (int64_t[]){IN}, remat_init_constant(1));
    remat_value w = remat_param(g, "rnn.weight_ih_l0", 2, (int64_t[]){4 * IN, IN}, remat_init_uniform(scale));
    remat_value v = remat_param(g, "rnn.weight_hh_l0", 2, (int64_t[]){4 * IN, IN}, remat_init_uniform(scale));
    remat_value y = remat_batch_norm(g, in, REMAT_NONE, REMAT_NONE, mean, variance, 0.1, 1e-5, false);
    y = remat_lstm(g, remat_dropout(g, y, 0.3), w, v, REMAT_NONE, REMAT_NONE);
    config.threads = 1;
    config.optimizer = optimizer;
    config.momentum = 0.9;
    config.momentum_correction = true;
    config.stateful = true;
    config.ranks = ranks;
    CHECKED(remat_session_create(g, remat_mse(g, y, in), &config, &s));
    for (int i = 0; i < 4 * 2 * IN; i++) x[i] = (float)(i * 7 % 11) / 11;
    CHECKED(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    remat_graph_free(g);
    return s;
}

static void expect_same(remat_session *a, remat_session *b) {
    static const remat_kind kinds[] = {REMAT_PARAM, REMAT_BUFFER, REMAT_OPTIMIZER, REMAT_CARRIED};
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < remat_count(a, kinds[k]); i++) {
            float x[4 * IN * IN], y[4 * IN * IN];
            remat_array info;
            CHECKED(remat_array_info(a, kinds[k], i, &info));
            CHECKED(remat_read(a, kinds[k], i, x, info.bytes));
            CHECKED(remat_read(b, kinds[k], i, y, info.bytes));
            ck_assert_msg(!memcmp(x, y, info.bytes), "%s", info.name);
        }
}

START_TEST(training_continues_from_a_file_with_the_same_bits) {
    static const char *const optimizers[] = {"adam", "lars"};
    remat_session *a = open_training(optimizers[_i], 0.5, NULL), *b = open_training(optimizers[_i], 0.1, NULL);
    CHECKED(remat_step(a, 0.1, NULL));
    CHECKED(remat_step(a, 0.05, NULL));
    CHECKED(remat_save(a, path, REMAT_TRAINING));
    CHECKED(remat_step(b, 0.3, NULL));
    CHECKED(remat_load(b, path, REMAT_TRAINING));
    ck_assert(remat_step_count(b) == 2 && remat_last_lr(b) == 0.05);
    expect_same(a, b);
    for (int i = 0; i < 2; i++) {
        remat_step_result x, y;
        CHECKED(remat_step(a, 0.02, &x));
        CHECKED(remat_step(b, 0.02, &y));
        ck_assert(x.loss == y.loss);
    }
    expect_same(a, b);
    CHECKED(remat_load(b, path, REMAT_WEIGHTS)); /* without the rest */
    ck_assert_int_eq(remat_step_count(b), 4);
    CHECKED(remat_save(b, path, REMAT_WEIGHTS));
    ck_assert_int_eq(remat_load(a, path, REMAT_TRAINING), REMAT_INVALID);
    ck_assert(strstr(remat_last_error(), "optimizer/rnn.weight_ih_l0"));
    remat_session_free(a), remat_session_free(b);
}
END_TEST

START_TEST(parameters_are_copied_from_session_to_session) {
    remat_session *a = open_training("adam", 0.5, NULL), *b = open_training("adam", 0.1, NULL);
    remat_step_result x, y;
    CHECKED(remat_step(a, 0.1, NULL));
    CHECKED(remat_evaluate(b, NULL)); /* weights are packed */
    CHECKED(remat_copy_parameters(b, a));
    remat_set_step_count(b, 1);
    for (int64_t i = 0; i < remat_count(a, REMAT_CARRIED); i++) {
        float state[2 * IN];
        CHECKED(remat_read(a, REMAT_CARRIED, i, state, sizeof state));
        CHECKED(remat_write(b, REMAT_CARRIED, i, state, sizeof state));
    }
    CHECKED(remat_gradients(a, &x));
    CHECKED(remat_gradients(b, &y));
    ck_assert(x.loss == y.loss && x.grad_norm == y.grad_norm);
    ck_assert_int_eq(remat_copy_parameters(session, a), REMAT_INVALID);
    ck_assert(strstr(remat_last_error(), "rnn.weight_ih_l0") && strstr(remat_last_error(), "shape"));
    remat_session_free(a), remat_session_free(b);
}
END_TEST

static remat_status nothing(void *context, const remat_bucket *bucket) { return (void)context, (void)bucket, REMAT_OK; }
static remat_status no_sum(void *context, double *values, int64_t n) {
    return (void)context, (void)values, (void)n, REMAT_OK;
}
START_TEST(a_part_of_an_optimizer_is_not_saved) {
    const remat_ranks ranks = {.struct_bytes = sizeof ranks,
                               .size = 2,
                               .shard_optimizer = true,
                               .reduce = nothing,
                               .wait = nothing,
                               .gather = nothing,
                               .gathered = nothing,
                               .sum = no_sum};
    remat_session *s = open_training("adam", 0.5, &ranks);
    CHECKED(remat_save(s, path, REMAT_WEIGHTS));
    ck_assert_int_eq(remat_save(s, path, REMAT_TRAINING), REMAT_INVALID);
    ck_assert(strstr(remat_last_error(), "shard"));
    ck_assert_int_eq(remat_save(s, path, (remat_contents)7), REMAT_INVALID);
    remat_session_free(s);
}
END_TEST

/* ---- Files that do not fit --------------------------------------------------------------------------------------- */

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
    ck_assert_int_eq(remat_load(session, path, REMAT_WEIGHTS), status);
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
    TCase *tests = tcase_create("weights");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, weights_come_back_bit_for_bit);
    tcase_add_loop_test(tests, training_continues_from_a_file_with_the_same_bits, 0, 2);
    tcase_add_test(tests, parameters_are_copied_from_session_to_session);
    tcase_add_test(tests, a_part_of_an_optimizer_is_not_saved);
    tcase_add_test(tests, other_files_are_refused);
    tcase_add_test(tests, a_large_header_takes_little_memory);
    return run_cases("weights", tests);
}

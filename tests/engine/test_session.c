/* test_session.c: what a session accepts and reports: configs, threads, plans, inputs, weights and outputs. */
#include "engine/abi.h"
#include "memory/processors.h"
#include "tests/engine/language_model.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Configs, threads, plans ----------------------------------------------------------------------------------------- */

START_TEST(invalid_session_configs_are_refused) {
    remat_value loss = language_model();
    remat_config config = REMAT_CONFIG_INIT, wrong;
    expect_refused(REMAT_NONE, config, "loss");
    expect_refused((remat_value){1}, config, "computed");
    expect_refused((remat_value){loss.id - 1}, config, "scalar");
    expect_refused((remat_value){999}, config, "value|graph");
    wrong = config, wrong.device = "tpu", expect_refused(loss, wrong, "device");
    wrong = config, wrong.strategy = "magic", expect_refused(loss, wrong, "strategy");
    wrong = config, wrong.strategy = "segments", expect_refused(loss, wrong, "segments");
    wrong = config, wrong.optimizer = "lion", expect_refused(loss, wrong, "optimizer");
    wrong = config, wrong.tile = -1, expect_refused(loss, wrong, "tile");
    wrong = config, wrong.threads = -1, expect_refused(loss, wrong, "threads");
    wrong = config, wrong.clip_grad_norm = -1, expect_refused(loss, wrong, "clip");
    wrong = config, wrong.optimizer = "sgd", wrong.nesterov = true, expect_refused(loss, wrong, "momentum");
    wrong = config, wrong.plan_steps = "run forward 0 all\n", expect_refused(loss, wrong, "plan");
    wrong = config, wrong.plan_steps = "go 0\n", expect_refused(loss, wrong, "line 1");
}
END_TEST

static int threads_of_a_session(remat_value loss, int asked) {
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = asked;
    ck_assert_msg(!remat_session_create(graph, loss, &config, &s), "%s", remat_last_error());
    int threads = rm_plan_summary_of(s).threads;
    remat_session_free(s);
    return threads;
}

START_TEST(quota_limits_threads_by_default) {
    remat_value loss = language_model();
    int all = omp_get_num_procs();
    unsetenv("OMP_NUM_THREADS");
    omp_set_num_threads(all);
    rm_processors_pretend(&(rm_processors){.allowed = all, .quota = 1.5, .usable = 1});
    ck_assert_int_eq(threads_of_a_session(loss, 0), 1);
    ck_assert_int_eq(rm_build_info_of_this().threads, 1);
    ck_assert_int_eq(threads_of_a_session(loss, 2), 2);
    omp_set_num_threads(all + 1); /* the program's own choice */
    ck_assert_int_eq(threads_of_a_session(loss, 0), all + 1);
    omp_set_num_threads(all);
    setenv("OMP_NUM_THREADS", "2", 1);
    ck_assert_int_eq(threads_of_a_session(loss, 0), all);
    unsetenv("OMP_NUM_THREADS");
    rm_processors_pretend(
        &(rm_processors){.allowed = all + 2, .usable = all + 2}); /* more threads than OpenMP would start */
    ck_assert_int_eq(threads_of_a_session(loss, 0), all);
    rm_processors_pretend(NULL);
}
END_TEST

/* A stage is named after its parameter, which may have any name. The JSON contains it as one valid UTF-8 string. */
START_TEST(any_layer_name_gives_valid_json) {
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){3, 4});
    remat_value y = remat_linear(graph, x, matrix("a\", \\\n\xff\xe0\x80\x80.weight", 5, 4), REMAT_NONE);
    remat_value t = remat_input(graph, "t", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){3, 5});
    remat_config config = REMAT_CONFIG_INIT;
    config.plan_only = true;
    remat_session *s;
    ck_assert_msg(!remat_session_create(graph, remat_mse(graph, y, t), &config, &s), "%s", remat_last_error());
    char *text = remat_plan_stages_json(s);
    ck_assert_msg(strstr(text, "\"layer\": \"a?, ??????\", \"first"), "%s", text);
    remat_text_free(text);
    remat_session_free(s);
}
END_TEST

/* A million timesteps on the null device: planned, checked, placed and run in an instant. */
START_TEST(null_device_plans_a_million_timesteps) {
    int64_t steps = 1000000;
    remat_value x = sequence("x", REMAT_F32, steps, 1, 8);
    remat_value h = remat_lstm(graph, x, matrix("w", 4 * 64, 8), matrix("u", 4 * 64, 64), REMAT_NONE, REMAT_NONE);
    remat_value loss = remat_mse(graph, h, sequence("t", REMAT_F32, steps, 1, 64));
    remat_config config = REMAT_CONFIG_INIT;
    config.device = "null";
    config.strategy = "sqrt";
    remat_session *s;
    ck_assert_msg(remat_session_create(graph, loss, &config, &s) == REMAT_OK, "%s", remat_last_error());
    remat_step_result r;
    ck_assert_int_eq(remat_gradients(s, &r), REMAT_OK);
    remat_plan_summary plan = rm_plan_summary_of(s);
    ck_assert_uint_eq(r.arena_peak_bytes, plan.planned_peak_bytes);
    ck_assert_int_eq(plan.n_tiles, (steps + 255) / 256);
    ck_assert_int_eq(plan.segments, 63); /* round(sqrt(3907)) */
    ck_assert(r.recomputed_stages > 0 && (int64_t)r.recomputed_stages < plan.n_tiles);
    remat_session_free(s);
}
END_TEST

/* All layers have different sizes, and the largest comes last: it is the largest object at the peak. */
START_TEST(largest_object_is_reported_at_the_peak) {
    enum { LAYERS = 300, ROWS = 16 };
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, 1});
    for (int k = 1; k <= LAYERS; k++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", k);
        x = remat_linear(graph, x, matrix(name, k + 1, k), REMAT_NONE);
    }
    remat_value target = remat_input(graph, "t", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, LAYERS + 1});
    remat_config config = REMAT_CONFIG_INIT;
    config.device = "null";
    config.plan_only = true;
    remat_session *s;
    ck_assert_int_eq(remat_session_create(graph, remat_mse(graph, x, target), &config, &s), REMAT_OK);
    char *peak = remat_plan_peak_json(s), *first = strstr(peak, "\"bytes_each\": ");
    ck_assert_ptr_nonnull(first);
    ck_assert_int_ge(atoi(first + strlen("\"bytes_each\": ")), ROWS * (LAYERS + 1) * 4);
    remat_text_free(peak);
    remat_session_free(s);
}
END_TEST

/* ---- Inputs, weights, outputs -------------------------------------------------------------------------------------------- */

/* The loss is finite, but its gradient is too large for a float. */
START_TEST(updates_by_infinite_gradients_are_refused) {
    const int64_t dim[] = {1, 2};
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, dim);
    remat_value loss = remat_mae(graph, remat_scale(graph, remat_linear(graph, x, matrix("w", 2, 2), REMAT_NONE), 1e10),
                                 remat_input(graph, "y", REMAT_F32, REMAT_STATIC, 2, dim));
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    remat_step_result result;
    float before[4], after[4], gradient[4];
    config.optimizer = "sgd";
    config.clip_grad_norm = _i;
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, (float[]){3e38f, -3e38f}, 2 * sizeof(float)), REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_PARAM, 0, (float[]){1e-20f, 1e-20f, 2e-20f, 2e-20f}, sizeof before),
                     REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, (float[]){1, 1}, 2 * sizeof(float)), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, before, sizeof before), REMAT_OK);
    expect_invalid(remat_step(s, 0.1, &result), "norm of the gradients is inf|no parameter was updated");
    ck_assert(isfinite(result.loss) && isinf(result.grad_norm));
    ck_assert_int_eq(remat_gradients(s, &result), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_GRADIENT, 0, gradient, sizeof gradient), REMAT_OK);
    ck_assert(isinf(gradient[0]));
    expect_invalid(remat_update(s, 0.1, &result), "norm of the gradients is inf");
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, after, sizeof after), REMAT_OK);
    ck_assert_mem_eq(before, after, sizeof before);
    ck_assert_int_eq(remat_step_count(s), 0);
    remat_session_free(s);
}
END_TEST

/* y of row 1 is padding, so it may be NaN; x is read. */
START_TEST(nan_in_an_input_is_named_before_the_update) {
    const int64_t dim[] = {2, 3};
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, dim);
    remat_value y = remat_input(graph, "y", REMAT_F32, REMAT_STATIC, 2, dim);
    remat_value padding = remat_input(graph, "padding", REMAT_I32, REMAT_STATIC, 1, dim);
    remat_value loss = remat_mse_padded(graph, remat_linear(graph, x, matrix("w", 3, 3), REMAT_NONE), y, padding);
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    remat_step_result result;
    float data[6] = {1, 2, 3, 4, 5, 6}, targets[6] = {1, 2, 3, NAN, NAN, NAN}, before[9], after[9];
    config.optimizer = "sgd";
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, targets, sizeof targets), REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 2, (int32_t[]){0, 1}, 2 * sizeof(int32_t)), REMAT_OK);
    ck_assert_int_eq(remat_step(s, 0.1, &result), REMAT_OK);
    ck_assert(isfinite(result.loss));
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, before, sizeof before), REMAT_OK);
    data[2] = NAN;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    expect_invalid(remat_step(s, 0.1, &result), "loss is nan|input x is nan|element 2");
    expect_invalid(remat_gradients(s, &result), "input x is nan|element 2");
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, after, sizeof after), REMAT_OK);
    ck_assert_mem_eq(before, after, sizeof before);
    ck_assert_int_eq(remat_step_count(s), 1);
    data[2] = 3;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(remat_step(s, 0.1, &result), REMAT_OK);
    remat_session_free(s);
}
END_TEST

/* The first unwritten input is reported by its name, on both kinds of pass. An unread input may stay unwritten. */
START_TEST(unwritten_inputs_are_refused) {
    remat_value loss = language_model();
    sequence("nobody_reads_it", REMAT_F32, T, B, 2);
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "sgd";
    remat_session *s;
    int32_t data[T * B] = {0};
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    expect_invalid(remat_step(s, 0.1, NULL), "input tokens|written");
    expect_invalid(remat_evaluate(s, NULL), "input tokens|written");
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    expect_invalid(remat_gradients(s, NULL), "input targets|written");
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, data, 4), REMAT_INVALID); /* not all of its bytes */
    expect_invalid(remat_step(s, 0.1, NULL), "input targets|written");
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(remat_step(s, 0.1, NULL), REMAT_OK); /* NULL: the result is not wanted */
    ck_assert_int_eq(remat_gradients(s, NULL), REMAT_OK);
    ck_assert_int_eq(remat_update(s, 0.1, NULL), REMAT_OK);
    ck_assert_int_eq(remat_evaluate(s, NULL), REMAT_OK);
    remat_session_free(s);
}
END_TEST

/* Writes through a bucket's pointers, which a session does not notice: layers keep rearranged copies of their weights. */
START_TEST(parameters_changed_through_a_bucket_are_used) {
    remat_value x = sequence("x", REMAT_F32, T, B, H);
    remat_value y = remat_lstm(graph, x, matrix("w_ih", 4 * H, H), matrix("w_hh", 4 * H, H), REMAT_NONE, REMAT_NONE);
    remat_value loss = remat_mse(graph, y, x);
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *by_hand, *by_writing;
    remat_step_result a, b;
    float data[T * B * H], weights[4 * H * H];
    for (int i = 0; i < T * B * H; i++) data[i] = (float)(i % 9) / 9;
    for (int i = 0; i < 4 * H * H; i++) weights[i] = (float)(i % 5) / 5 - 0.5f;
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &by_hand), REMAT_OK);
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &by_writing), REMAT_OK);
    ck_assert_int_eq(remat_write(by_hand, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(remat_write(by_writing, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(remat_gradients(by_hand, &a), REMAT_OK);
    remat_bucket bucket;
    ck_assert_int_eq(remat_bucket_info(by_hand, 0, &bucket), REMAT_OK);
    ck_assert_int_ge(bucket.count, 8 * H * H);
    float before[4 * H * H]; /* the order in a bucket is private, so the weights are found by their values */
    for (int64_t p = 0; p < 2; p++) {
        ck_assert_int_eq(remat_read(by_hand, REMAT_PARAM, p, before, sizeof before), REMAT_OK);
        for (int64_t i = 0; i + 4 * H * H <= bucket.count; i++)
            if (!memcmp(bucket.parameters + i, before, sizeof before))
                memcpy(bucket.parameters + i, weights, sizeof weights);
        ck_assert_int_eq(remat_write(by_writing, REMAT_PARAM, p, weights, sizeof weights), REMAT_OK);
    }
    ck_assert_int_eq(remat_gradients(by_hand, &a), REMAT_OK);
    ck_assert_int_eq(remat_gradients(by_writing, &b), REMAT_OK);
    ck_assert_msg(a.loss == b.loss && a.grad_norm == b.grad_norm, "loss %.9g and %.9g", a.loss, b.loss);
    remat_session_free(by_hand);
    remat_session_free(by_writing);
}
END_TEST

/* The same weights of a layer in two steps: as parameters, inputs, external inputs, and computed from parameters. */
enum { PARAMETERS, INPUTS, LENT, MADE, OF_DATA, KINDS };

static remat_status step_with(int kind, float (*weights)[4 * H * H], double loss[2]) {
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    bool input = kind == INPUTS || kind == LENT || kind == OF_DATA;
    const int64_t dim[] = {4 * H, H}, time[] = {T, B, H};
    float data[T * B * H];
    ck_assert_int_eq(remat_graph_create(&g), REMAT_OK);
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, time), none = REMAT_NONE;
    remat_value w =
        input ? remat_input(g, "w", REMAT_F32, REMAT_STATIC, 2, dim) : remat_param(g, "w", 2, dim, remat_init_zero());
    remat_value own = remat_param(g, "own", 2, (int64_t[]){H, H}, remat_init_zero());
    remat_value used = kind >= MADE ? remat_scale(g, w, 1) : w;
    remat_value y = remat_linear(g, remat_lstm(g, x, used, used, none, none), own, none);
    remat_status checked = remat_graph_check(g);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 7;
    config.external = &(remat_external){REMAT_INPUT, "w", weights[0]};
    config.n_external = kind == LENT;
    remat_status status = remat_session_create(g, remat_mse(g, y, x), &config, &s);
    remat_graph_free(g);
    ck_assert_int_eq(status, checked); /* a session accepts what remat_graph_check passes */
    if (status) return status;
    for (int i = 0; i < T * B * H; i++) data[i] = (float)(i % 9) / 9;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    float eye[H * H] = {0};
    for (int i = 0; i < H; i++) eye[i * H + i] = 1;
    ck_assert_int_eq(remat_write(s, REMAT_PARAM, remat_find(s, REMAT_PARAM, "own"), eye, sizeof eye), REMAT_OK);
    remat_kind where = input ? REMAT_INPUT : REMAT_PARAM;
    for (int i = 0; i < 2; i++) {
        int64_t index = remat_find(s, where, "w");
        if (kind == LENT)
            ck_assert_int_eq(remat_set_external(s, REMAT_INPUT, index, weights[i], sizeof weights[i]), REMAT_OK);
        else
            ck_assert_int_eq(remat_write(s, where, index, weights[i], sizeof weights[i]), REMAT_OK);
        ck_assert_int_eq(remat_gradients(s, &r), REMAT_OK);
        loss[i] = r.loss;
    }
    remat_session_free(s);
    return REMAT_OK;
}

START_TEST(weights_may_be_inputs_or_computed) {
    float weights[2][4 * H * H];
    double expected[2], loss[2];
    for (int i = 0; i < 2 * 4 * H * H; i++) (&weights[0][0])[i] = (float)(i % 7) / 7 - 0.4f;
    ck_assert_int_eq(step_with(PARAMETERS, weights, expected), REMAT_OK);
    ck_assert(expected[0] != expected[1]);
    ck_assert_int_eq(step_with(_i, weights, loss), _i == OF_DATA ? REMAT_INVALID : REMAT_OK);
    if (_i == OF_DATA)
        ck_says_all(remat_last_error(), "input|weight|parameters");
    else
        ck_assert_msg(loss[0] == expected[0] && loss[1] == expected[1], "%.9g %.9g, not %.9g %.9g", loss[0], loss[1],
                      expected[0], expected[1]);
}
END_TEST

/* Layers along time read the output as a weight, so it is computed before the first of them. */
START_TEST(outputs_may_depend_on_parameters_alone) {
    remat_value x = sequence("x", REMAT_F32, T, B, H), w = remat_scale(graph, matrix("w", H, H), 2);
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    float data[T * B * H], weight[H * H], output[H * H];
    config.outputs = &w;
    config.n_outputs = 1;
    config.inference = _i == 1;
    remat_value loss = remat_mse(graph, remat_linear(graph, x, w, REMAT_NONE), x);
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    for (int i = 0; i < T * B * H; i++) data[i] = (float)(i % 9) / 9;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(_i == 2 ? remat_gradients(s, NULL) : remat_evaluate(s, NULL), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, weight, sizeof weight), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_OUTPUT, 0, output, sizeof output), REMAT_OK);
    for (int i = 0; i < H * H; i++) ck_assert_float_eq(output[i], 2 * weight[i]);
    remat_session_free(s);
}
END_TEST

/* Outputs are those of the last evaluation. */
START_TEST(outputs_are_readable_after_a_pass) {
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){1, 1});
    remat_value y =
        remat_linear(graph, x, remat_param(graph, "w", 2, (int64_t[]){1, 1}, remat_init_constant(3)), REMAT_NONE);
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "sgd";
    config.outputs = &y;
    config.n_outputs = 1;
    remat_session *s;
    float value = 2, out = -1;
    ck_assert_int_eq(remat_session_create(graph, remat_mse(graph, y, x), &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, &value, sizeof value), REMAT_OK);
    expect_invalid(remat_read(s, REMAT_OUTPUT, 0, &out, sizeof out), "output.0|yet");
    ck_assert_int_eq(remat_evaluate(s, NULL), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_OUTPUT, 0, &out, sizeof out), REMAT_OK);
    ck_assert(out == 6);
    value = 5;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, &value, sizeof value), REMAT_OK);
    ck_assert_int_eq(remat_step(s, 0, NULL), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_OUTPUT, 0, &out, sizeof out), REMAT_OK);
    ck_assert(out == 15); /* a training step also computes values on which the loss depends */
    remat_session_free(s);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("session");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, invalid_session_configs_are_refused);
    tcase_add_test(tests, null_device_plans_a_million_timesteps);
    tcase_add_test(tests, largest_object_is_reported_at_the_peak);
    tcase_add_loop_test(tests, updates_by_infinite_gradients_are_refused, 0, 2); /* without and with clip_grad_norm */
    tcase_add_test(tests, nan_in_an_input_is_named_before_the_update);
    tcase_add_test(tests, any_layer_name_gives_valid_json);
    tcase_add_test(tests, unwritten_inputs_are_refused);
    tcase_add_test(tests, parameters_changed_through_a_bucket_are_used);
    tcase_add_loop_test(tests, outputs_may_depend_on_parameters_alone, 0, 3);
    tcase_add_loop_test(tests, weights_may_be_inputs_or_computed, INPUTS, KINDS);
    tcase_add_test(tests, outputs_are_readable_after_a_pass);
    tcase_add_test(tests, quota_limits_threads_by_default);
    return run_cases("session", tests);
}

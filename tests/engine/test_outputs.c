/* test_outputs.c: outputs of an evaluation besides the loss. Readers of the loss's inputs, at any place in the graph,
 * do not change training, and outputs have the right values, also those computed from the loss. test_random.c tests the
 * same on random networks; these shapes once showed mistakes. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/poison.h"
#include "tests/says.h"
#include "tests/suite.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

static remat_graph *graph;
static void set_up(void) { CHECKED(remat_graph_create(&graph)); }
static void tear_down(void) { remat_graph_free(graph); }

enum { T = 12, B = 8, W = 16 };

static remat_value weight(const char *name) {
    return remat_param(graph, name, 2, (int64_t[]){W, W}, remat_init_uniform(0.5));
}
static remat_value layer(remat_value x, const char *name) {
    return remat_linear(graph, remat_tanh(graph, x), weight(name), REMAT_NONE);
}
static remat_value input(const char *name, bool timed) {
    int64_t dim[] = {T, B, W};
    return timed ? remat_input(graph, name, REMAT_F32, REMAT_SEQUENCE, 3, dim)
                 : remat_input(graph, name, REMAT_F32, REMAT_STATIC, 2, dim + 1);
}

static void feed(remat_session *s, int64_t index, uint32_t seed) {
    remat_array info;
    CHECKED(remat_array_info(s, REMAT_INPUT, index, &info));
    float *data = malloc(info.bytes);
    for (uint64_t k = 0; k < info.bytes / sizeof *data; k++)
        data[k] = (float)((seed = seed * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1;
    CHECKED(remat_write(s, REMAT_INPUT, index, data, info.bytes));
    free(data);
}

/* A session of a config with these outputs, and with all inputs written. */
static remat_session *session_with(remat_value loss, const remat_value *outputs, int n, remat_config config) {
    remat_session *s;
    config.outputs = outputs;
    config.n_outputs = n;
    config.threads = 1;
    CHECKED(remat_session_create(graph, loss, &config, &s));
    poison(s);
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) feed(s, i, 17 + (uint32_t)i);
    return s;
}

static float read_scalar(remat_session *s, int64_t output) {
    float value;
    CHECKED(remat_read(s, REMAT_OUTPUT, output, &value, sizeof value));
    return value;
}

/* ---- Training does not change --------------------------------------------------------------------------------- */

static void expect_same_training(remat_value loss, const remat_value *outputs, int n, const remat_config *config) {
    remat_step_result with, without;
    remat_session *a = session_with(loss, outputs, n, *config), *b = session_with(loss, NULL, 0, *config);
    CHECKED(remat_gradients(a, &with));
    CHECKED(remat_gradients(b, &without));
    ck_assert_msg(with.loss == without.loss, "loss %.9g, and %.9g without outputs", with.loss, without.loss);
    ck_assert_msg(with.grad_norm == without.grad_norm, "gradient norm %.9g, and %.9g without outputs", with.grad_norm,
                  without.grad_norm);
    remat_session_free(a);
    remat_session_free(b);
}

static const char *const strategies[] = {"none", "segments", "sqrt", "lean"};
enum { N_STRATEGIES = sizeof strategies / sizeof *strategies };

static remat_config config_of(int strategy, int64_t tile) {
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategies[strategy];
    config.segments = 2;
    config.tile = tile;
    return config;
}

/* By depth: a reader of h after the loss, and one before it. */
START_TEST(readers_of_the_losss_input_do_not_change_training) {
    remat_config config = config_of(_i % N_STRATEGIES, _i / N_STRATEGIES);
    remat_value x = input("x", false), h = layer(remat_linear(graph, x, weight("w0"), REMAT_NONE), "w1");
    remat_value before = layer(h, "w2"), loss = remat_mse(graph, h, input("t", false)), after = layer(h, "w3");
    remat_value far = layer(layer(layer(after, "w4"), "w5"), "w6");
    expect_same_training(loss, &after, 1, &config);
    expect_same_training(loss, &before, 1, &config);
    expect_same_training(loss, (remat_value[]){before, far, h}, 3, &config);
}
END_TEST

/* Along time: reductions carry a running sum, which has no gradient here. */
START_TEST(reductions_besides_the_loss_do_not_change_training) {
    remat_config config = config_of(_i % N_STRATEGIES, _i / N_STRATEGIES ? 3 : 5);
    remat_value x = input("x", true), t = input("t", true);
    remat_value h = remat_rnn_tanh(graph, x, weight("w0"), weight("w1"), REMAT_NONE, REMAT_NONE);
    remat_value other = remat_mse(graph, h, x), loss = remat_mse(graph, h, t);
    remat_value mean = remat_mean_over_time(graph, h);
    expect_same_training(loss, &other, 1, &config);
    expect_same_training(loss, &mean, 1, &config);
    expect_same_training(loss, (remat_value[]){layer(mean, "w2"), layer(h, "w3"), other}, 3, &config);
}
END_TEST

/* Training does no work for values on which the loss does not depend: every program makes the same calls. */
START_TEST(training_computes_only_what_the_loss_needs) {
    remat_config config = config_of(1, 3);
    remat_value x = input("x", true);
    remat_value h = remat_rnn_tanh(graph, x, weight("w0"), weight("w1"), REMAT_NONE, REMAT_NONE);
    remat_value loss = remat_mse(graph, layer(h, "w2"), x);
    remat_value beside = remat_rnn_tanh(graph, h, weight("w3"), weight("w4"), REMAT_NONE, REMAT_NONE);
    remat_value outputs[] = {remat_scale(graph, loss, 2), beside, remat_mean_over_time(graph, layer(h, "w5"))};
    remat_session *with = session_with(loss, outputs, 3, config), *without = session_with(loss, NULL, 0, config);
    for (int c = 0; c < 2; c++) {
        const rm_stage_kind *a = &with->chain.kind[c], *b = &without->chain.kind[c];
        ck_assert_int_eq(a->drop.n, b->drop.n);
        for (int k = 0; k < b->n_options; k++) {
            ck_assert_int_eq(a->option[k].forward.n, b->option[k].forward.n);
            ck_assert_int_eq(a->option[k].backward.n, b->option[k].backward.n);
        }
    }
    remat_session_free(with);
    remat_session_free(without);
}
END_TEST

/* ---- Values --------------------------------------------------------------------------------------------------- */

/* Without dropout a training step computes the values of an evaluation: of the spine, of leaves, across cuts, in tiles
 * that are dropped and recomputed. The last output is not on the path to the loss. */
START_TEST(training_steps_write_outputs) {
    enum { N = 4, MOST = T * B * W };
    bool timed = _i % 2;
    remat_config config = config_of(_i / 2 % N_STRATEGIES, _i / 2 / N_STRATEGIES ? 1 : 5);
    remat_value x = input("x", timed), h = remat_linear(graph, x, weight("w0"), REMAT_NONE);
    if (timed) h = remat_rnn_tanh(graph, h, weight("w4"), weight("w5"), REMAT_NONE, REMAT_NONE);
    remat_value early = layer(h, "w1"), late = layer(remat_add(graph, early, h), "w2");
    remat_value outputs[N] = {h, early, late, layer(h, "w3")};
    remat_session *s = session_with(remat_mse(graph, late, input("t", timed)), outputs, N, config);
    static float evaluated[N][MOST], trained[MOST];
    uint64_t bytes = sizeof(float) * (timed ? T : 1) * B * W;
    ck_assert_int_eq(remat_read(s, REMAT_OUTPUT, 0, trained, bytes), REMAT_INVALID);
    CHECKED(remat_gradients(s, NULL));
    ck_assert_int_eq(remat_read(s, REMAT_OUTPUT, N - 1, trained, bytes), REMAT_INVALID);
    for (int i = 0; i < N - 1; i++) CHECKED(remat_read(s, REMAT_OUTPUT, i, evaluated[i], bytes));
    poison(s);
    CHECKED(remat_evaluate(s, NULL));
    for (int i = 0; i < N; i++) {
        CHECKED(remat_read(s, REMAT_OUTPUT, i, trained, bytes));
        ck_assert_msg(i == N - 1 || !memcmp(trained, evaluated[i], bytes), "output %d differs", i);
    }
    remat_session_free(s);
}
END_TEST

/* By depth, one stage may compute the loss and the next one read it. */
START_TEST(outputs_may_depend_on_the_loss) {
    bool timed = _i / 2;
    remat_config config = config_of(0, _i % 2 ? 1 : timed ? 5 : 0);
    remat_value x = input("x", timed), t = input("t", timed);
    remat_value h = remat_linear(graph, x, weight("w0"), REMAT_NONE), loss = remat_mse(graph, h, t);
    remat_value twice = remat_scale(graph, loss, 2), six = remat_scale(graph, twice, 3);
    remat_value outputs[] = {twice, six, loss};
    expect_same_training(loss, outputs, 3, &config);
    remat_session *s = session_with(loss, outputs, 3, config);
    remat_step_result r;
    CHECKED(remat_evaluate(s, &r));
    double near = 1e-5 * r.loss; /* the loss of a pass is summed in double */
    ck_assert_msg(fabs(read_scalar(s, 0) - 2 * r.loss) < near, "%g is not twice %g", read_scalar(s, 0), r.loss);
    ck_assert_msg(fabs(read_scalar(s, 1) - 6 * r.loss) < near, "%g is not six times %g", read_scalar(s, 1), r.loss);
    ck_assert_msg(fabs(read_scalar(s, 2) - r.loss) < near, "%g is not %g", read_scalar(s, 2), r.loss);
    remat_session_free(s);
}
END_TEST

START_TEST(there_may_be_many_outputs) {
    enum { MANY = 100 };
    remat_value x = input("x", true), h = remat_linear(graph, x, weight("w"), REMAT_NONE), outputs[MANY];
    remat_value mean = remat_mean_over_time(graph, h), loss = remat_mse(graph, h, x);
    for (int i = 0; i < MANY; i++) outputs[i] = remat_scale(graph, mean, i);
    remat_session *s = session_with(loss, outputs, MANY, config_of(0, 5));
    float first[B * W], other[B * W];
    CHECKED(remat_evaluate(s, NULL));
    CHECKED(remat_read(s, REMAT_OUTPUT, 1, first, sizeof first));
    for (int i = 0; i < MANY; i++) {
        CHECKED(remat_read(s, REMAT_OUTPUT, i, other, sizeof other));
        for (int k = 0; k < B * W; k++) ck_assert(other[k] == (float)i * first[k]);
    }
    remat_session_free(s);
}
END_TEST

START_TEST(null_outputs_are_refused) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    remat_value x = input("x", true), loss = remat_mse(graph, remat_linear(graph, x, weight("w"), REMAT_NONE), x);
    config.n_outputs = 2;
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "n_outputs|2|outputs");
}
END_TEST

/* Batch norm stays as in evaluations, and a training session's own draws are as without. */
START_TEST(evaluations_may_draw_dropout) {
    static float plain[T * B * W], sample[3][T * B * W];
    remat_value mean = remat_buffer(graph, "mean", 1, (int64_t[]){W}, remat_init_constant(0.3));
    remat_value variance = remat_buffer(graph, "variance", 1, (int64_t[]){W}, remat_init_constant(2));
    remat_value x = remat_batch_norm(graph, input("x", true), REMAT_NONE, REMAT_NONE, mean, variance, 0.1, 1e-5, false);
    remat_value y = remat_dropout(graph, remat_linear(graph, x, weight("w"), REMAT_NONE), 0.25);
    remat_value loss = remat_mse(graph, y, input("target", true));
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 5;
    config.inference = _i;
    remat_session *s = session_with(loss, &y, 1, config), *like = session_with(loss, &y, 1, config);
    remat_step_result a, b;
    CHECKED(remat_evaluate(s, NULL));
    CHECKED(remat_read(s, REMAT_OUTPUT, 0, plain, sizeof plain));
    for (int k = 0; k < 3; k++) {
        CHECKED(remat_set_dropout(s, (INT64_C(1) << 40) + k % 2));
        CHECKED(remat_evaluate(s, NULL));
        CHECKED(remat_read(s, REMAT_OUTPUT, 0, sample[k], sizeof *sample));
    }
    ck_assert(!memcmp(sample[0], sample[2], sizeof *sample) && memcmp(sample[0], sample[1], sizeof *sample));
    int dropped = 0, n = T * B * W;
    for (int i = 0; i < n; i++) {
        ck_assert(sample[0][i] == 0 || sample[0][i] == plain[i] * (float)(1 / 0.75));
        dropped += sample[0][i] == 0;
    }
    ck_assert(fabs(dropped - 0.25 * n) < 5 * sqrt(0.25 * 0.75 * n)); /* five standard deviations */
    if (!_i) {
        CHECKED(remat_gradients(s, &a));
        CHECKED(remat_gradients(like, &b));
        ck_assert(a.loss == b.loss && a.grad_norm == b.grad_norm);
    }
    CHECKED(remat_set_dropout(s, -1));
    CHECKED(remat_evaluate(s, &a));
    CHECKED(remat_evaluate(like, &b));
    ck_assert(a.loss == b.loss);
    remat_session_free(s), remat_session_free(like);
}
END_TEST

/* Weights of attention are dropped as well. */
START_TEST(evaluations_may_draw_dropout_of_attention) {
    static float sample[4][T * B * W];
    remat_value x = input("x", true), target = input("target", true);
    remat_value y = remat_attention_dropout(graph, x, x, x, 2, true, REMAT_NONE, 0.5);
    remat_value loss = remat_mse(graph, remat_linear(graph, y, weight("w"), REMAT_NONE), target);
    remat_session *s = session_with(loss, &y, 1, (remat_config)REMAT_CONFIG_INIT);
    for (int k = 0; k < 4; k++) {
        CHECKED(remat_set_dropout(s, k == 3 ? -1 : k % 2));
        CHECKED(remat_evaluate(s, NULL));
        CHECKED(remat_read(s, REMAT_OUTPUT, 0, sample[k], sizeof *sample));
    }
    ck_assert(!memcmp(sample[0], sample[2], sizeof *sample));
    ck_assert(memcmp(sample[0], sample[1], sizeof *sample) && memcmp(sample[0], sample[3], sizeof *sample));
    remat_session_free(s);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("outputs");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests, readers_of_the_losss_input_do_not_change_training, 0, 2 * N_STRATEGIES);
    tcase_add_loop_test(tests, reductions_besides_the_loss_do_not_change_training, 0, 2 * N_STRATEGIES);
    tcase_add_test(tests, training_computes_only_what_the_loss_needs);
    tcase_add_loop_test(tests, training_steps_write_outputs, 0, 4 * N_STRATEGIES);
    tcase_add_loop_test(tests, outputs_may_depend_on_the_loss, 0, 4);
    tcase_add_test(tests, there_may_be_many_outputs);
    tcase_add_loop_test(tests, evaluations_may_draw_dropout, 0, 2);
    tcase_add_test(tests, evaluations_may_draw_dropout_of_attention);
    tcase_add_test(tests, null_outputs_are_refused);
    return run_cases("outputs", tests);
}

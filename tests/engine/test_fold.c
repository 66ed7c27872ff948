/* test_fold.c: an embedding is folded into the input weights of the layer that reads it, and a sum into the relu that reads it. */
#include "tests/engine/language_model.h"
#include "tests/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static float loss_of(remat_value loss, remat_config config, float *gradient, uint64_t bytes) {
    remat_session *s;
    ck_assert_msg(remat_session_create(graph, loss, &config, &s) == REMAT_OK, "%s", remat_last_error());
    int32_t data[T * B];
    for (int i = 0; i < T * B; i++) data[i] = i * i % V;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, data, sizeof data), REMAT_OK);
    remat_step_result r;
    ck_assert_int_eq(remat_gradients(s, &r), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "embedding.weight"), gradient, bytes),
                     REMAT_OK);
    data[3] = V;
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, data, sizeof data), REMAT_INVALID);
    ck_says_all(remat_last_error(), "element 3|17");
    remat_session_free(s);
    return (float)r.loss;
}

/* The same function computed in another way: equal up to rounding, and the plan lists the folded embedding. */
START_TEST(folding_changes_rounding_only) {
    remat_value loss = language_model();
    remat_config config = REMAT_CONFIG_INIT;
    float with[V * E], without[V * E];
    config.fold_embedding = true;
    float a = loss_of(loss, config, with, sizeof with);
    config.fold_embedding = false;
    float b = loss_of(loss, config, without, sizeof without);
    ck_assert_float_eq_tol(a, b, 1e-5f);
    for (int i = 0; i < V * E; i++) ck_assert_float_eq_tol(with[i], without[i], 1e-5f);
}
END_TEST

/* An output must exist as such, so the embedding is computed for every timestep. */
START_TEST(embedding_that_is_an_output_is_not_folded) {
    remat_value loss = language_model(), wanted = {graph->node[0].y};
    remat_config config = REMAT_CONFIG_INIT;
    config.plan_only = true;
    config.outputs = &wanted;
    config.n_outputs = 1;
    remat_session *s;
    ck_assert_str_eq(graph->node[0].op->name, "embedding");
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    char *text = remat_plan_describe(s);
    ck_assert_ptr_null(strstr(text, "folded"));
    remat_text_free(text);
    remat_session_free(s);
    wanted.id = graph->node[1].y;
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    text = remat_plan_describe(s);
    ck_assert_ptr_nonnull(strstr(text, "folded"));
    remat_text_free(text);
    remat_session_free(s);
}
END_TEST

/* A folded table is made before the step, which an embedding computed from an input cannot be. */
START_TEST(embedding_of_inputs_is_not_folded) {
    remat_value table = remat_input(graph, "table", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){V, E});
    remat_value x = remat_embedding(graph, sequence("tokens", REMAT_I32, T, B, 0), table);
    remat_value y = remat_lstm(graph, x, matrix("w_ih", 4 * H, E), matrix("w_hh", 4 * H, H), REMAT_NONE, REMAT_NONE);
    remat_value loss = remat_softmax_cross_entropy(graph, y, sequence("targets", REMAT_I32, T, B, 0));
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    ck_assert_int_eq(remat_graph_check(graph), REMAT_OK);
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    ck_assert_int_eq(s->n_folded, 0);
    remat_session_free(s);
}
END_TEST

START_TEST(folding_is_for_small_vocabularies) {
    remat_value loss = language_model(); /* V = 17 < T*B = 80 */
    remat_config config = REMAT_CONFIG_INIT;
    config.plan_only = true;
    remat_session *s;
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    char *text = remat_plan_describe(s);
    ck_assert(strstr(text, "folded") != NULL);
    remat_text_free(text);
    remat_session_free(s);
    tear_down();
    set_up();
    remat_value tokens = sequence("tokens", REMAT_I32, 3, 2, 0), targets = sequence("targets", REMAT_I32, 3, 2, 0);
    remat_value e = remat_embedding(graph, tokens, matrix("embedding.weight", V, E)); /* 17 > 6 rows */
    remat_value h = remat_rnn_tanh(graph, e, matrix("w", H, E), matrix("u", H, H), REMAT_NONE, REMAT_NONE);
    loss = remat_softmax_cross_entropy(graph, remat_linear(graph, h, matrix("head", V, H), REMAT_NONE), targets);
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    text = remat_plan_describe(s);
    ck_assert(strstr(text, "folded") == NULL);
    remat_text_free(text);
    remat_session_free(s);
}
END_TEST

/* ---- Sums ---------------------------------------------------------------------------------------------------------------- */

enum { ROWS = 6, WIDE = 4, LAYERS = 5 };

/* relu(x + linear(x)), LAYERS times; *sum: the sum of the middle one. */
static remat_value residual_network(remat_value *sum) {
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDE});
    remat_value target = remat_input(graph, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDE});
    for (int i = 0; i < LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        remat_value both = remat_add(graph, x, remat_linear(graph, x, matrix(name, WIDE, WIDE), REMAT_NONE));
        if (i == LAYERS / 2) *sum = both;
        x = remat_relu(graph, both);
    }
    return remat_mse(graph, x, target);
}

/* Loss and gradients; the number of folded sums is as given. */
static double residual_run(remat_value loss, const remat_config *config, int folded, float gradient[LAYERS][WIDE * WIDE]) {
    remat_session *s;
    float data[ROWS * WIDE];
    remat_step_result r;
    int found = 0;
    ck_assert_msg(remat_session_create(graph, loss, config, &s) == REMAT_OK, "%s", remat_last_error());
    for (int32_t n = 0; n < s->graph->n_nodes; n++) found += !strcmp(s->graph->node[n].op->name, "add_relu");
    ck_assert_int_eq(found, folded);
    for (int i = 0; i < ROWS * WIDE; i++) data[i] = (float)(i * 7 % 11) / 5 - 1;
    for (int i = 0; i < 2; i++) ck_assert_int_eq(remat_write(s, REMAT_INPUT, i, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(remat_gradients(s, &r), REMAT_OK);
    for (int i = 0; i < LAYERS; i++)
        ck_assert_int_eq(remat_read(s, REMAT_GRADIENT, i, gradient[i], sizeof gradient[i]), REMAT_OK);
    remat_session_free(s);
    return r.loss;
}

/* An output must exist as such, so that sum is not folded. */
START_TEST(folded_sums_have_the_same_bits_in_every_plan) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    float first[LAYERS][WIDE * WIDE], other[LAYERS][WIDE * WIDE];
    remat_value sum, loss = residual_network(&sum);
    remat_config config = REMAT_CONFIG_INIT;
    config.verify_recompute = true;
    double expected = residual_run(loss, &config, LAYERS, first);
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
        for (int outputs = 0; outputs < 2; outputs++) {
            config.strategy = strategies[i], config.segments = i == 1 ? 2 : 0;
            config.n_outputs = outputs, config.outputs = &sum;
            ck_assert(residual_run(loss, &config, LAYERS - outputs, other) == expected);
            ck_assert_msg(!memcmp(first, other, sizeof first), "%s, %d: other bits", strategies[i], outputs);
        }
}
END_TEST

/* The sum is read twice, or of two shapes. */
START_TEST(other_sums_are_not_folded) {
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDE});
    remat_value sum = remat_add(graph, x, remat_linear(graph, x, matrix("w", WIDE, WIDE), REMAT_NONE));
    remat_value row = remat_add(graph, remat_relu(graph, sum), matrix("row", 1, WIDE));
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    ck_assert_int_eq(remat_session_create(graph, remat_mse(graph, remat_relu(graph, row), sum), &config, &s), REMAT_OK);
    for (int32_t n = 0; n < s->graph->n_nodes; n++) ck_assert_str_ne(s->graph->node[n].op->name, "add_relu");
    remat_session_free(s);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("fold");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, folding_changes_rounding_only);
    tcase_add_test(tests, embedding_that_is_an_output_is_not_folded);
    tcase_add_test(tests, embedding_of_inputs_is_not_folded);
    tcase_add_test(tests, folding_is_for_small_vocabularies);
    tcase_add_test(tests, folded_sums_have_the_same_bits_in_every_plan);
    tcase_add_test(tests, other_sums_are_not_folded);
    return run_cases("fold", tests);
}

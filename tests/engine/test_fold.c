/* test_fold.c: an embedding is folded into the input weights of the layer that reads it. */
#include "tests/engine/language_model.h"
#include "tests/suite.h"

#include <check.h>
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

int main(void) {
    TCase *tests = tcase_create("fold");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, folding_changes_rounding_only);
    tcase_add_test(tests, embedding_that_is_an_output_is_not_folded);
    tcase_add_test(tests, embedding_of_inputs_is_not_folded);
    tcase_add_test(tests, folding_is_for_small_vocabularies);
    return run_cases("fold", tests);
}

/* test_fold.c: an embedding is folded into the input weights of the layer that reads it, and relu into the sum or the batch
 * norm that it reads. */
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

/* ---- Relu ---------------------------------------------------------------------------------------------------------------- */

enum { ROWS = 6, WIDE = 4, LAYERS = 5 };

static remat_value normalised(remat_value x, int i) {
    char mean[24], variance[24], gain[24], bias[24];
    snprintf(mean, sizeof mean, "mean%d", i), snprintf(variance, sizeof variance, "variance%d", i);
    snprintf(gain, sizeof gain, "gain%d", i), snprintf(bias, sizeof bias, "bias%d", i);
    int64_t dim[] = {WIDE};
    return remat_batch_norm(graph, x, remat_param(graph, gain, 1, dim, remat_init_uniform(1)),
                            remat_param(graph, bias, 1, dim, remat_init_uniform(1)),
                            remat_buffer(graph, mean, 1, dim, remat_init_zero()),
                            remat_buffer(graph, variance, 1, dim, remat_init_constant(1)), 0.2, 1e-5, false);
}

/* x = relu(x + relu(batch norm of linear(x))), LAYERS times; apart: the sum and the batch norm of the middle one. */
static remat_value residual_network(remat_value apart[2]) {
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDE});
    remat_value target = remat_input(graph, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDE});
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        remat_value norm = normalised(remat_linear(graph, x, matrix(name, WIDE, WIDE), REMAT_NONE), i);
        remat_value both = remat_add(graph, x, remat_relu(graph, norm));
        if (i == LAYERS / 2) apart[0] = both, apart[1] = norm;
        x = remat_relu(graph, both);
    }
    return remat_mse(graph, x, target);
}

typedef struct {
    float gradient[LAYERS][WIDE * WIDE], vector[4][WIDE]; /* of weights; of a gain and a bias, and running statistics */
} residual_result;

/* Returns the loss; as many relus as given are folded. */
static double residual_run(remat_value loss, const remat_config *config, int folded, residual_result *out) {
    remat_session *s;
    float data[ROWS * WIDE];
    remat_step_result r;
    int left = 2 * LAYERS;
    ck_assert_msg(remat_session_create(graph, loss, config, &s) == REMAT_OK, "%s", remat_last_error());
    for (int32_t n = 0; n < s->graph->n_nodes; n++) left -= !strcmp(s->graph->node[n].op->name, "relu");
    ck_assert_int_eq(left, folded);
    for (int i = 0; i < ROWS * WIDE; i++) data[i] = (float)(i * 7 % 11) / 5 - 1;
    for (int i = 0; i < 2; i++) ck_assert_int_eq(remat_write(s, REMAT_INPUT, i, data, sizeof data), REMAT_OK);
    ck_assert_int_eq(remat_gradients(s, &r), REMAT_OK);
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        ck_assert_int_eq(remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, name), out->gradient[i],
                                    sizeof out->gradient[i]),
                         REMAT_OK);
    }
    static const char *const vectors[] = {"gain2", "bias2", "mean2", "variance2"};
    for (int i = 0; i < 4; i++) {
        const remat_kind kind = i < 2 ? REMAT_GRADIENT : REMAT_BUFFER;
        ck_assert_int_eq(remat_read(s, kind, remat_find(s, kind, vectors[i]), out->vector[i], sizeof out->vector[i]),
                         REMAT_OK);
    }
    remat_session_free(s);
    return r.loss;
}

/* An output must exist as such, so the relu that reads it is not folded. */
START_TEST(folded_relus_have_the_same_bits_in_every_plan) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    static residual_result first, other;
    remat_value apart[2], loss = residual_network(apart);
    remat_config config = REMAT_CONFIG_INIT;
    config.verify_recompute = true;
    double expected = residual_run(loss, &config, 2 * LAYERS, &first);
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
        for (int outputs = 0; outputs <= 2; outputs++) {
            config.strategy = strategies[i], config.segments = i == 1 ? 2 : 0;
            config.n_outputs = outputs, config.outputs = apart;
            ck_assert(residual_run(loss, &config, 2 * LAYERS - outputs, &other) == expected);
            ck_assert_msg(!memcmp(&first, &other, sizeof first), "%s, %d: other bits", strategies[i], outputs);
        }
}
END_TEST

/* The sum is read twice, or of two shapes, or relu reads it in another shape. */
START_TEST(other_relus_are_not_folded) {
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDE});
    remat_value sum = remat_add(graph, x, remat_linear(graph, x, matrix("w", WIDE, WIDE), REMAT_NONE));
    remat_value row = remat_add(graph, remat_relu(graph, sum), matrix("row", 1, WIDE));
    remat_value flat = remat_reshape(graph, normalised(remat_relu(graph, row), 0), 1, (int64_t[]){ROWS * WIDE});
    remat_value y = remat_reshape(graph, remat_relu(graph, flat), 2, (int64_t[]){ROWS, WIDE});
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    int relus = 0;
    ck_assert_int_eq(remat_session_create(graph, remat_mse(graph, y, sum), &config, &s), REMAT_OK);
    for (int32_t n = 0; n < s->graph->n_nodes; n++) relus += !strcmp(s->graph->node[n].op->name, "relu");
    ck_assert_int_eq(relus, 3);
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
    tcase_add_test(tests, folded_relus_have_the_same_bits_in_every_plan);
    tcase_add_test(tests, other_relus_are_not_folded);
    return run_cases("fold", tests);
}

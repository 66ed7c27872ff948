/* test_trained_parameters.c: frozen parameters, and groups of parameters with their own learning rate and decay. */
#include "engine/abi.h"
#include "tests/engine/language_model.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

static void feed(remat_session *s) {
    int32_t data[T * B];
    for (int i = 0; i < T * B; i++) data[i] = i * i % V;
    for (int input = 0; input < 2; input++)
        ck_assert_int_eq(remat_write(s, REMAT_INPUT, input, data, sizeof data), REMAT_OK);
}

static void copy_kind(remat_session *from, remat_session *to, remat_kind kind) {
    for (int64_t i = 0; i < remat_count(to, kind); i++) {
        float data[4 * H * H];
        remat_array array;
        ck_assert_int_eq(remat_array_info(to, kind, i, &array), REMAT_OK);
        ck_assert_int_eq(remat_read(from, kind, remat_find(from, kind, array.name), data, array.bytes), REMAT_OK);
        ck_assert_int_eq(remat_write(to, kind, i, data, array.bytes), REMAT_OK);
    }
}

static void expect_same_kind(remat_session *a, remat_session *b, remat_kind kind) {
    for (int64_t i = 0; i < remat_count(a, kind); i++) {
        float x[4 * H * H], y[4 * H * H];
        remat_array array;
        ck_assert_int_eq(remat_array_info(a, kind, i, &array), REMAT_OK);
        ck_assert_int_eq(remat_read(a, kind, i, x, array.bytes), REMAT_OK);
        ck_assert_int_eq(remat_read(b, kind, remat_find(b, kind, array.name), y, array.bytes), REMAT_OK);
        ck_assert_msg(!memcmp(x, y, array.bytes), "%s", array.name);
    }
}

/* What is trained changes from update to update; each has the bits of a session that was made for it. */
START_TEST(trained_parameters_can_change) {
    static const char *const names[] = {"head,w_i", "embedding", NULL, "w_"}, *const strategies[] = {"none", "sqrt",
                                                                                                     "lean", "optimal"};
    remat_value loss = language_model();
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s, *like;
    remat_step_result a, b;
    config.optimizer = "adamw";
    config.weight_decay = 0.1;
    config.clip_grad_norm = 0.01;
    config.tile = 4;
    config.strategy = strategies[_i];
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    feed(s);
    for (int k = 0; k < 4; k++) {
        config.train_only = names[k];
        ck_assert_int_eq(remat_session_create(graph, loss, &config, &like), REMAT_OK);
        feed(like);
        copy_kind(s, like, REMAT_PARAM);
        copy_kind(s, like, REMAT_OPTIMIZER);
        remat_set_step_count(like, remat_step_count(s));
        ck_assert_int_eq(remat_gradients(s, NULL), REMAT_OK);
        ck_assert_int_eq(remat_train_only(s, names[k]), REMAT_OK);
        ck_assert_int_eq(remat_update(s, 0.1, NULL), REMAT_INVALID); /* their norm is that of other parameters */
        ck_assert_int_eq(remat_step(s, 0.1, &a), REMAT_OK);
        ck_assert_int_eq(remat_step(like, 0.1, &b), REMAT_OK);
        ck_assert(a.loss == b.loss && a.grad_norm == b.grad_norm);
        expect_same_kind(like, s, REMAT_PARAM);
        expect_same_kind(like, s, REMAT_OPTIMIZER);
        remat_session_free(like);
    }
    expect_invalid(remat_train_only(s, "nobody"), "nobody");
    remat_session_free(s);
    config.train_only = "head";
    ck_assert_int_eq(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    expect_invalid(remat_train_only(s, "w_"), "w_|train_only");
    remat_session_free(s);
}
END_TEST

/* A step changes only the parameters named by `train_only`, and the norm covers only them. */
START_TEST(only_named_parameters_are_trained) {
    remat_value loss = language_model();
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adamw";
    config.weight_decay = 0.1;
    config.train_only = "head,w_i";
    remat_session *s;
    ck_assert_msg(remat_session_create(graph, loss, &config, &s) == REMAT_OK, "%s", remat_last_error());
    float before[4][4 * H * H], after[4 * H * H], gradient[4 * H * H];
    remat_array array;
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(remat_array_info(s, REMAT_PARAM, i, &array), REMAT_OK);
        ck_assert_int_eq(remat_read(s, REMAT_PARAM, i, before[i], array.bytes), REMAT_OK);
    }
    feed(s);
    remat_step_result r;
    ck_assert_int_eq(remat_step(s, 0.1, &r), REMAT_OK);
    double squares = 0;
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(remat_array_info(s, REMAT_PARAM, i, &array), REMAT_OK);
        ck_assert_int_eq(remat_read(s, REMAT_PARAM, i, after, array.bytes), REMAT_OK);
        bool trained = !strcmp(array.name, "head") || !strcmp(array.name, "w_ih");
        int64_t of = remat_find(s, REMAT_GRADIENT, array.name);
        ck_assert_msg(trained == (memcmp(before[i], after, array.bytes) != 0), "%s", array.name);
        ck_assert_msg(trained == (of >= 0), "%s", array.name);
        if (trained) ck_assert_int_eq(remat_read(s, REMAT_GRADIENT, of, gradient, array.bytes), REMAT_OK);
        for (uint64_t k = 0; trained && k < array.bytes / 4; k++) squares += (double)gradient[k] * gradient[k];
    }
    ck_assert_double_eq_tol(r.grad_norm * r.grad_norm, squares, 1e-9 * squares);
    remat_session_free(s);
    config.train_only = "head,nothing", expect_refused(loss, config, "nothing|parameter");
    config.train_only = "", expect_refused(loss, config, "empty");
    remat_param(graph, "alone", 1, (int64_t[]){3}, remat_init_zero());
    config.train_only = "alone", expect_refused(loss, config, "differentiated|depends");
}
END_TEST

/* The first backward call of a layer in any stage, with option "all". False: there is none. */
static bool backward_of(const remat_session *s, const char *weight, rm_instruction *out) {
    for (int32_t c = 0; c < s->chain.n_kinds; c++) {
        const rm_program *program = &s->chain.kind[c].option[0].backward;
        for (int32_t i = 0; i < program->n; i++) {
            *out = rm_program_at(program, i);
            int32_t w = out->what == RM_DO_BACKWARD ? s->graph->node[out->node].x[1] : 0;
            if (w && s->graph->value[w].name && !strcmp(s->graph->value[w].name, weight)) return true;
        }
    }
    return false;
}

/* Three linear layers, of which the second is trained. Before it nothing is differentiated or saved. After it only the
 * input's gradient is computed, which does not need the input. */
START_TEST(frozen_layers_cost_nothing) {
    static const char *const name[] = {"a", "b", "c"};
    enum { WIDTH = 16, ROWS = 64 };
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDTH});
    for (int i = 0; i < 3; i++) {
        remat_value w = remat_param(graph, name[i], 2, (int64_t[]){WIDTH, WIDTH}, remat_init_uniform(0.5));
        x = remat_linear(graph, remat_gelu(graph, x), w, REMAT_NONE);
    }
    remat_value target = remat_input(graph, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDTH});
    remat_value loss = remat_mse(graph, x, target);
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adam";
    config.train_only = "b";
    config.tile = 1;
    remat_session *s;
    ck_assert_msg(remat_session_create(graph, loss, &config, &s) == REMAT_OK, "%s", remat_last_error());
    rm_instruction b, c, none;
    ck_assert(backward_of(s, "b", &b) && backward_of(s, "c", &c) && !backward_of(s, "a", &none));
    ck_assert(!b.dx[0].space && b.dx[1].space && b.x[0].space);
    ck_assert(c.dx[0].space && !c.dx[1].space && !c.x[0].space);
    const rm_problem *problem = &s->chain.problem;
    for (int64_t k = 0; k < 2; k++) { /* gelu, linear a */
        ck_assert_uint_eq(problem->stage[k].option[0].saved_bytes, 0);
        ck_assert_int_eq(problem->keeps.start[k], problem->keeps.start[k + 1]);
        ck_assert_int_eq(problem->adds.start[k], problem->adds.start[k + 1]);
    }
    remat_plan_summary plan = rm_plan_summary_of(s);
    ck_assert_uint_eq(plan.params_bytes, 3 * 4 * WIDTH * WIDTH);
    ck_assert_uint_eq(plan.gradients_bytes, 4 * WIDTH * WIDTH);
    ck_assert_uint_eq(plan.optimizer_bytes, 2 * 4 * WIDTH * WIDTH);
    ck_assert_int_eq(remat_count(s, REMAT_OPTIMIZER), 2);
    remat_session_free(s);
}
END_TEST

/* Plain gradient descent, w - factor lr (g + decay w), by the first group with a word that is part of the name. */
START_TEST(groups_have_their_own_rates_and_decays) {
    static const struct {
        const char *name;
        double factor, decay;
    } own[] = {{"embedding.weight", 1, 0.1}, {"w_ih", 0.5, 0.3}, {"w_hh", 0.5, 0.3}, {"head", 2, 0.1}};
    static const char *const wrong[][2] = {{"", "set"},
                                           {"head", "head|set"},
                                           {"head:", "head|set"},
                                           {":lr=1", "parameter|\"\""},
                                           {"head,emb:lr=1;ead:lr=2", "ead|groups|first"},
                                           {"head,tail:lr=1", "parameter|tail"},
                                           {"head:rate=1", "rate|setting"},
                                           {"head:lr", "lr="},
                                           {"head:lr=-1", "lr=-1|0"},
                                           {"head:lr=1x", "lr=1x|number"},
                                           {"head:lr=nan", "lr=nan|number"},
                                           {"head:weight_decay=0.1", "head|weight_decay=0.1"},
                                           {"head:weight_decay=0.1;w_:lr=2", "head|weight_decay=0.1"}};
    static const char *const kept[] = {"ead:weight_decay=0.1;ead,w_h:weight_decay=0", "head:lr=2,weight_decay=0.1",
                                       "head:lr=1"};
    remat_value loss = language_model();
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "sgd";
    config.weight_decay = 0.1;
    config.groups = "w_ , w_hh : lr=0.5,weight-decay=0.3; ead,w_h:lr=2";
    remat_session *s;
    ck_assert_msg(!remat_session_create(graph, loss, &config, &s), "%s", remat_last_error());
    float before[4][4 * H * H], after[4 * H * H], gradient[4 * H * H];
    remat_array array;
    for (int i = 0; i < 4; i++) {
        ck_assert(!remat_array_info(s, REMAT_PARAM, i, &array));
        ck_assert(!remat_read(s, REMAT_PARAM, i, before[i], array.bytes));
    }
    feed(s);
    ck_assert(!remat_step(s, 0.125, NULL));
    for (int i = 0; i < 4; i++) {
        ck_assert(!remat_array_info(s, REMAT_PARAM, i, &array));
        int n = 0;
        while (strcmp(array.name, own[n].name)) n++;
        ck_assert(!remat_read(s, REMAT_PARAM, i, after, array.bytes));
        ck_assert(!remat_read(s, REMAT_GRADIENT, i, gradient, array.bytes));
        for (uint64_t k = 0; k < array.bytes / 4; k++) {
            double w = before[i][k], want = w - own[n].factor * 0.125 * (gradient[k] + own[n].decay * w);
            ck_assert_double_eq_tol(after[k], want, 1e-7);
        }
    }
    remat_session_free(s);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        config.groups = wrong[i][0], expect_refused(loss, config, wrong[i][1]);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        config.groups = kept[i];
        ck_assert_msg(!remat_session_create(graph, loss, &config, &s), "%s", remat_last_error());
        remat_session_free(s);
    }
    config.train_only = "w_";
    config.groups = "head,emb:lr=3", expect_refused(loss, config, "head,emb|trained");
    config.groups = "head,w_ih:lr=3";
    ck_assert_msg(!remat_session_create(graph, loss, &config, &s), "%s", remat_last_error());
    remat_session_free(s);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("trained_parameters");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, only_named_parameters_are_trained);
    tcase_add_loop_test(tests, trained_parameters_can_change, 0, 4);
    tcase_add_test(tests, frozen_layers_cost_nothing);
    tcase_add_test(tests, groups_have_their_own_rates_and_decays);
    return run_cases("trained_parameters", tests);
}

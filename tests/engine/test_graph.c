/* test_graph.c: building a graph: shapes, the first error, embedding folding, and configs that a session refuses. */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/session/session.h"
#include "memory/processors.h"
#include "tests/says.h"

static remat_graph *graph;
static void set_up(void) { ck_assert_int_eq(remat_graph_create(&graph), REMAT_OK); }
static void tear_down(void) { remat_graph_free(graph); }

enum { T = 40, B = 2, V = 17, E = 3, H = 5 };

static remat_value sequence(const char *name, remat_dtype dtype, int64_t t, int64_t b, int64_t c) {
    return remat_input(graph, name, dtype, REMAT_SEQUENCE, c ? 3 : 2, (int64_t[]){t, b, c});
}
static remat_value vector(const char *name, int64_t count) {
    return remat_param(graph, name, 1, &count, remat_init_zero());
}
static remat_value matrix(const char *name, int64_t rows, int64_t columns) {
    return remat_param(graph, name, 2, (int64_t[]){rows, columns}, remat_init_uniform(0.3));
}

static void expect_mistake(const char *words) {
    ck_assert_int_eq(remat_graph_check(graph), REMAT_INVALID);
    ck_says_all(remat_last_error(), words);
}

START_TEST(first_mistake_is_kept) {
    remat_value x = sequence("x", REMAT_F32, T, B, 3);
    remat_value wrong = remat_linear(graph, x, matrix("w", 4, 99), REMAT_NONE);
    ck_assert_int_eq(wrong.id, 0);
    remat_value also = remat_linear(graph, remat_tanh(graph, wrong), matrix("w", 4, 4), REMAT_NONE);
    ck_assert_int_eq(also.id, 0);
    expect_mistake("linear");
}
END_TEST

START_TEST(building_continues_after_a_forgotten_mistake) {
    remat_value x = sequence("x", REMAT_F32, T, B, 3);
    remat_linear(graph, x, matrix("w", 4, 99), REMAT_NONE);
    expect_mistake("linear");
    remat_graph_forget_mistake(graph);
    ck_assert_int_eq(remat_graph_check(graph), REMAT_OK);
    ck_assert_int_gt(remat_linear(graph, x, matrix("w2", 4, 3), REMAT_NONE).id, 0);
    ck_assert_int_eq(remat_graph_check(graph), REMAT_OK);
}
END_TEST

START_TEST(values_are_described) {
    remat_value x = sequence("x", REMAT_F32, T, B, 3), w = matrix("w", 4, 3);
    remat_value y = remat_linear(graph, x, w, REMAT_NONE), loss = remat_mse(graph, x, x);
    remat_value_info info;
    ck_assert_int_eq(remat_value_describe(graph, x, &info), REMAT_OK);
    ck_assert_str_eq(info.name, "x");
    ck_assert(info.axis == REMAT_SEQUENCE && info.dtype == REMAT_F32 && info.rank == 3 && info.dim[0] == T);
    ck_assert_int_eq(remat_value_describe(graph, w, &info), REMAT_OK);
    ck_assert(info.axis == REMAT_STATIC && info.rank == 2 && info.dim[0] == 4 && info.dim[1] == 3);
    ck_assert_int_eq(remat_value_describe(graph, y, &info), REMAT_OK);
    ck_assert(!info.name && info.axis == REMAT_SEQUENCE && info.rank == 3 && info.dim[2] == 4);
    ck_assert_int_eq(remat_value_describe(graph, loss, &info), REMAT_OK);
    ck_assert(info.rank == 0 && info.axis == REMAT_STATIC && !info.reserved[0] && !info.reserved[7]);
    ck_assert_int_eq(remat_value_describe(graph, REMAT_NONE, &info), REMAT_INVALID);
    ck_assert_int_eq(remat_value_describe(graph, (remat_value){loss.id + 1}, &info), REMAT_INVALID);
}
END_TEST

START_TEST(duplicate_names_are_refused) {
    sequence("x", REMAT_F32, T, B, 3);
    matrix("x", 2, 2);
    expect_mistake("twice");
}
END_TEST

START_TEST(sequences_of_different_length_are_refused) {
    remat_value x = sequence("x", REMAT_F32, T, B, 3), y = sequence("y", REMAT_F32, T + 1, B, 3);
    ck_assert_int_eq(remat_graph_check(graph), REMAT_OK);
    remat_add(graph, x, y);
    expect_mistake("add|input 1|T=41|input 0|T=40");
}
END_TEST

START_TEST(sizes_below_1_are_refused) {
    sequence("x", REMAT_F32, 0, B, 3);
    expect_mistake("1");
}
END_TEST

START_TEST(sizes_that_overflow_are_refused) {
    sequence("x", REMAT_F32, INT64_MAX / 2, 1 << 20, 3);
    expect_mistake("too large");
}
END_TEST

START_TEST(recurrent_layers_need_time) {
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, 3});
    remat_rnn_tanh(graph, x, matrix("w", 4, 3), matrix("u", 4, 4), REMAT_NONE, REMAT_NONE);
    expect_mistake("time");
}
END_TEST

START_TEST(wrong_shapes_and_bounds_are_refused) {
    remat_value x = sequence("x", REMAT_F32, T, B, 3);
    remat_value y = remat_add(graph, matrix("row", B, 1), remat_mul(graph, vector("v", 3), x)); /* static first */
    remat_add(graph, matrix("outer", 4, 1), vector("inner", 5));                                /* (4,5) */
    ck_assert_msg(!remat_graph_check(graph), "%s", remat_last_error());
    switch (_i) {
    case 0:
        remat_add(graph, y, vector("w", 4));
        expect_mistake("add|f32 (40,2,3)|f32 (4)|3 and 4");
        break;
    case 1:
        remat_sub(graph, y, sequence("flat", REMAT_F32, T, B, 0));
        expect_mistake("sub|(40,2,3)|(40,2)|reshape");
        break;
    case 2:
        remat_mul(graph, y, remat_param(graph, "w", 3, (int64_t[]){T, B, 3}, remat_init_zero()));
        expect_mistake("mul|(40,2,3)|time|remat_as_sequence");
        break;
    case 3:
        remat_add(graph, y, REMAT_NONE);
        expect_mistake("add|b is missing");
        break;
    case 4:
        remat_clamp(graph, y, 1, -1);
        expect_mistake("clamp|1 and -1");
        break;
    case 5:
        remat_concat_axis(graph, (remat_value[]){y, y}, 2, 1);
        expect_mistake("concat|axis 1|batch");
        break;
    case 6:
        remat_concat_axis(graph, (remat_value[]){matrix("a", 4, 2), matrix("b", 5, 3)}, 2, 0);
        expect_mistake("concat|f32 (4,2)|f32 (5,3)|axis 0");
        break;
    case 7:
        remat_concat_axis(graph, (remat_value[]){matrix("a", 4, 2), matrix("b", 4, 3)}, 2, 2);
        expect_mistake("concat|no axis 2");
        break;
    case 8:
        remat_attention_dropout(graph, x, x, x, 1, true, REMAT_NONE, 1);
        expect_mistake("attention|dropout|1");
        break;
    default:
        remat_conv_transpose2d(graph, remat_param(graph, "p", 4, (int64_t[]){1, 2, 3, 3}, remat_init_zero()),
                               remat_param(graph, "f", 4, (int64_t[]){2, 1, 2, 2}, remat_init_zero()), REMAT_NONE, NULL,
                               NULL, (int64_t[]){0, 1}, 1, NULL);
        expect_mistake("conv_transpose|width|output_padding is 1");
    }
}
END_TEST

START_TEST(concat_and_slice_check_their_inputs) {
    remat_value x = sequence("x", REMAT_F32, T, B, 3), y = sequence("y", REMAT_F32, T, B, 4);
    remat_value z = remat_concat(graph, (remat_value[]){x, y, x, y}, 4); /* (T,B,14) */
    remat_value last = remat_slice(graph, z, 13, 1);                     /* (T,B,1)  */
    remat_add(graph, last, sequence("one", REMAT_F32, T, B, 1));
    ck_assert_msg(!remat_graph_check(graph), "%s", remat_last_error());
    switch (_i) {
    case 0:
        remat_slice(graph, z, 12, 3);
        expect_mistake("slice|f32 (40,2,14)|3 columns|12");
        break;
    case 1:
        remat_slice(graph, z, -1, 3);
        expect_mistake("first");
        break;
    case 2:
        remat_slice(graph, z, 0, 0);
        expect_mistake("count");
        break;
    case 3:
        remat_slice(graph, z, 13, INT64_MAX);
        expect_mistake("first|count|14");
        break;
    case 4:
        remat_concat(graph, (remat_value[]){x, y, x, y, x}, 5);
        expect_mistake("concat|5 values|2 to 4");
        break;
    case 5:
        remat_concat(graph, &x, 1);
        expect_mistake("concat|1 value");
        break;
    case 6:
        remat_concat(graph, (remat_value[]){x, y, REMAT_NONE}, 3);
        expect_mistake("concat|input 2");
        break;
    case 7:
        remat_concat(graph, (remat_value[]){x, remat_param(graph, "w", 1, (int64_t[]){3}, remat_init_zero())}, 2);
        expect_mistake("input 1|time axis");
        break;
    case 8:
        remat_concat(graph, (remat_value[]){matrix("a", 4, 2), matrix("b", 5, 2)}, 2);
        expect_mistake("x[0]|f32 (4,2)|x[1]|f32 (5,2)");
        break;
    default:
        remat_concat(graph, (remat_value[]){sequence("flat", REMAT_F32, T, B, 0), sequence("too", REMAT_F32, T, B, 0)},
                     2);
        expect_mistake("sequence|(40,2)");
    }
}
END_TEST

/* Ranks up to 8 work in graph, session and gradients; rank 9 is refused. */
START_TEST(ranks_above_8_are_refused) {
    const int64_t dim[] = {T, B, 1, 2, 1, 3, 2, 4, 5}, *without_time = dim + 1;
    remat_value x = remat_input(graph, "x", REMAT_F32, REMAT_SEQUENCE, 8, dim), vector[2];
    for (int i = 0; i < 2; i++)
        vector[i] = remat_param(graph, i ? "bias" : "gain", 1, (int64_t[]){4}, remat_init_constant(0.5));
    remat_value y = remat_layer_norm(graph, x, vector[0], vector[1], 1e-5);
    y = remat_slice(graph, remat_concat(graph, (remat_value[]){x, y}, 2), 3, 4);
    y = remat_mul(graph, remat_mean_over_time(graph, y), remat_last_step(graph, y));
    y = remat_mul(graph, y, remat_param(graph, "all", 7, without_time, remat_init_uniform(1)));
    remat_value loss = remat_mse(graph, y, remat_input(graph, "target", REMAT_F32, REMAT_STATIC, 7, without_time));
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    remat_array info;
    remat_step_result r;
    float all[T * B * 48], gradient[B * 48];
    ck_assert_msg(remat_session_create(graph, loss, &config, &s) == REMAT_OK, "%s", remat_last_error());
    for (int i = 0; i < T * B * 48; i++) all[i] = (float)(i % 7);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 0, all, sizeof all), REMAT_OK);
    ck_assert_int_eq(remat_write(s, REMAT_INPUT, 1, all, sizeof gradient), REMAT_OK);
    ck_assert_int_eq(remat_gradients(s, &r), REMAT_OK);
    ck_assert(isfinite(r.loss) && r.loss > 0);
    ck_assert_int_eq(remat_array_info(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "all"), &info), REMAT_OK);
    ck_assert(info.rank == 7 && !memcmp(info.dim, without_time, 7 * sizeof *dim) && info.dim[7] == 1);
    ck_assert_int_eq(remat_read(s, REMAT_GRADIENT, 2, gradient, sizeof gradient), REMAT_OK);
    ck_assert(gradient[B * 48 - 1] != 0);
    remat_session_free(s);
    remat_input(graph, "more", REMAT_F32, REMAT_SEQUENCE, 9, dim);
    expect_mistake("more|rank 9");
}
END_TEST

/* Values computed from a reversed sequence are reversed, until remat_reverse turns them again. Readers check the
 * direction. */
START_TEST(mixed_directions_of_time_are_refused) {
    remat_value x = sequence("x", REMAT_F32, T, B, 3), w = matrix("w", 3, 3), u = matrix("u", 3, 3);
    remat_value back = remat_rnn_tanh(graph, remat_reverse(graph, x), w, u, REMAT_NONE, REMAT_NONE);
    remat_value both = remat_add(graph, remat_reverse(graph, back), x);
    remat_value ends = remat_add(graph, remat_last_step(graph, back), remat_last_step(graph, both));
    remat_mul(graph, ends, remat_mean_over_time(graph, remat_mul(graph, back, remat_reverse(graph, both))));
    ck_assert_msg(!remat_graph_check(graph), "%s", remat_last_error());
    if (_i == 3) {
        remat_attention(graph, back, x, x, 1, false);
        expect_mistake("attention|time|input 1|input 0");
    } else if (_i == 0) {
        remat_add(graph, x, remat_gelu(graph, back));
        expect_mistake("add|time|input 1|input 0|remat_reverse");
    } else if (_i == 1) {
        remat_mse(graph, remat_linear(graph, back, w, REMAT_NONE), x);
        expect_mistake("mse|time|input 1|input 0");
    } else {
        remat_reverse(graph, ends);
        expect_mistake("reverse|sequence");
    }
}
END_TEST

/* ---- A language model ----------------------------------------------------------------------------------------- */

static remat_value language_model(void) {
    remat_value tokens = sequence("tokens", REMAT_I32, T, B, 0), targets = sequence("targets", REMAT_I32, T, B, 0);
    remat_value e = remat_embedding(graph, tokens, matrix("embedding.weight", V, E));
    remat_value h = remat_lstm(graph, e, matrix("w_ih", 4 * H, E), matrix("w_hh", 4 * H, H), REMAT_NONE, REMAT_NONE);
    return remat_softmax_cross_entropy(graph, remat_linear(graph, h, matrix("head", V, H), REMAT_NONE), targets);
}

static void expect_refused(remat_value loss, remat_config config, const char *words) {
    remat_session *s;
    ck_assert_int_ne(remat_session_create(graph, loss, &config, &s), REMAT_OK);
    ck_says_all(remat_last_error(), words);
}

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

static void feed(remat_session *s) {
    int32_t data[T * B];
    for (int i = 0; i < T * B; i++) data[i] = i * i % V;
    for (int input = 0; input < 2; input++)
        ck_assert_int_eq(remat_write(s, REMAT_INPUT, input, data, sizeof data), REMAT_OK);
}

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

static void expect_invalid(remat_status status, const char *words) {
    ck_assert_int_eq(status, REMAT_INVALID);
    ck_says_all(remat_last_error(), words);
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

/* ---- Invalid values -------------------------------------------------------------------------------------------- */

static const struct {
    remat_init init;
    const char *words; /* NULL: allowed */
} inits[] = {
    {{REMAT_INIT_UNIFORM, NAN}, "parameter p|bound|nan"},
    {{REMAT_INIT_CONSTANT, INFINITY}, "parameter p|constant|inf"},
    {{REMAT_INIT_CONSTANT, 1e39}, "parameter p|constant|1e+39"}, /* no float */
    {{REMAT_INIT_NORMAL, -1}, "parameter p|deviation|-1|finite"},
    {{REMAT_INIT_UNIFORM, -0.1}, "parameter p|bound|-0.1"},
    {{(remat_init_kind)99, 1}, "parameter p|99"},
    {{REMAT_INIT_LOG_UNIFORM, 0}, "parameter p|0"},
    {{REMAT_INIT_CONSTANT, -2}, NULL},
    {{REMAT_INIT_NORMAL, 0}, NULL},
};

START_TEST(invalid_initial_values_are_refused) {
    remat_value p = remat_param(graph, "p", 1, (int64_t[]){3}, inits[_i].init);
    ck_assert_int_eq(p.id != 0, !inits[_i].words);
    if (inits[_i].words) expect_mistake(inits[_i].words);
}
END_TEST

static void read_drawn(const char *const *names, float *a, float *b) {
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    config.seed = 5;
    tear_down();
    set_up();
    remat_value sum = REMAT_NONE;
    for (int i = 0; i < 3; i++) {
        remat_init init = *names[i] == 'b' ? remat_init_normal(1) : remat_init_uniform(1);
        remat_value p = remat_param(graph, names[i], 1, (int64_t[]){4}, init);
        sum = i ? remat_add(graph, sum, p) : p;
    }
    ck_assert_int_eq(remat_session_create(graph, remat_mean(graph, sum, 1), &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, remat_find(s, REMAT_PARAM, "a"), a, 4 * sizeof *a), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, remat_find(s, REMAT_PARAM, "b"), b, 4 * sizeof *b), REMAT_OK);
    remat_session_free(s);
}

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

/* Those of recurrent models: the numbers that they stand for lie in their ranges and differ. */
START_TEST(drawn_decays_lie_in_their_ranges) {
    enum { N = 400 };
    static const struct {
        remat_init init;
        double low, high;
    } kind[] = {{{REMAT_INIT_TIME_STEP, 0.1}, 0.001, 0.1},
                {{REMAT_INIT_LOG_UNIFORM, 16}, 0.01, 16},
                {{REMAT_INIT_RING, 0}, 0.81, 0.998001}};
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    float drawn[N];
    remat_value p = remat_param(graph, "p", 1, (int64_t[]){N}, kind[_i].init);
    ck_assert_int_eq(remat_session_create(graph, remat_mean(graph, p, 1), &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, drawn, sizeof drawn), REMAT_OK);
    double least = INFINITY, most = 0;
    for (int i = 0; i < N; i++) {
        double x = drawn[i], softplus = log1p(exp(x)),
               number = _i == 0   ? softplus
                        : _i == 1 ? exp(x)
                                  : exp(-2 * softplus);
        least = fmin(least, number), most = fmax(most, number);
    }
    ck_assert_msg(least >= kind[_i].low * (1 - 1e-4) && most <= kind[_i].high * (1 + 1e-4), "%g to %g", least, most);
    ck_assert_msg(least < kind[_i].low + 0.1 * (kind[_i].high - kind[_i].low), "at least %g", least);
    ck_assert_msg(most > kind[_i].high - 0.1 * (kind[_i].high - kind[_i].low), "at most %g", most);
    remat_session_free(s);
}
END_TEST

/* Two heads of 3 units in the last of several blocks: 5 - 12 (k/2)^1.6 in the second quarter, as xlstm draws them. */
START_TEST(forget_gates_follow_xlstms_power_law) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    float drawn[24];
    remat_value p = remat_param(graph, "p", 1, (int64_t[]){24}, remat_init_of(REMAT_INIT_FORGET_GATES, 3.5));
    ck_assert_int_eq(remat_session_create(graph, remat_mean(graph, p, 1), &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, drawn, sizeof drawn), REMAT_OK);
    static const double head[] = {5, 1.0414763, -7};
    for (int i = 0; i < 24; i++)
        ck_assert_msg(fabs(drawn[i] - (i / 6 == 1 ? head[i % 3] : 0)) < 1e-5, "element %d is %g", i, drawn[i]);
    remat_session_free(s);
}
END_TEST

/* C does not say in which order a call's arguments create parameters, and compilers differ. */
START_TEST(initial_values_depend_on_seed_and_name_alone) {
    static const float anywhere[4] = {0x1.8cc7fp-3f, 0x1.e9efc4p-1f, 0x1.362aep-1f, -0x1.c41ep-6f};
    float a[4], b[4], other_a[4], other_b[4];
    read_drawn((const char *[]){"a", "b", "also"}, a, b);
    read_drawn((const char *[]){"b", "more", "a"}, other_a, other_b);
    ck_assert_mem_eq(a, other_a, sizeof a);
    ck_assert_mem_eq(b, other_b, sizeof b);
    ck_assert_mem_eq(a, anywhere, sizeof a);
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
    Suite *suite = suite_create("graph");
    TCase *tests = tcase_create("graph");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, first_mistake_is_kept);
    tcase_add_test(tests, building_continues_after_a_forgotten_mistake);
    tcase_add_test(tests, values_are_described);
    tcase_add_test(tests, duplicate_names_are_refused);
    tcase_add_test(tests, sequences_of_different_length_are_refused);
    tcase_add_test(tests, sizes_below_1_are_refused);
    tcase_add_test(tests, sizes_that_overflow_are_refused);
    tcase_add_test(tests, recurrent_layers_need_time);
    tcase_add_test(tests, ranks_above_8_are_refused);
    tcase_add_loop_test(tests, mixed_directions_of_time_are_refused, 0, 4);
    tcase_add_loop_test(tests, wrong_shapes_and_bounds_are_refused, 0, 10);
    tcase_add_loop_test(tests, concat_and_slice_check_their_inputs, 0, 10);
    tcase_add_test(tests, invalid_session_configs_are_refused);
    tcase_add_test(tests, only_named_parameters_are_trained);
    tcase_add_loop_test(tests, trained_parameters_can_change, 0, 4);
    tcase_add_test(tests, frozen_layers_cost_nothing);
    tcase_add_test(tests, groups_have_their_own_rates_and_decays);
    tcase_add_test(tests, folding_changes_rounding_only);
    tcase_add_test(tests, embedding_that_is_an_output_is_not_folded);
    tcase_add_test(tests, embedding_of_inputs_is_not_folded);
    tcase_add_test(tests, folding_is_for_small_vocabularies);
    tcase_add_test(tests, null_device_plans_a_million_timesteps);
    tcase_add_test(tests, largest_object_is_reported_at_the_peak);
    tcase_add_loop_test(tests, invalid_initial_values_are_refused, 0, sizeof inits / sizeof *inits);
    tcase_add_test(tests, nan_in_an_input_is_named_before_the_update);
    tcase_add_test(tests, initial_values_depend_on_seed_and_name_alone);
    tcase_add_loop_test(tests, drawn_decays_lie_in_their_ranges, 0, 3);
    tcase_add_test(tests, forget_gates_follow_xlstms_power_law);
    tcase_add_test(tests, any_layer_name_gives_valid_json);
    tcase_add_test(tests, unwritten_inputs_are_refused);
    tcase_add_test(tests, parameters_changed_through_a_bucket_are_used);
    tcase_add_loop_test(tests, outputs_may_depend_on_parameters_alone, 0, 3);
    tcase_add_loop_test(tests, weights_may_be_inputs_or_computed, INPUTS, KINDS);
    tcase_add_test(tests, outputs_are_readable_after_a_pass);
    tcase_add_test(tests, quota_limits_threads_by_default);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

/* test_graph.c: building graphs: shapes, and mistakes. */
#include "tests/engine/language_model.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

static remat_value vector(const char *name, int64_t count) {
    return remat_param(graph, name, 1, &count, remat_init_zero());
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
    case 9: {
        remat_value flat = sequence("flat", REMAT_F32, T, B, 0);
        remat_attention(graph, flat, flat, flat, 1, true);
        expect_mistake("attention|q is f32 (40,2)|rank 3");
        ck_assert_ptr_null(strstr(remat_last_error(), " to "));
        break;
    }
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

int main(void) {
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
    tcase_add_loop_test(tests, wrong_shapes_and_bounds_are_refused, 0, 11);
    tcase_add_loop_test(tests, concat_and_slice_check_their_inputs, 0, 10);
    return run_cases("graph", tests);
}

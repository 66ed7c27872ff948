/* test_initial_values.c: initial values of parameters. */
#include "tests/engine/language_model.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

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
    {{REMAT_INIT_RWKV7_MIX, 0}, "parameter p|power|0"},
    {{REMAT_INIT_ORTHOGONAL, 1}, "parameter p|matrix|rank 1"},
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

START_TEST(even_initial_values_are_a_linspace) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    float drawn[4];
    remat_value p = remat_param(graph, "p", 1, (int64_t[]){4}, remat_init_of(REMAT_INIT_EVENLY, 6));
    ck_assert_int_eq(remat_session_create(graph, remat_mean(graph, p, 1), &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, drawn, sizeof drawn), REMAT_OK);
    for (int i = 0; i < 4; i++) ck_assert_msg(fabs(drawn[i] - (3 + i)) < 1e-6, "element %d is %g", i, drawn[i]);
    remat_session_free(s);
}
END_TEST

START_TEST(identities_are_drawn_for_every_matrix) {
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    float drawn[12];
    remat_value p = remat_param(graph, "p", 3, (int64_t[]){2, 2, 3}, remat_init_of(REMAT_INIT_IDENTITY, 0));
    ck_assert_int_eq(remat_session_create(graph, remat_mean(graph, p, 3), &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, drawn, sizeof drawn), REMAT_OK);
    for (int i = 0; i < 12; i++) ck_assert_msg(drawn[i] == (i % 6 == 0 || i % 6 == 4), "element %d is %g", i, drawn[i]);
    remat_session_free(s);
}
END_TEST

/* Two heads of 4 channels, in a block at a depth of 0.3: RWKV-LM's formulas, in double. */
START_TEST(rwkv7_initial_values_follow_rwkv_lm) {
    enum { C = 8, N = 4 };
    static const struct {
        remat_init init;
        double values[C];
    } kind[] = {
        {{REMAT_INIT_RWKV7_MIX, 0.27},
         {1, 0.4296181421, 0.3122290909, 0.2326589319, 0.1706804542, 0.1191791127, 0.0747341335, 0.0354112903}},
        {{REMAT_INIT_RWKV7_DECAY, 4.15},
         {-8, -5.5569007185, -4.5061580488, -1.5752076618, -5.6785823651, -2.3878177324, -0.6031696534, 3}},
        {{REMAT_INIT_RWKV7_RATE, 4},
         {-0.69, -0.3661904762, -0.2423809524, 0.0814285714, -0.4614285714, -0.1376190476, -0.0138095238, 0.31}},
        {{REMAT_INIT_RWKV7_VALUE, 0},
         {0.93, 0.8728571429, 0.8157142857, 0.7585714286, 0.7014285714, 0.6442857143, 0.5871428571, 0.53}},
        {{REMAT_INIT_RWKV7_KEY, 0},
         {0.76, 0.7457142857, 0.7314285714, 0.7171428571, 0.7028571429, 0.6885714286, 0.6742857143, 0.66}}};
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    float drawn[C];
    remat_value p = remat_param(graph, "p", 3, (int64_t[]){1, 1, C}, kind[_i].init);
    ck_assert_int_eq(remat_session_create(graph, remat_mean(graph, p, 3), &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, drawn, sizeof drawn), REMAT_OK);
    for (int i = 0; i < C; i++)
        ck_assert_msg(fabs(drawn[i] - kind[_i].values[i]) < 1e-6, "channel %d is %.8f", i, (double)drawn[i]);
    remat_session_free(s);
}
END_TEST

/* A wide matrix and a high one. The products of floats of about 1/3 are exact to about 1e-7. */
START_TEST(orthogonal_initial_values_are_orthogonal) {
    enum { FEW = 5, MANY = 9 };
    const int64_t rows = _i ? MANY : FEW, columns = _i ? FEW : MANY;
    remat_config config = REMAT_CONFIG_INIT;
    remat_session *s;
    float x[FEW * MANY];
    remat_value p = remat_param(graph, "p", 2, (int64_t[]){rows, columns}, remat_init_of(REMAT_INIT_ORTHOGONAL, 0.1));
    ck_assert_int_eq(remat_session_create(graph, remat_mean(graph, p, 2), &config, &s), REMAT_OK);
    ck_assert_int_eq(remat_read(s, REMAT_PARAM, 0, x, sizeof x), REMAT_OK);
    for (int64_t a = 0; a < FEW; a++)
        for (int64_t b = 0; b <= a; b++) {
            double product = 0;
            for (int64_t i = 0; i < MANY; i++)
                product += _i ? (double)x[i * FEW + a] * x[i * FEW + b] : (double)x[a * MANY + i] * x[b * MANY + i];
            ck_assert_msg(fabs(product - (a == b) * 0.01) < 1e-8, "vectors %d and %d: %g", (int)a, (int)b, product);
        }
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

int main(void) {
    TCase *tests = tcase_create("initial_values");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests, invalid_initial_values_are_refused, 0, sizeof inits / sizeof *inits);
    tcase_add_test(tests, initial_values_depend_on_seed_and_name_alone);
    tcase_add_loop_test(tests, drawn_decays_lie_in_their_ranges, 0, 3);
    tcase_add_test(tests, forget_gates_follow_xlstms_power_law);
    tcase_add_test(tests, even_initial_values_are_a_linspace);
    tcase_add_test(tests, identities_are_drawn_for_every_matrix);
    tcase_add_loop_test(tests, rwkv7_initial_values_follow_rwkv_lm, 0, 5);
    tcase_add_loop_test(tests, orthogonal_initial_values_are_orthogonal, 0, 2);
    return run_cases("initial_values", tests);
}

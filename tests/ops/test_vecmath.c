/* test_vecmath.c: exp, sigmoid, tanh and softplus of ops/math/vecmath.h: errors relative to the C library in double, for a few
 * million floats of every magnitude, and results at the ends of the range. bench/vecmath.c tests all 2^32. The bounds
 * are those of docs/notes/cells.md. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/math/vecmath.h"
#include "tests/suite.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static rm_vec vector_exp(rm_vec x) { return rm_vec_exp(x); }
static rm_vec vector_sigmoid(rm_vec x) { return rm_vec_sigmoid(x); }
static rm_vec vector_tanh(rm_vec x) { return rm_vec_tanh(x); }
static rm_vec vector_softplus(rm_vec x) { return rm_vec_softplus(x); }

static const struct {
    const char *name;
    rm_vec (*vector)(rm_vec);
    double (*exact)(double);
    double bound; /* ulp */
} functions[] = {{"exp", vector_exp, exp, 1.1},
                 {"sigmoid", vector_sigmoid, sigmoid, 2.4},
                 {"tanh", vector_tanh, tanh, RM_LANES > 4 ? 2.0 : 2.4 /* without fused multiply-adds */},
                 {"softplus", vector_softplus, softplus, 4}};
enum { EXP, SIGMOID, TANH, SOFTPLUS, FUNCTIONS };

/* The other lanes hold another value, to detect leaks between lanes. */
static float apply(int function, float x, int lane) {
    rm_vec v = rm_splat(0.25f);
    v[lane] = x;
    return functions[function].vector(v)[lane];
}

/* The error in ulp of the exact result; below 2^-126 results may be 0. */
static double ulps(float got, double exact) {
    int exponent;
    if (isinf((float)exact)) return (double)got == (float)exact ? 0 : INFINITY;
    if (fabs(exact) < 0x1p-126 && fabs(got) <= 0x1p-126) return 0;
    frexp(exact, &exponent);
    return fabs(got - exact) / ldexp(1, exponent - 24);
}

START_TEST(errors_stay_within_their_bounds) {
    for (uint64_t bits = 0; bits < 1ull << 32; bits += 1999) {
        uint32_t word = (uint32_t)bits;
        float x;
        memcpy(&x, &word, sizeof x);
        if (isnan(x)) continue;
        double error = ulps(apply(_i, x, (int)(bits % RM_LANES)), functions[_i].exact(x));
        ck_assert_msg(error <= functions[_i].bound, "%s(%a) is off by %g ulp", functions[_i].name, (double)x, error);
    }
}
END_TEST

START_TEST(results_at_the_ends_of_the_range) {
    ck_assert(apply(EXP, INFINITY, 0) == INFINITY && apply(EXP, -INFINITY, 0) == 0 && apply(EXP, 0, 0) == 1);
    ck_assert(apply(SIGMOID, INFINITY, 0) == 1 && apply(SIGMOID, -INFINITY, 0) == 0 && apply(SIGMOID, 0, 0) == 0.5f);
    ck_assert(apply(TANH, INFINITY, 0) == 1 && apply(TANH, -INFINITY, 0) == -1 && apply(TANH, 0, 0) == 0);
    ck_assert(apply(TANH, 9.2f, 0) == 1 && apply(TANH, 0x1p-140f, 0) == 0x1p-140f);
    for (int f = 0; f < FUNCTIONS; f++) ck_assert_msg(isnan(apply(f, NAN, RM_LANES - 1)), "%s", functions[f].name);
}
END_TEST

START_TEST(tanh_is_odd) {
    for (float x = 1e-30f; x < 20; x *= 1.0007f) ck_assert(apply(TANH, -x, 1) == -apply(TANH, x, 1));
}
END_TEST

START_TEST(short_loads_and_stores_touch_no_more) {
    float from[RM_LANES], to[RM_LANES];
    for (int i = 0; i < RM_LANES; i++) from[i] = (float)(i + 1);
    for (int n = 1; n <= RM_LANES; n++) {
        for (int i = 0; i < RM_LANES; i++) to[i] = -1;
        rm_vec v = rm_load_n(from, n);
        rm_store_n(to, v, n);
        for (int i = 0; i < RM_LANES; i++) ck_assert(v[i] == (i < n ? from[i] : 0) && to[i] == (i < n ? from[i] : -1));
    }
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("vecmath");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, errors_stay_within_their_bounds, 0, FUNCTIONS);
    tcase_add_test(tests, results_at_the_ends_of_the_range);
    tcase_add_test(tests, tanh_is_odd);
    tcase_add_test(tests, short_loads_and_stores_touch_no_more);
    return run_cases("vecmath", tests);
}

/* test_layerwise.c: LARS and LAMB, which use norms of whole arrays: compared step by step with the formulas in double,
 * whole and in parts, and with the element-wise optimizers (test_optimizers.c) where both must agree. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/optimizers/optimizer.h"
#include "tests/suite.h"

enum { N = 1000, STEPS = 12 };

/* ---- As the engine does it: measure all parts, add the sums, update all parts ------------------------------------ */

typedef struct {
    float *p, *g, *state[RM_MAX_OPTIMIZER_STATE];
    int64_t n;
} array;

static float noise(int64_t i, int64_t t) {
    return (float)(((uint64_t)(i * 1000 + t) * 2654435761u >> 8) % 2001) / 1000 - 1;
}

static array array_make(int64_t n) {
    array a = {.n = n};
    float **all[] = {&a.p, &a.g, &a.state[0], &a.state[1]};
    for (int k = 0; k < 4; k++) ck_assert_ptr_nonnull(*all[k] = calloc((size_t)n, sizeof(float)));
    for (int64_t i = 0; i < n; i++) a.p[i] = noise(i, 0);
    return a;
}

static void array_free(array *a) { free(a->p), free(a->g), free(a->state[0]), free(a->state[1]); }

static void set_gradient(array *a, int64_t t) {
    for (int64_t i = 0; i < a->n; i++) a->g[i] = noise(i, t) * 0.5f;
}

/* One update of an array held by `parts` ranks in equal shares; the last rank also has the rest. */
static void step(const char *name, rm_update u, array *a, int parts) {
    const rm_optimizer *o = rm_optimizer_find(name);
    int64_t share = a->n / parts;
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < parts; k++) {
            int64_t at = k * share, n = k + 1 < parts ? share : a->n - at;
            float *state[] = {a->state[0] + at, a->state[1] + at};
            if (pass == 0 && o->measure) o->measure(&u, n, a->p + at, a->g + at, state, u.sum);
            if (pass == 1) o->update(&u, n, a->p + at, a->g + at, state);
        }
}

/* ---- The formulas, in double, from the floats of the step before ------------------------------------------------- */

static double norm(const double *x) {
    double sum = 0;
    for (int i = 0; i < N; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

typedef struct {
    double p[N], state[2][N], size[N]; /* size: largest magnitude that contributed to p */
} expected;

static void oracle_lars(const rm_update *u, const array *before, expected *e) {
    double w[N], g[N], decay = u->weight_decay, trust = 1;
    for (int i = 0; i < N; i++) w[i] = before->p[i], g[i] = before->g[i] * u->gradient_scale;
    if (u->adapt && norm(w) > 0 && norm(g) > 0)
        trust = u->trust_coefficient * norm(w) / (norm(g) + u->weight_decay * norm(w) + u->epsilon);
    for (int i = 0; i < N; i++) {
        double s = u->lr * trust * (g[i] + decay * w[i]);
        double v = u->momentum * u->momentum_factor * before->state[0][i] - s;
        double move = u->nesterov ? u->momentum * v - s : v;
        e->state[0][i] = u->momentum != 0 ? v : 0;
        e->p[i] = w[i] + (u->momentum != 0 ? move : -s);
        e->size[i] = fabs(w[i]) + fabs(s) + fabs(v) + fabs(before->state[0][i]);
    }
}

static void oracle_lamb(const rm_update *u, const array *before, expected *e) {
    double w[N], d[N], decay = u->weight_decay;
    double rest1 = 1 - pow(u->beta1, (double)u->step), rest2 = 1 - pow(u->beta2, (double)u->step);
    for (int i = 0; i < N; i++) {
        double g = before->g[i] * u->gradient_scale;
        double m = u->beta1 * before->state[0][i] + (1 - u->beta1) * g;
        double v = u->beta2 * before->state[1][i] + (1 - u->beta2) * g * g;
        w[i] = before->p[i];
        d[i] = m / rest1 / (sqrt(v / rest2) + u->epsilon) + decay * w[i];
        e->state[0][i] = m, e->state[1][i] = v;
    }
    double phi = u->norm_limit > 0 ? fmin(norm(w), u->norm_limit) : norm(w);
    double ratio = u->adapt && norm(w) > 0 && norm(d) > 0 ? phi / norm(d) : 1;
    for (int i = 0; i < N; i++) {
        e->p[i] = w[i] - u->lr * ratio * d[i];
        /* m may be far smaller than the two numbers that it is the difference of */
        e->size[i] = fabs(w[i]) + u->lr * ratio * (fabs(d[i]) + 1 / (sqrt(e->state[1][i] / rest2) + u->epsilon));
    }
}

static const struct {
    const char *name;
    rm_update update;
} configurations[] = {
    {"lars", {.lr = 7, .momentum = 0.9, .weight_decay = 1e-2, .adapt = true}},
    {"lars", {.lr = 7, .momentum = 0.9, .weight_decay = 1e-2, .adapt = true, .nesterov = true}},
    {"lars", {.lr = 7, .momentum = 0.9, .weight_decay = 1e-2, .adapt = true, .momentum_factor = 1.25}},
    {"lars", {.lr = 7, .adapt = true, .epsilon = 1}},
    {"lars", {.lr = 0.1, .momentum = 0.9}},
    {"lars", {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-2}},
    {"lars", {.lr = 7, .momentum = 0.5, .weight_decay = 1e-2, .adapt = true, .gradient_scale = 0.125}},
    {"lamb", {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6, .weight_decay = 1e-2, .adapt = true}},
    {"lamb", {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.9, .epsilon = 1e-8, .adapt = true}},
    {"lamb", {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .adapt = true, .norm_limit = 3}},
    {"lamb", {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .adapt = true, .norm_limit = 1e3}},
    {"lamb", {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6}},
    {"lamb", {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6, .weight_decay = 0.1}},
    {"lamb", {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .adapt = true, .gradient_scale = 0.125}},
};
enum { CONFIGURATIONS = sizeof configurations / sizeof *configurations };

static rm_update complete(rm_update u, int64_t t, int threads) {
    u.step = t;
    u.threads = threads;
    if (u.gradient_scale == 0) u.gradient_scale = 1;
    if (u.momentum_factor == 0) u.momentum_factor = 1;
    u.trust_coefficient = 0.01;
    return u;
}

/* A step has a few roundings, of numbers no larger than `size`. */
START_TEST(each_step_follows_the_formulas) {
    static expected e;
    const char *name = configurations[_i].name;
    array a = array_make(N);
    for (int64_t t = 1; t <= STEPS; t++) {
        rm_update u = complete(configurations[_i].update, t, 1);
        set_gradient(&a, t);
        (strcmp(name, "lars") ? oracle_lamb : oracle_lars)(&u, &a, &e);
        step(name, u, &a, 1 + (int)(t % 3));
        for (int i = 0; i < N; i++) {
            ck_assert_msg(fabs(a.p[i] - e.p[i]) <= 4 * FLT_EPSILON * e.size[i],
                          "%s %d, step %lld: p[%d] is %.9g, not %.9g", name, _i, (long long)t, i, (double)a.p[i],
                          e.p[i]);
            for (int k = 0; k < 2; k++)
                ck_assert_msg(fabs(a.state[k][i] - e.state[k][i]) <= 4 * FLT_EPSILON * (e.size[i] + 1), "%s %d: state",
                              name, _i);
        }
    }
    array_free(&a);
}
END_TEST

/* Norms are of the whole array: the division among ranks changes only the last bits of their sum. */
START_TEST(parts_give_the_same_update_as_the_whole) {
    static const int parts[] = {2, 3, 7, 64};
    array whole = array_make(N);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        array cut = array_make(N);
        memcpy(whole.p, cut.p, N * sizeof(float));
        for (int s = 0; s < 2; s++) memset(whole.state[s], 0, N * sizeof(float));
        for (int64_t t = 1; t <= STEPS; t++) {
            rm_update u = complete(configurations[_i].update, t, 1);
            set_gradient(&whole, t), set_gradient(&cut, t);
            step(configurations[_i].name, u, &whole, 1), step(configurations[_i].name, u, &cut, parts[k]);
        }
        for (int i = 0; i < N; i++) ck_assert_float_le(fabsf(whole.p[i] - cut.p[i]), 4 * STEPS * FLT_EPSILON);
        array_free(&cut);
    }
    array_free(&whole);
}
END_TEST

START_TEST(result_is_independent_of_threads) {
    enum { MANY = 3 * (1 << 16) + 777 };
    array one = array_make(MANY), two = array_make(MANY);
    for (int64_t t = 1; t <= 3; t++) {
        set_gradient(&one, t), set_gradient(&two, t);
        step(configurations[_i].name, complete(configurations[_i].update, t, 1), &one, 1);
        step(configurations[_i].name, complete(configurations[_i].update, t, 2), &two, 1);
    }
    ck_assert_mem_eq(one.p, two.p, MANY * sizeof(float));
    array_free(&one), array_free(&two);
}
END_TEST

START_TEST(nan_reaches_the_parameters) {
    for (int bad = 0; bad < 2; bad++) {
        array a = array_make(N);
        rm_update u = complete(configurations[_i].update, 1, 1);
        set_gradient(&a, 1);
        (bad ? a.p : a.g)[N / 2] = NAN;
        step(configurations[_i].name, u, &a, 2);
        ck_assert(isnan(a.p[N / 2]));
        if (u.adapt) ck_assert(isnan(a.p[0]) && isnan(a.p[N - 1])); /* the NaN norm affects all elements */
        array_free(&a);
    }
}
END_TEST

/* New layers may start from 0, and unused ones have a gradient of 0: neither may stop training or divide by 0. */
START_TEST(zero_norm_gives_ratio_one) {
    array a = array_make(N), still = array_make(N);
    rm_update u = complete((rm_update){.lr = 0.5, .momentum = 0.9, .adapt = true}, 1, 1);
    memset(a.p, 0, N * sizeof(float));
    set_gradient(&a, 1);
    step("lars", u, &a, 1);
    for (int i = 0; i < N; i++) ck_assert_float_eq(a.p[i], -0.5f * a.g[i]);
    step("lars", u, &still, 1);
    for (int i = 0; i < N; i++) ck_assert_float_eq(still.p[i], noise(i, 0));
    u = complete((rm_update){.lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .adapt = true}, 1, 1);
    step("lamb", u, &still, 1);
    for (int i = 0; i < N; i++) ck_assert_float_eq(still.p[i], noise(i, 0));
    array_free(&a), array_free(&still);
}
END_TEST

/* ---- Agreement with other optimizers ----------------------------------------------------------------------------- */

/* Without trust, and with Goyal's correction whenever the rate changes, a learning rate inside the velocity is
 * equivalent to one outside of it: PyTorch's momentum SGD. That is why sgd needs no correction. */
START_TEST(corrected_momentum_matches_sgd) {
    static const double rates[] = {0.01, 0.02, 0.04, 0.08, 0.08, 0.08, 0.008, 0.008, 0.004, 0.002, 0.002, 0.001};
    array lars = array_make(N), sgd = array_make(N), wrong = array_make(N);
    double worst = 0;
    for (int64_t t = 1; t <= STEPS; t++) {
        rm_update u = complete((rm_update){.momentum = 0.9, .nesterov = _i}, t, 1), uncorrected;
        u.lr = rates[t - 1];
        u.weight_decay = 0;
        uncorrected = u;
        u.momentum_factor = t > 1 ? rates[t - 1] / rates[t - 2] : 1;
        set_gradient(&lars, t), set_gradient(&sgd, t), set_gradient(&wrong, t);
        step("lars", u, &lars, 1), step("sgd", u, &sgd, 1), step("lars", uncorrected, &wrong, 1);
    }
    for (int i = 0; i < N; i++) {
        ck_assert_float_le(fabsf(lars.p[i] - sgd.p[i]), 4 * STEPS * FLT_EPSILON);
        worst = fmax(worst, fabsf(wrong.p[i] - sgd.p[i]));
    }
    ck_assert_double_gt(worst, 0.01);
    array_free(&lars), array_free(&sgd), array_free(&wrong);
}
END_TEST

START_TEST(lamb_matches_adamw_for_biases) {
    array lamb = array_make(N), adamw = array_make(N);
    for (int64_t t = 1; t <= STEPS; t++) {
        rm_update u = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.1};
        u = complete(u, t, 1);
        set_gradient(&lamb, t), set_gradient(&adamw, t);
        step("lamb", u, &lamb, 1), step("adamw", u, &adamw, 1);
    }
    for (int i = 0; i < N; i++) ck_assert_float_le(fabsf(lamb.p[i] - adamw.p[i]), 8 * STEPS * FLT_EPSILON);
    array_free(&lamb), array_free(&adamw);
}
END_TEST

/* The purpose of trust: the step is proportional to the weights, however large the gradient is. */
START_TEST(result_is_independent_of_gradient_scale) {
    static const char *const names[] = {"lars", "lamb"};
    for (int k = 0; k < 2; k++) {
        array a = array_make(N), large = array_make(N);
        rm_update u = {.lr = 1, .momentum = 0.9, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-30, .adapt = true};
        for (int64_t t = 1; t <= STEPS; t++) {
            set_gradient(&a, t), set_gradient(&large, t);
            for (int i = 0; i < N; i++) large.g[i] *= 1024;
            step(names[k], complete(u, t, 1), &a, 1), step(names[k], complete(u, t, 1), &large, 1);
        }
        for (int i = 0; i < N; i++)
            ck_assert_float_le(fabsf(a.p[i] - large.p[i]), 8 * STEPS * FLT_EPSILON * (1 + fabsf(a.p[i])));
        array_free(&a), array_free(&large);
    }
}
END_TEST

START_TEST(only_needed_states_are_used) {
    rm_update plain = {.lr = 1}, momentum = {.lr = 1, .momentum = 0.5};
    ck_assert_int_eq(rm_optimizer_find("lars")->states_used(&plain), 0);
    ck_assert_int_eq(rm_optimizer_find("lars")->states_used(&momentum), 1);
    ck_assert_int_eq(rm_optimizer_find("lamb")->states_used(&plain), 2);
    ck_assert_str_eq(rm_optimizer_find("lars")->state_name[0], "momentum_buffer");
    ck_assert_str_eq(rm_optimizer_find("lamb")->state_name[1], "exp_avg_sq");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("layerwise");
    tcase_add_loop_test(tests, each_step_follows_the_formulas, 0, CONFIGURATIONS);
    tcase_add_loop_test(tests, parts_give_the_same_update_as_the_whole, 0, CONFIGURATIONS);
    tcase_add_loop_test(tests, result_is_independent_of_threads, 0, CONFIGURATIONS);
    tcase_add_loop_test(tests, nan_reaches_the_parameters, 0, CONFIGURATIONS);
    tcase_add_test(tests, zero_norm_gives_ratio_one);
    tcase_add_loop_test(tests, corrected_momentum_matches_sgd, 0, 2);
    tcase_add_test(tests, lamb_matches_adamw_for_biases);
    tcase_add_test(tests, result_is_independent_of_gradient_scale);
    tcase_add_test(tests, only_needed_states_are_used);
    return run_cases("layerwise", tests);
}

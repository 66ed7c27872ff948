/* test_optimizers.c: compares the optimizers with the textbook formulas in double, with values from PyTorch, and with
 * themselves on other numbers of threads; and tests the sum of squares for the global norm. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/optimizers/optimizer.h"
#include "tests/suite.h"

enum { STEPS = 10 };

typedef struct {
    const char *name;
    rm_update update;
    float torch[4]; /* parameters after ten steps of torch 2's optimizer of that name, foreach=False; limits by
                       clip_grad_value_ */
} configuration;

static const configuration configurations[] = {
    {"sgd", {.lr = 0.1}, {0.4374999701976776f, -0.22499999403953552f, 0.9749999642372131f, -1.9375f}},
    {"sgd",
     {.lr = 0.1, .momentum = 0.9},
     {0.4543682932853699f, -0.15808455646038055f, 0.9016890525817871f, -1.528368353843689f}},
    {"sgd",
     {.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01},
     {0.3705601096153259f, -0.13256442546844482f, 0.8418994545936584f, -1.4294885396957397f}},
    {"adam",
     {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
     {0.5140649676322937f, -0.24959610402584076f, 0.9857688546180725f, -1.9589359760284424f}},
    {"adam",
     {.lr = 0.01, .beta1 = 0.4, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1},
     {0.4815535247325897f, -0.2453593760728836f, 0.9552747011184692f, -1.9456802606582642f}},
    {"adamw",
     {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1},
     {0.5089290738105774f, -0.24708592891693115f, 0.9759117960929871f, -1.9392808675765991f}},
    {"rmsprop",
     {.lr = 0.01, .alpha = 0.99, .epsilon = 1e-8},
     {0.4666578471660614f, -0.26271727681159973f, 0.8744444847106934f, -1.8956925868988037f}},
    {"rmsprop",
     {.lr = 0.01, .alpha = 0.9, .epsilon = 1e-3, .momentum = 0.8, .weight_decay = 0.1},
     {0.4425603449344635f, -0.25626492500305176f, 0.6573852896690369f, -1.6697758436203003f}},
    {"adagrad",
     {.lr = 0.1, .epsilon = 1e-10},
     {0.4684123992919922f, -0.26264724135398865f, 0.8749750256538391f, -1.8949207067489624f}},
    {"adagrad",
     {.lr = 0.1, .epsilon = 1e-3, .weight_decay = 0.1},
     {0.40677523612976074f, -0.24233819544315338f, 0.7316973209381104f, -1.7489538192749023f}},
    {"adadelta",
     {.lr = 1, .alpha = 0.9, .epsilon = 1e-6},
     {0.49511924386024475f, -0.24845583736896515f, 0.9965938329696655f, -1.9964147806167603f}},
    {"adadelta",
     {.lr = 0.5, .alpha = 0.8, .epsilon = 1e-3, .weight_decay = 0.1},
     {0.40029874444007874f, -0.21518917381763458f, 0.8677103519439697f, -1.8581775426864624f}},
    {"sgd",
     {.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01, .gradient_limit = 0.25},
     {0.4819856286048889f, -0.1546076536178589f, 0.8140316605567932f, -1.6695032119750977f}},
    {"adam",
     {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .gradient_limit = 0.25},
     {0.5186504125595093f, -0.24863776564598083f, 0.9793744087219238f, -1.961620807647705f}},
    {"rmsprop",
     {.lr = 0.01, .alpha = 0.99, .epsilon = 1e-8, .gradient_limit = 0.25},
     {0.49968117475509644f, -0.2341582179069519f, 0.8920435309410095f, -1.8882452249526978f}},
};
enum { CONFIGURATIONS = sizeof configurations / sizeof *configurations };

static const float start[4] = {0.5f, -0.25f, 1, -2};
static float gradient_at(int64_t i, int64_t t) { return (float)((i % 4 * 7 + t * 13) % 11 - 5) / 8; }

static rm_update complete(const configuration *c, int64_t step, int threads) {
    rm_update u = c->update;
    u.step = step;
    u.gradient_scale = 1;
    u.threads = threads;
    return u;
}

/* ---- The textbook formulas, in double, for one element------------------------------------------------------- */

static double limited_gradient(const rm_update *u, int64_t i, int64_t t) {
    double g = gradient_at(i, t), limit = u->gradient_limit;
    return limit > 0 ? fmax(fmin(g, limit), -limit) : g;
}

static double oracle_sgd(const rm_update *u, int64_t i) {
    double p = start[i], b = 0;
    for (int64_t t = 1; t <= STEPS; t++) {
        double g = limited_gradient(u, i, t) + u->weight_decay * p;
        b = t == 1 ? g : u->momentum * b + g;
        p -= u->lr * (u->nesterov ? g + u->momentum * b : b);
    }
    return p;
}

static double oracle_adam(const rm_update *u, int64_t i, bool decoupled) {
    double p = start[i], m = 0, v = 0;
    for (int64_t t = 1; t <= STEPS; t++) {
        double g = limited_gradient(u, i, t) + (decoupled ? 0 : u->weight_decay * p);
        m = u->beta1 * m + (1 - u->beta1) * g;
        v = u->beta2 * v + (1 - u->beta2) * g * g;
        double m_hat = m / (1 - pow(u->beta1, (double)t)), v_hat = v / (1 - pow(u->beta2, (double)t));
        if (decoupled) p -= u->lr * u->weight_decay * p;
        p -= u->lr * m_hat / (sqrt(v_hat) + u->epsilon);
    }
    return p;
}

static double oracle_rmsprop(const rm_update *u, int64_t i) {
    double p = start[i], v = 0, b = 0;
    for (int64_t t = 1; t <= STEPS; t++) {
        double g = limited_gradient(u, i, t) + u->weight_decay * p;
        v = u->alpha * v + (1 - u->alpha) * g * g;
        b = u->momentum * b + g / (sqrt(v) + u->epsilon);
        p -= u->lr * b;
    }
    return p;
}

static double oracle_adagrad(const rm_update *u, int64_t i) {
    double p = start[i], sum = 0;
    for (int64_t t = 1; t <= STEPS; t++) {
        double g = limited_gradient(u, i, t) + u->weight_decay * p;
        sum += g * g;
        p -= u->lr * g / (sqrt(sum) + u->epsilon);
    }
    return p;
}

static double oracle_adadelta(const rm_update *u, int64_t i) {
    double p = start[i], v = 0, moved = 0;
    for (int64_t t = 1; t <= STEPS; t++) {
        double g = limited_gradient(u, i, t) + u->weight_decay * p;
        v = u->alpha * v + (1 - u->alpha) * g * g;
        double delta = sqrt(moved + u->epsilon) / sqrt(v + u->epsilon) * g;
        moved = u->alpha * moved + (1 - u->alpha) * delta * delta;
        p -= u->lr * delta;
    }
    return p;
}

static double oracle(const configuration *c, int64_t i) {
    if (!strcmp(c->name, "sgd")) return oracle_sgd(&c->update, i);
    if (!strcmp(c->name, "rmsprop")) return oracle_rmsprop(&c->update, i);
    if (!strcmp(c->name, "adagrad")) return oracle_adagrad(&c->update, i);
    if (!strcmp(c->name, "adadelta")) return oracle_adadelta(&c->update, i);
    return oracle_adam(&c->update, i, !strcmp(c->name, "adamw"));
}

/* ---- Ours -------------------------------------------------------------------------------------------- */

static float *floats(int64_t n) {
    float *x = calloc((size_t)n, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

/* n parameters, the four values repeated, after ten steps. The caller frees. */
static float *train(const configuration *c, int64_t n, int threads) {
    const rm_optimizer *o = rm_optimizer_find(c->name);
    ck_assert_ptr_nonnull(o);
    float *p = floats(n), *g = floats(n), *state[RM_MAX_OPTIMIZER_STATE] = {NULL};
    rm_update u = complete(c, 1, threads);
    for (int k = 0; k < o->states_used(&u); k++) state[k] = floats(n);
    for (int64_t i = 0; i < n; i++) p[i] = start[i % 4];
    for (int64_t t = 1; t <= STEPS; t++) {
        for (int64_t i = 0; i < n; i++) g[i] = gradient_at(i, t);
        u.step = t;
        o->update(&u, n, p, g, state);
        for (int64_t i = 0; i < n; i++) ck_assert_float_eq(g[i], gradient_at(i, t)); /* not changed */
    }
    for (int k = 0; k < RM_MAX_OPTIMIZER_STATE; k++) free(state[k]);
    free(g);
    return p;
}

START_TEST(optimizer_follows_the_textbook) {
    const configuration *c = &configurations[_i];
    float *p = train(c, 4, 1);
    for (int i = 0; i < 4; i++) /* ten steps with a few roundings each, of numbers below 2 */
        ck_assert_msg(fabs(p[i] - oracle(c, i)) <= 10 * 4 * FLT_EPSILON, "%s: parameter %d is %.9g, not %.9g", c->name,
                      i, (double)p[i], oracle(c, i));
    free(p);
}
END_TEST

/* PyTorch fuses multiply and add if the machine supports it, so a step may differ in the last bit. */
START_TEST(optimizer_follows_pytorch) {
    const configuration *c = &configurations[_i];
    float *p = train(c, 4, 1);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(fabsf(p[i] - c->torch[i]) <= 4 * FLT_EPSILON * fabsf(c->torch[i]),
                      "%s: parameter %d is %.9g, PyTorch's %.9g", c->name, i, (double)p[i], (double)c->torch[i]);
    free(p);
}
END_TEST

START_TEST(optimizers_are_independent_of_threads) {
    enum { MANY = (1 << 16) + 4 * 777 };
    float *one = train(&configurations[_i], MANY, 1), *two = train(&configurations[_i], MANY, 2);
    ck_assert_mem_eq(one, two, MANY * sizeof *one);
    ck_assert_mem_eq(one, one + MANY - 4, 4 * sizeof *one); /* vectorised part and remainder agree */
    free(one), free(two);
}
END_TEST

START_TEST(clipping_scales_the_gradient) {
    const configuration *c = &configurations[_i];
    const rm_optimizer *o = rm_optimizer_find(c->name);
    rm_update whole = complete(c, 1, 1), half = whole;
    half.gradient_scale = 0.5;
    float a[2] = {1, -3}, b[2] = {1, -3}, ga[2] = {0.5f, 0.25f}, gb[2] = {1, 0.5f}, sa[2][2] = {{0}}, sb[2][2] = {{0}};
    o->update(&whole, 2, a, ga, (float *[]){sa[0], sa[1]});
    o->update(&half, 2, b, gb, (float *[]){sb[0], sb[1]});
    ck_assert_mem_eq(a, b, sizeof a);
    ck_assert_mem_eq(sa, sb, sizeof sa);
}
END_TEST

START_TEST(only_needed_states_are_used) {
    rm_update plain = {.lr = 1}, momentum = {.lr = 1, .momentum = 0.5};
    ck_assert_int_eq(rm_optimizer_find("sgd")->states_used(&plain), 0);
    ck_assert_int_eq(rm_optimizer_find("sgd")->states_used(&momentum), 1);
    ck_assert_int_eq(rm_optimizer_find("adam")->states_used(&plain), 2);
    ck_assert_int_eq(rm_optimizer_find("adamw")->states_used(&plain), 2);
    ck_assert_int_eq(rm_optimizer_find("rmsprop")->states_used(&plain), 1);
    ck_assert_int_eq(rm_optimizer_find("rmsprop")->states_used(&momentum), 2);
    ck_assert_int_eq(rm_optimizer_find("adagrad")->states_used(&momentum), 1);
    ck_assert_ptr_null(rm_optimizer_find("lbfgs"));
    for (int i = 0; i < rm_n_optimizers; i++)
        for (int k = 0; k < rm_optimizers[i]->n_state; k++) ck_assert_ptr_nonnull(rm_optimizers[i]->state_name[k]);
}
END_TEST

/* ---- The norm ---------------------------------------------------------------------------------------- */

START_TEST(sum_of_squares_is_exact_to_double) {
    static const int64_t length[] = {0, 1, 7, 8, 4095, 4096, 4097, 70000, 256 * 4096 + 3};
    for (size_t k = 0; k < sizeof length / sizeof *length; k++) {
        int64_t n = length[k];
        float *x = floats(n + 1);
        long double expected = 0;
        for (int64_t i = 0; i < n; i++) {
            x[i] = (float)((i * 2654435761u) % 2000) / 1000 - 1;
            expected += (long double)x[i] * x[i];
        }
        double one = rm_sum_of_squares(x, n, 1), two = rm_sum_of_squares(x, n, 2);
        ck_assert_mem_eq(&one, &two, sizeof one);
        ck_assert_msg(fabs(one - (double)expected) <= 1e-13 * (double)expected, "%lld: %.17g, not %.17Lg", (long long)n,
                      one, expected);
        free(x);
    }
}
END_TEST

START_TEST(sum_of_squares_propagates_nan_and_infinity) {
    float *x = floats(5000);
    x[4999] = NAN;
    ck_assert(isnan(rm_sum_of_squares(x, 5000, 2)));
    x[4999] = -INFINITY;
    ck_assert(isinf(rm_sum_of_squares(x, 5000, 2)));
    x[4999] = 1e30f; /* its square overflows float */
    ck_assert_double_gt(rm_sum_of_squares(x, 5000, 2), 9.9e59);
    free(x);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("optimizers");
    tcase_add_loop_test(tests, optimizer_follows_the_textbook, 0, CONFIGURATIONS);
    tcase_add_loop_test(tests, optimizer_follows_pytorch, 0, CONFIGURATIONS);
    tcase_add_loop_test(tests, optimizers_are_independent_of_threads, 0, CONFIGURATIONS);
    tcase_add_loop_test(tests, clipping_scales_the_gradient, 0, CONFIGURATIONS);
    tcase_add_test(tests, only_needed_states_are_used);
    tcase_add_test(tests, sum_of_squares_is_exact_to_double);
    tcase_add_test(tests, sum_of_squares_propagates_nan_and_infinity);
    return run_cases("optimizers", tests);
}

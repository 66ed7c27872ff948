/* test_layerwise.c: LARS and LAMB in a session: which arrays are scaled, and the effect of clipping and of a changed
 * learning rate. tests/ops/test_layerwise.c tests the formulas. Also label smoothing, which applies to training but not
 * to evaluation, and clipping by value. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remat.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { B = 6, C = 5, K = 4, WEIGHTS = K * C };

#define CHECKED(call) ck_assert_msg(!(call), "%s: %s", #call, remat_last_error())

static remat_session *open_session(const remat_config *config, double smoothing) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, C});
    remat_value t = remat_input(g, "t", REMAT_I32, REMAT_STATIC, 1, (int64_t[]){B});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){K, C}, remat_init_uniform(0.5));
    remat_value b = remat_param(g, "b", 1, (int64_t[]){K}, remat_init_uniform(0.5));
    CHECKED(remat_session_create(g, remat_softmax_cross_entropy_smoothed(g, remat_linear(g, x, w, b), t, smoothing),
                                 config, &s));
    remat_graph_free(g);
    float data[B * C];
    int32_t target[B];
    for (int i = 0; i < B * C; i++) data[i] = (float)(i * 7 % 11 - 5) / 4;
    for (int i = 0; i < B; i++) target[i] = i * 3 % K;
    CHECKED(remat_write(s, REMAT_INPUT, 0, data, sizeof data));
    CHECKED(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
    return s;
}

static void read_floats(remat_session *s, remat_kind kind, const char *name, double *out, int n) {
    float x[WEIGHTS];
    CHECKED(remat_read(s, kind, remat_find(s, kind, name), x, (uint64_t)n * sizeof *x));
    for (int i = 0; i < n; i++) out[i] = x[i];
}

static double norm(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* An array and its expected values. */
typedef struct {
    const char *name, *velocity;
    int n;
    bool adapt;
    double decay, w[WEIGHTS], v[WEIGHTS], g[WEIGHTS];
} array;

static void expect_lars(array *a, const remat_config *c, double lr, double last_lr, double clip) {
    double trust = 1;
    for (int i = 0; i < a->n; i++) a->g[i] *= clip;
    if (a->adapt) trust = c->trust_coefficient * norm(a->w, a->n) / (norm(a->g, a->n) + a->decay * norm(a->w, a->n));
    for (int i = 0; i < a->n; i++) {
        double correct = c->momentum_correction && last_lr > 0 ? lr / last_lr : 1;
        a->v[i] = c->momentum * correct * a->v[i] - lr * trust * (a->g[i] + a->decay * a->w[i]);
        a->w[i] += a->v[i];
    }
}

static void read_array(remat_session *s, array *a) {
    read_floats(s, REMAT_PARAM, a->name, a->w, a->n);
    read_floats(s, REMAT_GRADIENT, a->name, a->g, a->n);
    read_floats(s, REMAT_OPTIMIZER, a->velocity, a->v, a->n);
}

static void expect_equal(remat_session *s, const array *a) {
    double w[WEIGHTS];
    read_floats(s, REMAT_PARAM, a->name, w, a->n);
    for (int i = 0; i < a->n; i++)
        ck_assert_msg(fabs(w[i] - a->w[i]) <= 8 * FLT_EPSILON * (1 + fabs(a->v[i])), "%s[%d] is %.9g, not %.9g",
                      a->name, i, w[i], a->w[i]);
}

/* Biases are decayed if decay_vectors or a group says so, scaled or not. */
static const remat_config configurations[] = {
    {.momentum = 0.9, .weight_decay = 0.01},
    {.momentum = 0.9, .weight_decay = 0.01, .momentum_correction = true},
    {.momentum = 0.9, .weight_decay = 0.01, .adapt_vectors = true},
    {.momentum = 0.9, .weight_decay = 0.01, .decay_vectors = true, .momentum_correction = true, .clip_grad_norm = 0.05},
    {.momentum = 0.9, .weight_decay = 0.01, .adapt_vectors = true, .decay_vectors = true},
    {.momentum = 0.9, .weight_decay = 0.01, .groups = "b:weight_decay=0.03"},
    {.momentum = 0.9, .adapt_vectors = true, .groups = "b:weight_decay=0.03"},
};

START_TEST(lars_scales_arrays_by_their_norms) {
    static const double rates[] = {0.5, 1, 2, 2, 0.25, 0.125};
    remat_config c = configurations[_i];
    c.struct_bytes = sizeof c;
    c.device = "cpu", c.strategy = "none", c.recompute = "auto", c.threads = 1, c.optimizer = "lars";
    c.beta1 = 0.9, c.beta2 = 0.999, c.trust_coefficient = 0.05;
    remat_session *s = open_session(&c, 0);
    array w = {.name = "w", .velocity = "w.momentum_buffer", .n = WEIGHTS, .adapt = true, .decay = c.weight_decay};
    array b = {.name = "b", .velocity = "b.momentum_buffer", .n = K, .adapt = c.adapt_vectors};
    b.decay = c.groups ? 0.03 : c.decay_vectors ? c.weight_decay : 0;
    for (size_t t = 0; t < sizeof rates / sizeof *rates; t++) {
        remat_step_result r;
        CHECKED(remat_gradients(s, &r));
        read_array(s, &w), read_array(s, &b);
        double all = hypot(norm(w.g, w.n), norm(b.g, b.n));
        double clip = c.clip_grad_norm > 0 ? fmin(1, c.clip_grad_norm / (all + 1e-6)) : 1;
        expect_lars(&w, &c, rates[t], t ? rates[t - 1] : 0, clip);
        expect_lars(&b, &c, rates[t], t ? rates[t - 1] : 0, clip);
        CHECKED(remat_update(s, rates[t], &r));
        expect_equal(s, &w), expect_equal(s, &b);
    }
    remat_session_free(s);
}
END_TEST

/* LAMB's first step on a matrix has the length lr |w|, for every gradient. On a bias it is lr per element, as
 * Adam's. */
START_TEST(lamb_steps_have_the_length_of_the_weights) {
    remat_config c = REMAT_CONFIG_INIT;
    c.threads = 1, c.optimizer = "lamb", c.epsilon = 1e-12;
    remat_session *s = open_session(&c, 0);
    double before[WEIGHTS], after[WEIGHTS], bias[K], moved[K];
    remat_step_result r;
    read_floats(s, REMAT_PARAM, "w", before, WEIGHTS), read_floats(s, REMAT_PARAM, "b", bias, K);
    double length = norm(before, WEIGHTS);
    CHECKED(remat_step(s, 0.125, &r));
    read_floats(s, REMAT_PARAM, "w", after, WEIGHTS), read_floats(s, REMAT_PARAM, "b", moved, K);
    for (int i = 0; i < WEIGHTS; i++) after[i] -= before[i];
    ck_assert_double_le(fabs(norm(after, WEIGHTS) - 0.125 * length), 1e-6 * length);
    for (int i = 0; i < K; i++) ck_assert_double_le(fabs(fabs(moved[i] - bias[i]) - 0.125), 1e-6);
    remat_session_free(s);
}
END_TEST

START_TEST(label_smoothing_applies_to_training_only) {
    remat_config c = REMAT_CONFIG_INIT;
    c.threads = 1, c.optimizer = "sgd";
    remat_session *plain = open_session(&c, 0), *smoothed = open_session(&c, 0.2);
    remat_step_result a, b;
    CHECKED(remat_evaluate(plain, &a));
    CHECKED(remat_evaluate(smoothed, &b));
    ck_assert_double_eq(a.loss, b.loss);
    CHECKED(remat_gradients(plain, &a));
    CHECKED(remat_gradients(smoothed, &b));
    ck_assert_double_ne(a.loss, b.loss);
    remat_session_free(plain), remat_session_free(smoothed);
}
END_TEST

/* torch.nn.utils.clip_grad_value_: clips each element by itself. The reported norm is that before clipping. */
START_TEST(clip_grad_value_clips_each_element) {
    double before[WEIGHTS], after[WEIGHTS], gradient[WEIGHTS];
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result clipped, free;
    config.optimizer = "sgd";
    remat_session *plain = open_session(&config, 0);
    config.clip_grad_value = 0.02;
    remat_session *s = open_session(&config, 0);
    read_floats(s, REMAT_PARAM, "w", before, WEIGHTS);
    CHECKED(remat_step(plain, 1, &free));
    CHECKED(remat_step(s, 1, &clipped));
    ck_assert(free.grad_norm == clipped.grad_norm);
    read_floats(s, REMAT_PARAM, "w", after, WEIGHTS);
    read_floats(s, REMAT_GRADIENT, "w", gradient, WEIGHTS);
    int limited = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        double step = fmax(fmin(gradient[i], 0.02), -0.02);
        limited += step != gradient[i];
        ck_assert_msg(fabs(before[i] - step - after[i]) <= 2 * FLT_EPSILON, "%d: %g", i, after[i]);
    }
    ck_assert_msg(limited > 2 && limited < WEIGHTS - 2, "%d of %d", limited, WEIGHTS);
    remat_session_free(plain);
    remat_session_free(s);
}
END_TEST

static void refused(remat_config config, const char *part) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){B, C});
    remat_value w = remat_param(g, "w", 2, (int64_t[]){K, C}, remat_init_uniform(0.5));
    remat_value y = remat_linear(g, x, w, REMAT_NONE);
    ck_assert_int_eq(remat_session_create(g, remat_mae(g, y, remat_scale(g, y, 2)), &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), part);
    remat_graph_free(g);
}

START_TEST(invalid_clipping_is_refused) {
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "lars";
    config.clip_grad_value = 1;
    refused(config, "clip_grad_value|lars");
    config.optimizer = "adam";
    config.clip_grad_norm = 1;
    refused(config, "clip_grad_value|clip_grad_norm");
    config.clip_grad_norm = 0;
    config.clip_grad_value = -1;
    refused(config, "clip_grad_value|-1");
    config.clip_grad_value = 0;
    config.alpha = 1;
    refused(config, "alpha|1");
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("layerwise in a session");
    tcase_add_loop_test(tests, lars_scales_arrays_by_their_norms, 0, sizeof configurations / sizeof *configurations);
    tcase_add_test(tests, lamb_steps_have_the_length_of_the_weights);
    tcase_add_test(tests, label_smoothing_applies_to_training_only);
    tcase_add_test(tests, clip_grad_value_clips_each_element);
    tcase_add_test(tests, invalid_clipping_is_refused);
    return run_cases("layerwise in a session", tests);
}

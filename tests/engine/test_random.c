/* test_random.c: random networks under random plans. Whatever a valid plan recomputes, loss and gradients keep their
 * bits; and a directional derivative says that the gradients are right, skip connections and all. */
#include <check.h>
#include <math.h>

#include "tests/engine/random_net.h"

/* ---- Running and comparing ------------------------------------------------------------------------------------ */

static remat_session *open_session(const net *n, remat_value loss, const remat_config *config, uint64_t seed) {
    remat_session *s;
    remat_status status = remat_session_create(n->graph, loss, config, &s);
    ck_assert_msg(status == REMAT_OK, "%s", remat_last_error());
    fill_inputs(s, seed);
    return s;
}

static void expect_same_bits(remat_session *a, remat_session *b, const char *what) {
    remat_step_result ra, rb;
    ck_assert_int_eq(remat_gradients(a, &ra), REMAT_OK);
    ck_assert_int_eq(remat_gradients(b, &rb), REMAT_OK);
    ck_assert_msg(isfinite(ra.loss) && !memcmp(&ra.loss, &rb.loss, sizeof ra.loss), "%s: loss %.9g, %.9g", what,
                  ra.loss, rb.loss);
    remat_step_result evaluated; /* a lean plan may need less than the evaluation: the arena is for both */
    ck_assert_int_eq(remat_evaluate(b, &evaluated), REMAT_OK);
    ck_assert_uint_eq(remat_session_plan(b).planned_peak_bytes, evaluated.arena_peak_bytes);
    for (int64_t i = 0; i < remat_count(a, REMAT_GRADIENT); i++) {
        remat_array info;
        remat_array_info(a, REMAT_GRADIENT, i, &info);
        char *x = malloc(info.bytes), *y = malloc(info.bytes);
        remat_read(a, REMAT_GRADIENT, i, x, info.bytes);
        remat_read(b, REMAT_GRADIENT, i, y, info.bytes);
        ck_assert_msg(!memcmp(x, y, info.bytes), "%s: gradient of %s differs", what, info.name);
        free(x);
        free(y);
    }
}

static double loss_at(remat_session *s, float *const *origin, float *const *direction, double distance) {
    for (int64_t i = 0; i < remat_count(s, REMAT_PARAM); i++) {
        remat_array info;
        remat_array_info(s, REMAT_PARAM, i, &info);
        float *moved = malloc(info.bytes);
        for (uint64_t k = 0; k < info.bytes / 4; k++) moved[k] = (float)(origin[i][k] + distance * direction[i][k]);
        remat_write(s, REMAT_PARAM, i, moved, info.bytes);
        free(moved);
    }
    remat_step_result r;
    ck_assert_int_eq(remat_gradients(s, &r), REMAT_OK); /* not evaluate: dropout must be the same */
    return r.loss;
}

/* (loss(p + e d) - loss(p - e d)) / 2e against gradient . d, along one random direction. */
static void expect_right_gradients(remat_session *s) {
    int64_t n = remat_count(s, REMAT_PARAM);
    float *origin[64], *direction[64];
    double expected = 0, length = 0;
    remat_step_result r;
    remat_gradients(s, &r);
    for (int64_t i = 0; i < n; i++) {
        remat_array info;
        remat_array_info(s, REMAT_PARAM, i, &info);
        float *gradient = malloc(info.bytes);
        origin[i] = malloc(info.bytes);
        direction[i] = malloc(info.bytes);
        remat_read(s, REMAT_PARAM, i, origin[i], info.bytes);
        remat_read(s, REMAT_GRADIENT, i, gradient, info.bytes);
        for (uint64_t k = 0; k < info.bytes / 4; k++) {
            direction[i][k] = gradient[k] + 0.1f * draw_real(); /* mostly uphill, so that the sum is not near zero */
            expected += (double)direction[i][k] * gradient[k];
            length += (double)direction[i][k] * direction[i][k];
        }
        free(gradient);
    }
    double e = 3e-3 / (sqrt(length) + 1e-9);
    double measured = (loss_at(s, origin, direction, e) - loss_at(s, origin, direction, -e)) / (2 * e);
    /* float loss near r.loss: its rounding, 6e-8 of it, over 2e; and the cubic term, taken as 1e-2 of the value */
    double tolerance = 2e-2 * fabs(expected) + 2e-7 * (fabs(r.loss) + 1e-3) / e;
    ck_assert_msg(fabs(measured - expected) <= tolerance, "directional derivative %.6g, gradients say %.6g (+- %.2g)",
                  measured, expected, tolerance);
    for (int64_t i = 0; i < n; i++) {
        free(origin[i]);
        free(direction[i]);
    }
}

static void try_one(uint64_t seed, bool timed) {
    net n;
    rng_state = seed * 7919 + 1;
    remat_value loss = random_net_with(&n, timed, seed % 2 == 1);
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1 + (int)(seed % 2);
    config.tile = timed ? 1 + draw(4) : draw(3);
    config.seed = seed;
    remat_session *keep = open_session(&n, loss, &config, seed);
    char *steps = random_plan(keep), what[64];
    config.plan_steps = steps;
    config.verify_recompute = seed % 4 < 2;
    remat_session *other = open_session(&n, loss, &config, seed);
    snprintf(what, sizeof what, "seed %lu, %s", (unsigned long)seed, timed ? "timed" : "deep");
    expect_same_bits(keep, other, what);
    expect_right_gradients(other);
    free(steps);
    remat_session_free(keep);
    remat_session_free(other);
    remat_graph_free(n.graph);
}

START_TEST(timed_networks) { try_one((uint64_t)_i, true); }
END_TEST
START_TEST(deep_networks) { try_one((uint64_t)_i, false); }
END_TEST

/* A plan of one's own is judged: any one step left out must be refused, and nothing runs. */
START_TEST(wrong_plans_are_refused) {
    net n;
    rng_state = 5;
    remat_value loss = random_net(&n, true);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 2;
    config.plan_only = true;
    remat_session *s;
    ck_assert_int_eq(remat_session_create(n.graph, loss, &config, &s), REMAT_OK);
    char *steps = random_plan(s);
    remat_session_free(s);
    for (char *line = steps; *line; line = strchr(line, '\n') + 1) {
        char *without = strdup(steps), *end = strchr(line, '\n') + 1;
        strcpy(without + (line - steps), end);
        config.plan_steps = without;
        ck_assert_msg(remat_session_create(n.graph, loss, &config, &s) == REMAT_INVALID,
                      "a plan without %.30s was taken", line);
        free(without);
    }
    free(steps);
    remat_graph_free(n.graph);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("random");
    TCase *tests = tcase_create("random");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, timed_networks, 0, 150);
    tcase_add_loop_test(tests, deep_networks, 0, 150);
    tcase_add_test(tests, wrong_plans_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

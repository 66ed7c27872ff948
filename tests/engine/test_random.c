/* test_random.c: random networks under random plans. Whatever a valid plan recomputes, loss and gradients keep their
 * bits; and a directional derivative says that the gradients are right, skip connections and all. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/remat.h"

/* ---- A small generator of its own ----------------------------------------------------------------------------- */

static uint64_t rng_state;
static uint32_t draw(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}
static float draw_real(void) { return (float)draw(20001) / 10000.0f - 1; }

/* ---- Random networks ------------------------------------------------------------------------------------------ */

enum { MAX_POOL = 24 };
typedef struct {
    remat_graph *graph;
    remat_value pool[MAX_POOL]; /* values (T,B,C) or (B,C) to build on */
    int n_pool, n_params;
    int64_t steps, batch, width;
} net;

static remat_value param(net *n, int rank, int64_t a, int64_t b) {
    char name[32];
    snprintf(name, sizeof name, "p%d", n->n_params++);
    return remat_param(n->graph, name, rank, (int64_t[]){a, b}, remat_init_uniform(0.5));
}
static remat_value pick(net *n) { return n->pool[draw((uint32_t)n->n_pool)]; }

static remat_value random_layer(net *n, bool timed) {
    remat_graph *g = n->graph;
    int64_t c = n->width;
    switch (draw(timed ? 13 : 10)) {
    case 0:
        return remat_linear(g, pick(n), param(n, 2, c, c), param(n, 1, c, 1));
    case 1:
        return remat_add(g, pick(n), pick(n));
    case 2:
        return remat_mul(g, pick(n), pick(n));
    case 3:
        return remat_scale(g, pick(n), 0.7);
    case 4:
        return remat_sigmoid(g, pick(n));
    case 5:
        return remat_tanh(g, pick(n));
    case 6:
        return remat_gelu(g, pick(n));
    case 7:
        return remat_layer_norm(g, pick(n), param(n, 1, c, 1), param(n, 1, c, 1), 1e-5);
    case 8:
        return remat_dropout(g, pick(n), 0.25);
    case 9:
        return remat_linear(g, pick(n), param(n, 2, c, c), REMAT_NONE);
    case 10:
        return remat_lstm(g, pick(n), param(n, 2, 4 * c, c), param(n, 2, 4 * c, c), param(n, 1, 4 * c, 1),
                          param(n, 1, 4 * c, 1));
    case 11:
        return remat_gru(g, pick(n), param(n, 2, 3 * c, c), param(n, 2, 3 * c, c), param(n, 1, 3 * c, 1), REMAT_NONE);
    default:
        return remat_rnn_tanh(g, pick(n), param(n, 2, c, c), param(n, 2, c, c), REMAT_NONE, param(n, 1, c, 1));
    }
}

/* The end: every value of the pool takes part, so nothing is dead; several kinds of heads. */
static remat_value random_loss(net *n, bool timed) {
    remat_graph *g = n->graph;
    remat_value sum = n->pool[0];
    for (int i = 1; i < n->n_pool; i++) sum = remat_add(g, sum, n->pool[i]);
    sum = remat_tanh(g, remat_linear(g, sum, param(n, 2, n->width, n->width), REMAT_NONE));
    uint32_t head = timed ? draw(4) : 0;
    if (head == 1) sum = remat_last_step(g, sum);
    if (head == 2) sum = remat_mean_over_time(g, sum);
    if (head == 3) sum = remat_add(g, remat_mean_over_time(g, sum), remat_last_step(g, n->pool[0]));
    bool whole = !timed || head;
    if (head) sum = remat_gelu(g, remat_linear(g, sum, param(n, 2, n->width, n->width), REMAT_NONE));
    remat_value target =
        remat_input(g, "target", REMAT_F32, whole ? REMAT_WHOLE : REMAT_SEQUENCE, whole ? 2 : 3,
                    whole ? (int64_t[]){n->batch, n->width} : (int64_t[]){n->steps, n->batch, n->width});
    return remat_mse(g, sum, target);
}

static remat_value random_net(net *n, bool timed) {
    *n = (net){.steps = 1 + draw(12), .batch = 1 + draw(3), .width = 1 + draw(6)};
    ck_assert_int_eq(remat_graph_create(&n->graph), REMAT_OK);
    int64_t dim[] = {n->steps, n->batch, n->width};
    n->pool[n->n_pool++] = timed ? remat_input(n->graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, dim)
                                 : remat_input(n->graph, "x", REMAT_F32, REMAT_WHOLE, 2, dim + 1);
    int layers = 2 + (int)draw(8);
    for (int i = 0; i < layers; i++) {
        n->pool[n->n_pool] = random_layer(n, timed);
        n->n_pool++;
    }
    remat_value loss = random_loss(n, timed);
    ck_assert_msg(remat_graph_check(n->graph) == REMAT_OK, "%s", remat_last_error());
    return loss;
}

/* ---- Random plans --------------------------------------------------------------------------------------------- */

/* One of the options that the session's problem gives the stage: "all", or sometimes "lean". */
static const char *random_option(const char *problem, int64_t stage) {
    char fact[48];
    snprintf(fact, sizeof fact, "\nstage %ld keep lean ", (long)stage);
    return strstr(problem, fact) && draw(2) ? "lean" : "all";
}

static void end_stage(FILE *out, int64_t s) {
    fprintf(out, "run backward %ld\nfree saved %ld\nfree dstate %ld\nfree state %ld\n", (long)s, (long)s, (long)s + 1,
            (long)s);
}

/* Stages a..b-1, state(a) alive: differentiate them. Keep the first and go on behind it, or recompute from a random
 * split; to any depth. */
static void random_reverse(FILE *out, const char *problem, int64_t a, int64_t b) {
    if (b - a == 1 || draw(3) == 0) {
        fprintf(out, "run forward %ld %s\n", (long)a, random_option(problem, a));
        if (b - a == 1)
            fprintf(out, "free state %ld\n", (long)b);
        else
            random_reverse(out, problem, a + 1, b);
        end_stage(out, a);
        return;
    }
    int64_t split = a + 1 + draw((uint32_t)(b - a - 1));
    for (int64_t s = a; s < split; s++) {
        fprintf(out, "run forward %ld drop\n", (long)s);
        if (s > a) fprintf(out, "free state %ld\n", (long)s);
    }
    random_reverse(out, problem, split, b);
    random_reverse(out, problem, a, split);
}

static char *random_plan(const remat_session *session) {
    char *text, *problem = remat_plan_problem_text(session);
    size_t length;
    ck_assert_ptr_nonnull(problem);
    FILE *out = open_memstream(&text, &length);
    random_reverse(out, problem, 0, remat_session_plan(session).n_stages);
    fprintf(out, "free dstate 0\n");
    fclose(out);
    remat_text_free(problem);
    return text;
}

/* ---- Running and comparing ------------------------------------------------------------------------------------ */

static void fill_inputs(remat_session *s, uint64_t seed) {
    rng_state = seed;
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        remat_array_info(s, REMAT_INPUT, i, &info);
        float *data = malloc(info.bytes);
        for (uint64_t k = 0; k < info.bytes / 4; k++) data[k] = draw_real();
        ck_assert_int_eq(remat_write(s, REMAT_INPUT, i, data, info.bytes), REMAT_OK);
        free(data);
    }
}

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
    remat_value loss = random_net(&n, timed);
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

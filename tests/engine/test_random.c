/* test_random.c: random networks under random plans. Every valid plan, with any outputs besides the loss, gives the
 * same bits for the loss and all gradients, including those of inputs and those that start from the caller's loss. A
 * directional derivative and the ops' definitions in double precision show that the gradients are right, also with skip
 * connections. */
#include <check.h>
#include <math.h>

#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/engine/in_double.h"
#include "tests/engine/poison.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"
#include "tests/suite.h"

/* ---- Running and comparing ------------------------------------------------------------------------------------ */

static remat_session *open_session(const net *n, remat_value loss, const remat_config *config, uint64_t seed) {
    remat_session *s;
    remat_status status = remat_session_create(n->graph, loss, config, &s);
    ck_assert_msg(status == REMAT_OK, "%s", remat_last_error());
    poison(s);
    fill_inputs(s, seed);
    return s;
}

static void expect_same_arrays(remat_session *a, remat_session *b, remat_kind kind, const char *what) {
    for (int64_t i = 0; i < remat_count(a, kind); i++) {
        remat_array info;
        remat_array_info(a, kind, i, &info);
        float *x = malloc(info.bytes), *y = malloc(info.bytes);
        ck_assert_int_eq(remat_read(a, kind, i, x, info.bytes), REMAT_OK);
        ck_assert_int_eq(remat_read(b, kind, i, y, info.bytes), REMAT_OK);
        ck_assert_msg(!memcmp(x, y, info.bytes), "%s: %s %s differs", what,
                      kind == REMAT_GRADIENT ? "the gradient of" : "", info.name);
        for (uint64_t k = 0; k < info.bytes / sizeof *x; k++)
            ck_assert_msg(isfinite(x[k]), "%s: %s has %g at %lu", what, info.name, x[k], (unsigned long)k);
        free(x);
        free(y);
    }
}

static void expect_gradients_in_double(remat_session *s, const char *what) {
    remat_step_result r;
    ck_assert_int_eq(outside_gradients(s, &r), REMAT_OK);
    in_double d = in_double_forward(s);
    for (int i = 0; i < s->chain.n_differentiated; i++) {
        int32_t v = s->chain.outputs[i];
        double *gradient = in_double_gradient(&d, v), *y = d.value[v];
        for (int64_t k = 0; k < rm_desc_count(&s->graph->value[v].desc); k++)
            gradient[k] = outside_constant(i, k) + 0.1 * y[k];
    }
    in_double_backward(&d);
    in_double_expect(&d, 1e-3, 1e-3, what); /* float's 6e-8, over ten layers, steps and terms each; 2e-4 was observed */
    in_double_free(&d);
}

static void expect_same_gradients(remat_session *a, remat_session *b, const char *what) {
    remat_step_result ra, rb;
    ck_assert_msg(outside_gradients(a, &ra) == REMAT_OK, "%s: %s", what, remat_last_error());
    ck_assert_msg(outside_gradients(b, &rb) == REMAT_OK, "%s: %s", what, remat_last_error());
    ck_assert_msg(isfinite(ra.loss) && !memcmp(&ra.loss, &rb.loss, sizeof ra.loss), "%s: loss %.9g, %.9g", what,
                  ra.loss, rb.loss);
    expect_same_arrays(a, b, REMAT_GRADIENT, what);
}

/* Copies a's running statistics to b, so that both have seen as many steps. */
static void copy_buffers(remat_session *a, remat_session *b) {
    for (int64_t i = 0; i < remat_count(a, REMAT_BUFFER); i++) {
        float room[64];
        remat_array info;
        remat_array_info(a, REMAT_BUFFER, i, &info);
        ck_assert_uint_le(info.bytes, sizeof room);
        ck_assert_int_eq(remat_read(a, REMAT_BUFFER, i, room, info.bytes), REMAT_OK);
        ck_assert_int_eq(remat_write(b, REMAT_BUFFER, i, room, info.bytes), REMAT_OK);
    }
}

static void expect_same_evaluations(remat_session *a, remat_session *b, const char *what) {
    remat_step_result ra, rb;
    copy_buffers(a, b);
    ck_assert_int_eq(remat_evaluate(a, &ra), REMAT_OK);
    ck_assert_int_eq(remat_evaluate(b, &rb), REMAT_OK);
    ck_assert_msg(isfinite(ra.loss) && !memcmp(&ra.loss, &rb.loss, sizeof ra.loss), "%s: evaluated to %.9g, %.9g", what,
                  ra.loss, rb.loss);
    expect_same_arrays(a, b, REMAT_OUTPUT, what);
    /* both use the arena; a lean plan may need less than the evaluation */
    ck_assert_uint_eq(rm_plan_summary_of(b).planned_peak_bytes, rb.arena_peak_bytes);
}

/* The kind and index of the array whose gradient is number i. */
static remat_kind find_differentiated(const remat_session *s, int64_t i, int64_t *index) {
    remat_array info;
    remat_array_info(s, REMAT_GRADIENT, i, &info);
    remat_kind kind = i < remat_count(s, REMAT_PARAM) ? REMAT_PARAM : REMAT_INPUT;
    *index = remat_find(s, kind, info.name);
    return kind;
}

static double loss_at(remat_session *s, float *const *origin, float *const *direction, double distance) {
    for (int64_t i = 0; i < remat_count(s, REMAT_GRADIENT); i++) {
        remat_array info;
        int64_t index;
        remat_kind kind = find_differentiated(s, i, &index);
        remat_array_info(s, kind, index, &info);
        float *moved = malloc(info.bytes);
        for (uint64_t k = 0; k < info.bytes / 4; k++) moved[k] = (float)(origin[i][k] + distance * direction[i][k]);
        ck_assert_int_eq(remat_write(s, kind, index, moved, info.bytes), REMAT_OK);
        free(moved);
    }
    remat_step_result r;
    ck_assert_int_eq(outside_gradients(s, &r), REMAT_OK); /* not remat_evaluate, because dropout must be the same */
    return r.loss;
}

static double slope_at(remat_session *s, float *const *origin, float *const *direction, double e) {
    return (loss_at(s, origin, direction, e) - loss_at(s, origin, direction, -e)) / (2 * e);
}

/* Compares slopes with gradient . d, along a random direction d of the parameters and of the inputs that require a
 * gradient. */
static void expect_right_gradients(remat_session *s) {
    int64_t n = remat_count(s, REMAT_GRADIENT), index;
    float *origin[MAX_PARAMS + 2], *direction[MAX_PARAMS + 2];
    double expected = 0, length = 0;
    remat_step_result r;
    outside_gradients(s, &r);
    for (int64_t i = 0; i < n; i++) {
        remat_array info;
        remat_array_info(s, REMAT_GRADIENT, i, &info);
        float *gradient = malloc(info.bytes);
        origin[i] = malloc(info.bytes);
        direction[i] = malloc(info.bytes);
        remat_kind kind = find_differentiated(s, i, &index);
        remat_read(s, kind, index, origin[i], info.bytes);
        remat_read(s, REMAT_GRADIENT, i, gradient, info.bytes);
        for (uint64_t k = 0; k < info.bytes / 4; k++) {
            direction[i][k] = gradient[k] + 0.1f * draw_real(); /* mostly uphill, so that the sum is not near zero */
            expected += (double)direction[i][k] * gradient[k];
            length += (double)direction[i][k] * direction[i][k];
        }
        free(gradient);
    }
    double e = 1e-3 / (sqrt(length) + 1e-9);
    double far = slope_at(s, origin, direction, 2 * e), near = slope_at(s, origin, direction, e);
    double measured = near + (near - far) / 3; /* without the cubic term */
    /* the rounding of the float loss, 6e-8 of it, over 2e, in both slopes; and the term after the cubic one */
    double tolerance = 2e-2 * fabs(expected) + 4e-7 * (fabs(r.loss) + 1e-3) / e;
    ck_assert_msg(fabs(measured - expected) <= tolerance, "directional derivative %.6g, gradients say %.6g (+- %.2g)",
                  measured, expected, tolerance);
    for (int64_t i = 0; i < n; i++) {
        free(origin[i]);
        free(direction[i]);
    }
}

/* ---- Frozen parameters ---------------------------------------------------------------------------------------- */

/* Each array of `some` equals one of `all`, bit for bit. */
static void expect_some_of(remat_session *some, remat_session *all, remat_kind kind, const char *what) {
    for (int64_t i = 0; i < remat_count(some, kind); i++) {
        remat_array info;
        remat_array_info(some, kind, i, &info);
        float *x = malloc(info.bytes), *y = malloc(info.bytes);
        ck_assert_int_eq(remat_read(some, kind, i, x, info.bytes), REMAT_OK);
        ck_assert_int_eq(remat_read(all, kind, remat_find(all, kind, info.name), y, info.bytes), REMAT_OK);
        ck_assert_msg(!memcmp(x, y, info.bytes), "%s: %s differs", what, info.name);
        free(x);
        free(y);
    }
}

/* Draws some of the parameters. Returns their number, and their names, separated by commas. Besides them only inputs
 * have gradients. */
static int draw_trained(const net *n, char names[MAX_PARAMS * 16]) {
    int count = 0;
    names[0] = 0;
    for (int32_t v = 1; v < n->graph->n_values; v++) {
        const rm_value *value = &n->graph->value[v];
        if (value->origin != RM_VALUE_PARAM || draw(3)) continue;
        sprintf(names + strlen(names), "%s%s", count++ ? "," : "", value->name);
    }
    return count;
}

static void expect_nothing_frozen_has_a_gradient(const remat_session *s, const char *what) {
    remat_plan_summary plan = rm_plan_summary_of(s);
    uint64_t gradients = 0;
    for (int32_t v = 1; v < s->graph->n_values; v++) {
        const rm_value *value = &s->graph->value[v];
        if (value->origin != RM_VALUE_PARAM) continue;
        bool trained = value->needs_gradient, has = remat_find(s, REMAT_GRADIENT, value->name) >= 0;
        ck_assert_msg(trained == has, "%s: %s %s a gradient", what, value->name, has ? "has" : "lacks");
        gradients += trained ? rm_align_up(rm_desc_bytes(&value->desc)) : 0;
    }
    ck_assert_uint_eq(plan.gradients_bytes, gradients);
    ck_assert_uint_eq(plan.optimizer_bytes, 2 * gradients);
}

/* Gradients that nothing needs are not computed. */
static void expect_no_idle_backward(const rm_program *program, const char *what) {
    for (int32_t n = 0; n < program->n; n++) {
        rm_instruction item = rm_program_at(program, n);
        bool any = item.what != RM_DO_BACKWARD;
        for (int i = 0; i < REMAT_MAX_INPUTS; i++) any |= item.dx[i].space != RM_NOWHERE;
        for (int k = 0; k < REMAT_MAX_STATES; k++) any |= item.dstate_in[k].space != RM_NOWHERE;
        ck_assert_msg(any, "%s: node %d is differentiated without need", what, item.node);
    }
}

static void expect_no_idle_backwards(const remat_session *s, const char *what) {
    for (int32_t c = 0; c < s->chain.n_kinds; c++)
        for (int k = 0; k < s->chain.kind[c].n_options; k++)
            expect_no_idle_backward(&s->chain.kind[c].option[k].backward, what);
    expect_no_idle_backward(&s->chain.epilogue, what);
}

/* Under every strategy, the trained parameters have the same gradients as if all were trained, and the used bytes are
 * the planned ones. */
static void expect_frozen(const net *n, remat_value loss, remat_config config, remat_session *all, const char *what) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    char names[MAX_PARAMS * 16];
    if (!draw_trained(n, names)) return;
    config.train_only = names;
    config.plan_steps = NULL;
    config.optimizer = "adam";
    for (int i = 0; i < 5; i++) {
        remat_step_result r;
        remat_session *s;
        config.strategy = strategies[i];
        config.segments = i == 1 ? 2 : 0;
        remat_status status = remat_session_create(n->graph, loss, &config, &s);
        if (status == REMAT_INVALID && says_all(remat_last_error(), "differentiated|depends")) return;
        ck_assert_msg(status == REMAT_OK, "%s, %s trained: %s", what, names, remat_last_error());
        poison(s);
        fill_inputs(s, config.seed);
        expect_nothing_frozen_has_a_gradient(s, what);
        expect_no_idle_backwards(s, what);
        ck_assert_msg(outside_gradients(s, &r) == REMAT_OK, "%s: %s", what, remat_last_error());
        expect_some_of(s, all, REMAT_GRADIENT, what);
        if (i == 0) expect_gradients_in_double(s, what);
        expect_same_evaluations(all, s, what);
        remat_session_free(s);
    }
}

static void try_network(uint64_t seed, bool timed) {
    net n;
    rng_state = seed * 7919 + 1;
    remat_value loss = random_net_with(&n, timed, seed % 2 == 1);
    if (seed % 4 >= 2) loss = differentiate_some(&n);
    remat_config config = REMAT_CONFIG_INIT;
    config.threads = 1 + (int)(seed % 2);
    config.tile = timed ? 1 + draw(4) : draw(3);
    config.seed = seed;
    ask_for_outputs(&config, &n);
    config.n_outputs = n.n_differentiated;
    remat_session *bare = open_session(&n, loss, &config, seed);
    ask_for_outputs(&config, &n);
    remat_session *keep = open_session(&n, loss, &config, seed);
    char *steps = random_plan(keep), what[64];
    config.plan_steps = steps;
    config.verify_recompute = seed % 8 < 4;
    remat_session *other = open_session(&n, loss, &config, seed);
    snprintf(what, sizeof what, "seed %lu, %s", (unsigned long)seed, timed ? "timed" : "deep");
    expect_same_gradients(bare, keep, what);
    expect_same_gradients(keep, other, what);
    expect_same_evaluations(keep, other, what);
    expect_frozen(&n, loss, config, keep, what);
    expect_gradients_in_double(other, what);
    expect_right_gradients(other);
    free(steps);
    remat_session_free(bare);
    remat_session_free(keep);
    remat_session_free(other);
    remat_graph_free(n.graph);
}

enum { AT_ONCE = 8 };
static void try_some(uint64_t number, bool timed) {
    for (uint64_t i = 0; i < AT_ONCE; i++) try_network(number * AT_ONCE + i, timed);
}

START_TEST(random_networks_along_time_have_the_same_bits) { try_some((uint64_t)_i, true); }
END_TEST
START_TEST(random_networks_by_depth_have_the_same_bits) { try_some((uint64_t)_i, false); }
END_TEST

/* A given plan is checked. If any run is missing, the plan is refused and nothing runs. The same holds for any FREE,
 * except of states that a later run overwrites. */
START_TEST(incomplete_plans_are_refused) {
    net n;
    rng_state = 5; /* a network without superfluous recomputation in any plan */
    remat_value loss = random_net(&n, true);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 2;
    config.plan_only = true;
    remat_session *s;
    ck_assert_int_eq(remat_session_create(n.graph, loss, &config, &s), REMAT_OK);
    char *steps = random_plan_of(s, false);
    remat_session_free(s);
    for (char *line = steps; *line; line = strchr(line, '\n') + 1) {
        char *without = strdup(steps), *end = strchr(line, '\n') + 1;
        strcpy(without + (line - steps), end);
        config.plan_steps = without;
        remat_status status = remat_session_create(n.graph, loss, &config, &s);
        bool written_over = !strncmp(line, "free state", 10) && status == REMAT_OK;
        ck_assert_msg(status == REMAT_INVALID || written_over, "a plan without %.30s was accepted", line);
        if (written_over) remat_session_free(s);
        free(without);
    }
    free(steps);
    remat_graph_free(n.graph);
}
END_TEST

/* Networks of another size, and of the first again, which have the same bits. A few cannot have another size: initial
 * states that are parameters, weights made of rows. */
START_TEST(resizing_there_and_back_changes_nothing) {
    int resized = 0, tried = rm_cases(300, 40);
    for (int i = 0; i < tried; i++) {
        net n;
        rng_state = (uint64_t)(7000 + i);
        bool timed = draw(4);
        remat_value loss = random_net_with(&n, timed, draw(2));
        loss = differentiate_some(&n);
        int64_t t = timed ? n.steps : 0, b = n.batch;
        remat_graph *other, *back;
        remat_status status = remat_graph_resized(n.graph, t, t + 20, b, b + 50, &other);
        ck_assert(status == REMAT_OK || status == REMAT_INVALID);
        if (!status) {
            remat_config config = REMAT_CONFIG_INIT;
            ck_assert_msg(!remat_graph_resized(other, t ? t + 20 : 0, t, b + 50, b, &back), "%s", remat_last_error());
            ask_for_outputs(&config, &n);
            remat_session *s = open_session(&n, loss, &config, (uint64_t)i), *again;
            ck_assert_msg(!remat_session_create(back, loss, &config, &again), "%s", remat_last_error());
            fill_inputs(again, (uint64_t)i);
            expect_same_gradients(s, again, "resized");
            remat_session_free(s), remat_session_free(again);
            remat_graph_free(other), remat_graph_free(back);
            resized++;
        }
        remat_graph_free(n.graph);
    }
    ck_assert_msg(2 * resized > tried, "%d of %d networks", resized, tried);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("random");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, random_networks_along_time_have_the_same_bits, 0, rm_cases(50, 15));
    tcase_add_loop_test(tests, random_networks_by_depth_have_the_same_bits, 0, rm_cases(50, 15));
    tcase_add_test(tests, incomplete_plans_are_refused);
    tcase_add_test(tests, resizing_there_and_back_changes_nothing);
    return run_cases("random", tests);
}

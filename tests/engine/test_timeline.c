/* test_timeline.c: the data of plots. The bytes that the executor counts during a run are the planned ones, for each
 * step and kind. The curve's maximum is the plan's peak. Every point of memory against time is a plan that a session
 * can use. */
#include <string.h>

#include "engine/abi.h"
#include "engine/session/session.h"
#include "memory/host.h"
#include "tests/net.h"
#include "tests/suite.h"
#include "tests/zeros.h"

static const net nets[] = {
    {NET_LSTM, 2, 17, 8, 12, 100, 4, 0.1},
    {NET_GRU, 1, 300, 8, 16, 331, 1, 0},
    {NET_RNN, 3, 17, 8, 12, 64, 5, 0.3},
    {NET_LSTM, 1, 5, 3, 4, 1, 1, 0},
};
enum { NETS = sizeof nets / sizeof *nets };

typedef struct {
    const char *strategy;
    int64_t segments, tile;
    const char *spill;
    double budget; /* between the smallest possible (0) and that of `none` (1) */
} choice;
static const choice choices[] = {
    {"none", 0, 0, NULL, 0},     {"segments", 5, 8, NULL, 0}, {"sqrt", 0, 4, NULL, 0},       {"lean", 0, 8, NULL, 0},
    {"optimal", 0, 4, NULL, .1}, {"optimal", 0, 8, NULL, .6}, {"optimal", 0, 8, "/tmp", .1},
};
enum { CHOICES = sizeof choices / sizeof *choices };

static remat_status create(const net *n, const remat_config *config, remat_session **s) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_status status = remat_session_create(g, net_build(g, n), config, s);
    remat_graph_free(g);
    return status;
}

static uint64_t bytes_of_none(const net *n, remat_config config) {
    remat_session *s;
    config.strategy = "none";
    config.plan_only = true;
    config.spill_dir = NULL;
    CHECKED(create(n, &config, &s));
    uint64_t bytes = rm_plan_summary_of(s).budgeted_bytes;
    remat_session_free(s);
    return bytes;
}

static uint64_t least_bytes(const net *n, remat_config config) {
    remat_session *s = NULL;
    config.memory_budget = 1;
    ck_assert_int_eq(create(n, &config, &s), REMAT_INFEASIBLE);
    return remat_smallest_budget();
}

static remat_config configured(const net *n, const choice *c) {
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = c->strategy;
    config.segments = c->segments;
    config.tile = c->tile;
    config.threads = 2;
    config.optimizer = "adam";
    config.spill_dir = c->spill;
    if (c->budget > 0) {
        uint64_t least = least_bytes(n, config), most = bytes_of_none(n, config);
        config.memory_budget = least + (most > least ? (uint64_t)(c->budget * (double)(most - least)) : 0);
    }
    return config;
}

static uint64_t total(const remat_live_point *point) {
    uint64_t sum = 0;
    for (int k = 0; k < REMAT_LIVE_KINDS; k++) sum += point->bytes[k];
    return sum;
}

/* ---- Planned ---------------------------------------------------------------------------------------------------- */

static void check_planned(const remat_session *s, const remat_live_point *point, int64_t n) {
    remat_plan_summary plan = rm_plan_summary_of(s);
    uint64_t most = 0;
    ck_assert_int_eq(n, plan.n_steps);
    for (int64_t i = 0; i < n; i++) {
        ck_assert_int_eq(point[i].step, i);
        ck_assert(!i || point[i].begin_ns >= point[i - 1].begin_ns);
        ck_assert_uint_le(point[i].begin_ns, plan.step_ns);
        if (total(&point[i]) > most) most = total(&point[i]);
    }
    ck_assert_uint_eq(most, s->training.verdict.peak_bytes);
    ck_assert_uint_eq(total(&point[plan.peak_step]), most);
    ck_assert_uint_eq(total(&point[n - 1]), 0);
}

/* ---- Measured --------------------------------------------------------------------------------------------------- */

static void check_measured(const remat_live_point *planned, const remat_live_point *measured, int64_t n, int64_t m) {
    ck_assert_int_eq(n, m);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < REMAT_LIVE_KINDS; k++)
            ck_assert_msg(planned[i].bytes[k] == measured[i].bytes[k],
                          "step %lld, kind %d: %llu bytes planned, %llu counted", (long long)i, k,
                          (unsigned long long)planned[i].bytes[k], (unsigned long long)measured[i].bytes[k]);
        ck_assert(!i || measured[i].begin_ns >= measured[i - 1].begin_ns);
        ck_assert_uint_gt(measured[i].resident_bytes, 0);
    }
}

START_TEST(counted_bytes_are_the_planned_bytes) {
    const net *n = &nets[_i / CHOICES];
    remat_config config = configured(n, &choices[_i % CHOICES]);
    remat_session *s;
    remat_live_point *planned, *measured;
    int64_t n_planned, n_measured;
    CHECKED(create(n, &config, &s));
    CHECKED(remat_plan_timeline(s, &planned, &n_planned));
    check_planned(s, planned, n_planned);
    for (int step = 0; step < 3; step++) { /* a trace may be requested again */
        remat_step_result r;
        net_feed(s, n, step);
        if (step != 1) CHECKED(remat_trace_next(s));
        CHECKED(remat_step(s, 0.01, &r));
        CHECKED(remat_traced_timeline(s, &measured, &n_measured));
        check_measured(planned, measured, n_planned, n_measured);
        remat_text_free((char *)measured);
    }
    remat_text_free((char *)planned);
    remat_session_free(s);
}
END_TEST

/* By depth, with a skip connection over every layer: several objects share a piece. */
static remat_value deep_net(remat_graph *g) {
    enum { LAYERS = 9, WIDTH = 24, ROWS = 6 };
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDTH}), skipped = REMAT_NONE;
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){ROWS, WIDTH});
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        remat_value w = remat_param(g, name, 2, (int64_t[]){WIDTH, WIDTH}, remat_init_uniform(0.2));
        remat_value y = remat_gelu(g, remat_linear(g, x, w, REMAT_NONE));
        remat_value sum = skipped.id ? remat_add(g, y, skipped) : y;
        skipped = x;
        x = sum;
    }
    return remat_mse(g, x, target);
}

START_TEST(counted_bytes_are_the_planned_bytes_by_depth) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "optimal"};
    remat_config config = REMAT_CONFIG_INIT;
    remat_graph *g;
    remat_session *s;
    remat_live_point *planned, *measured;
    int64_t n_planned, n_measured;
    remat_step_result r;
    config.strategy = strategies[_i];
    config.segments = 4;
    config.threads = 1;
    CHECKED(remat_graph_create(&g));
    remat_value loss = deep_net(g);
    if (_i == 3) {
        config.memory_budget = 1;
        ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_INFEASIBLE);
        config.memory_budget = remat_smallest_budget();
    }
    CHECKED(remat_session_create(g, loss, &config, &s));
    CHECKED(write_zeros(s));
    CHECKED(remat_plan_timeline(s, &planned, &n_planned));
    check_planned(s, planned, n_planned);
    CHECKED(remat_trace_next(s));
    CHECKED(remat_gradients(s, &r));
    CHECKED(remat_traced_timeline(s, &measured, &n_measured));
    check_measured(planned, measured, n_planned, n_measured);
    remat_text_free((char *)measured);
    remat_text_free((char *)planned);
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

/* Tracing changes no bit, and a session that cannot be traced refuses. */
START_TEST(tracing_changes_no_bits) {
    const net *n = &nets[0];
    remat_config config = configured(n, &choices[1]);
    remat_session *plain, *traced, *planned;
    remat_live_point *points;
    int64_t count;
    remat_step_result a, b;
    CHECKED(create(n, &config, &plain));
    CHECKED(create(n, &config, &traced));
    ck_assert_int_eq(remat_traced_timeline(traced, &points, &count), REMAT_INVALID);
    CHECKED(remat_trace_next(traced));
    ck_assert_int_eq(remat_traced_timeline(traced, &points, &count), REMAT_INVALID);
    for (int step = 0; step < 2; step++) {
        net_feed(plain, n, step);
        net_feed(traced, n, step);
        CHECKED(remat_evaluate(traced, &b)); /* an evaluation in between is not traced */
        CHECKED(remat_step(plain, 0.01, &a));
        CHECKED(remat_step(traced, 0.01, &b));
        ck_assert(a.loss == b.loss && a.grad_norm == b.grad_norm && a.arena_peak_bytes == b.arena_peak_bytes);
    }
    config.plan_only = true;
    CHECKED(create(n, &config, &planned));
    ck_assert_int_eq(remat_trace_next(planned), REMAT_INVALID);
    remat_session_free(plain);
    remat_session_free(traced);
    remat_session_free(planned);
}
END_TEST

/* ---- Memory against time ---------------------------------------------------------------------------------------- */

static bool beats(const remat_pareto_point *x, const remat_pareto_point *y) {
    bool no_worse = x->budgeted_bytes <= y->budgeted_bytes && x->step_ns <= y->step_ns;
    return no_worse && (x->budgeted_bytes < y->budgeted_bytes || x->step_ns < y->step_ns);
}

static void check_frontier(const remat_pareto_point *point, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        bool beaten = false;
        for (int64_t k = 0; k < n; k++) beaten |= beats(&point[k], &point[i]);
        ck_assert_int_eq(point[i].frontier, !beaten);
        bool same = i && !strcmp(point[i].strategy, point[i - 1].strategy);
        ck_assert(!same || point[i].budgeted_bytes >= point[i - 1].budgeted_bytes);
    }
}

/* A session with this point's settings has its bytes exactly; `optimal` with that many bytes is at least as fast. */
static void check_attainable(const net *n, remat_config config, const remat_pareto_point *point) {
    remat_session *s;
    bool optimal = !strcmp(point->strategy, "optimal") || !strcmp(point->strategy, "spill");
    config.strategy = optimal ? "optimal" : point->strategy;
    config.segments = point->segments;
    config.memory_budget = optimal ? point->budgeted_bytes : 0;
    CHECKED(create(n, &config, &s));
    remat_plan_summary plan = rm_plan_summary_of(s);
    if (optimal) {
        ck_assert_uint_le(plan.budgeted_bytes, point->budgeted_bytes);
        ck_assert_msg(plan.step_ns <= point->step_ns, "%s at %llu bytes: %llu ns, not %llu", point->strategy,
                      (unsigned long long)point->budgeted_bytes, (unsigned long long)plan.step_ns,
                      (unsigned long long)point->step_ns);
    } else {
        ck_assert_uint_eq(plan.budgeted_bytes, point->budgeted_bytes);
        ck_assert_uint_eq(plan.activations_peak_bytes, point->activations_peak_bytes);
        ck_assert_uint_eq(plan.step_ns, point->step_ns);
    }
    remat_session_free(s);
}

START_TEST(every_point_is_a_plan) {
    const net *n = &nets[_i];
    remat_config config = configured(n, &choices[1]);
    config.device = "null";
    config.plan_only = true;
    config.spill_dir = _i % 2 ? "." : NULL;
    remat_session *s;
    remat_pareto_point *point;
    int64_t count, own = 0, kinds = 0, in_segments = 0, in_optimal = 0;
    CHECKED(create(n, &config, &s));
    CHECKED(remat_plan_pareto(s, &point, &count));
    remat_plan_summary plan = rm_plan_summary_of(s);
    ck_assert_int_le(count, 24 * 3 + 4);
    check_frontier(point, count);
    for (int64_t i = 0; i < count; i++) {
        check_attainable(n, config, &point[i]);
        own += !strcmp(point[i].strategy, "segments") && point[i].budgeted_bytes == plan.budgeted_bytes &&
               point[i].step_ns == plan.step_ns;
        kinds += !i || strcmp(point[i].strategy, point[i - 1].strategy);
        in_segments += !strcmp(point[i].strategy, "segments");
        in_optimal += !strcmp(point[i].strategy, "optimal");
    }
    config.strategy = "optimal";
    uint64_t promised = least_bytes(n, config), least = UINT64_MAX;
    for (int64_t i = 0; i < count; i++)
        if (point[i].budgeted_bytes < least) least = point[i].budgeted_bytes;
    ck_assert_uint_eq(least, promised); /* no point is below it, and one equals it */
    ck_assert_int_eq(own, 1);
    ck_assert_int_ge(kinds, 4);                               /* none, segments, sqrt, optimal at least */
    ck_assert_int_ge(in_segments, plan.n_stages > 4 ? 4 : 1); /* plans of several numbers, and of several budgets */
    ck_assert_int_ge(in_optimal, plan.n_stages > 4 ? 2 : 1);
    remat_text_free((char *)point);
    remat_session_free(s);
}
END_TEST

/* With recomputation off there is no plan that recomputes. */
START_TEST(without_recomputation_no_point_recomputes) {
    remat_config config = configured(&nets[0], &choices[0]);
    config.recompute = "off";
    config.plan_only = true;
    remat_session *s;
    remat_pareto_point *point;
    int64_t count;
    CHECKED(create(&nets[0], &config, &s));
    CHECKED(remat_plan_pareto(s, &point, &count));
    ck_assert_int_ge(count, 1);
    for (int64_t i = 0; i < count; i++) ck_assert(point[i].recompute_factor == 1);
    remat_text_free((char *)point);
    remat_session_free(s);
}
END_TEST

/* Every failing allocation is reported, and nothing leaks (the sanitizers check). */
START_TEST(failed_allocations_of_timelines_are_reported) {
    remat_config config = configured(&nets[3], &choices[1]);
    config.device = "null";
    config.spill_dir = ".";
    remat_session *s;
    CHECKED(create(&nets[3], &config, &s));
    for (int what = 0; what < 3; what++) {
        remat_status status = REMAT_MEMORY;
        for (int64_t nth = 1; status == REMAT_MEMORY; nth++) {
            remat_pareto_point *pareto = NULL;
            remat_live_point *points = NULL;
            int64_t count;
            rm_host_fail_at(nth);
            status = what == 0   ? remat_plan_pareto(s, &pareto, &count)
                     : what == 1 ? remat_plan_timeline(s, &points, &count)
                                 : remat_trace_next(s);
            rm_host_fail_at(0);
            remat_text_free((char *)pareto);
            remat_text_free((char *)points);
            ck_assert_msg(status == REMAT_OK || status == REMAT_MEMORY, "%d: %s", status, remat_last_error());
            ck_assert(status == REMAT_OK || nth < 100000);
        }
    }
    remat_session_free(s);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("timeline");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, counted_bytes_are_the_planned_bytes, 0, NETS * CHOICES);
    tcase_add_loop_test(tests, counted_bytes_are_the_planned_bytes_by_depth, 0, 4);
    tcase_add_test(tests, tracing_changes_no_bits);
    tcase_add_loop_test(tests, every_point_is_a_plan, 0, NETS);
    tcase_add_test(tests, without_recomputation_no_point_recomputes);
    tcase_add_test(tests, failed_allocations_of_timelines_are_reported);
    return run_cases("engine/report/timeline", tests);
}

/* test_budget.c: memory budgets hold. Random networks and budgets: the planned bytes are the used bytes, and never
 * exceed the budget, whether stages are recomputed, lean, spilled or kept. The smallest budget that a refusal names
 * works, and one byte less does not. A larger budget never gives a slower plan. Most networks run on the null device,
 * which counts without computing, so that they can be as long as real ones; some train on the CPU. */
#include <check.h>
#include <string.h>

#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/net.h"
#include "tests/says.h"
#include "tests/suite.h"

static uint64_t rng_state;
static int64_t draw(int64_t low, int64_t high) { /* inclusive */
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((rng_state >> 33) % (uint64_t)(high - low + 1));
}

/* Draws small numbers as often as large ones. */
static int64_t draw_scale(int64_t low, int64_t high) {
    int64_t value = high;
    while (value > low && draw(0, 1)) value = low + (value - low) / 2;
    return draw(low, value);
}

typedef struct {
    net net;
    remat_config config;
} setting;

static setting draw_setting(uint64_t seed, bool on_cpu) {
    static const char *const optimizers[] = {"sgd", "adam"};
    static const char *const ways[] = {"auto", "exact-only", "off"};
    rng_state = seed * 2654435761u + 17;
    setting s = {.net = {.cell = (net_cell)draw(0, NET_CELLS - 1),
                         .layers = (int)draw(1, 3),
                         .vocabulary = draw(2, 60),
                         .embed = draw(1, 40),
                         .hidden = draw_scale(1, on_cpu ? 40 : 300),
                         .timesteps = draw_scale(16, on_cpu ? 400 : 100000),
                         .batch = draw_scale(1, on_cpu ? 8 : 64),
                         .dropout = draw(0, 1) ? 0.2 : 0},
                 .config = REMAT_CONFIG_INIT};
    s.config.device = on_cpu ? "cpu" : "null";
    s.config.threads = 1 + (int)(seed % 2);
    s.config.optimizer = optimizers[draw(0, 1)];
    s.config.recompute = ways[draw(0, 2)];
    s.config.spill_dir = draw(0, 2) ? NULL : "/tmp";
    s.config.tile = draw(0, 2) ? 0 : s.net.timesteps / draw(1, 60) + 1;
    s.config.strategy = "optimal";
    s.config.fold_embedding = draw(0, 1);
    return s;
}

static remat_status open_with(const setting *setting, remat_session **session) {
    remat_graph *graph;
    CHECKED(remat_graph_create(&graph));
    remat_value loss = net_build(graph, &setting->net);
    CHECKED(remat_graph_check(graph));
    remat_status status = remat_session_create(graph, loss, &setting->config, session);
    remat_graph_free(graph);
    return status;
}

/* The smallest sufficient budget, as reported by a refusal. */
static uint64_t smallest_of(const setting *from) {
    setting s = *from;
    remat_session *session;
    s.config.memory_budget = 1;
    s.config.plan_only = true;
    ck_assert_int_eq(open_with(&s, &session), REMAT_INFEASIBLE);
    ck_says_all(remat_last_error(), "memory budget of 1 bytes|peak|step|buffers");
    return remat_smallest_budget();
}

static uint64_t largest_of(const setting *from) {
    setting s = *from;
    remat_session *session;
    s.config.strategy = "none";
    s.config.plan_only = true;
    CHECKED(open_with(&s, &session));
    uint64_t bytes = rm_plan_summary_of(session).budgeted_bytes;
    remat_session_free(session);
    return bytes;
}

/* Makes one step; the counted peak is the planned one. */
static void run_within(const setting *s) {
    remat_session *session;
    remat_step_result result;
    CHECKED(open_with(s, &session));
    remat_plan_summary plan = rm_plan_summary_of(session);
    ck_assert_uint_le(plan.budgeted_bytes, s->config.memory_budget);
    ck_assert_uint_eq(plan.budgeted_bytes, plan.planned_peak_bytes + plan.workspace_bytes + plan.tables_bytes);
    net_feed(session, &s->net, 0);
    CHECKED(remat_step(session, 0.01, &result));
    ck_assert_uint_le(result.arena_peak_bytes, plan.planned_peak_bytes);
    ck_assert(!strcmp(s->config.device, "null") || (result.loss > 0 && result.loss < 100));
    CHECKED(remat_evaluate(session, &result)); /* both use the arena; sometimes the evaluation needs more */
    ck_assert_uint_eq(result.arena_peak_bytes, plan.planned_peak_bytes);
    remat_session_free(session);
}

static void refuse_at(const setting *from, uint64_t budget, uint64_t smallest) {
    setting s = *from;
    remat_session *session;
    s.config.memory_budget = budget;
    ck_assert_msg(open_with(&s, &session) == REMAT_INFEASIBLE,
                  "a budget of %lu bytes was accepted, below the smallest, %lu", (unsigned long)budget,
                  (unsigned long)smallest);
    ck_assert_uint_eq(remat_smallest_budget(), smallest);
}

static void try_setting(uint64_t seed, bool on_cpu) {
    setting s = draw_setting(seed, on_cpu);
    uint64_t least = smallest_of(&s), most = largest_of(&s);
    ck_assert_uint_le(least, most);
    s.config.memory_budget = draw(0, 2) ? least + (most - least) / 1000 * (uint64_t)draw(0, 1000) : least;
    run_within(&s);
    if (seed % 5) return;
    s.config.memory_budget = least;
    run_within(&s);
    refuse_at(&s, least - 1, least);
    refuse_at(&s, least - (uint64_t)draw(1, (int64_t)least - 1), least);
}

START_TEST(used_bytes_are_the_planned_bytes) { try_setting((uint64_t)_i, false); }
END_TEST
START_TEST(used_bytes_are_the_planned_bytes_on_the_cpu) { try_setting((uint64_t)_i + 5000, true); }
END_TEST

START_TEST(larger_budgets_never_give_slower_plans) {
    setting s = draw_setting((uint64_t)_i + 9000, false);
    uint64_t least = smallest_of(&s), most = largest_of(&s), peak = 0, time = UINT64_MAX;
    s.config.plan_only = true;
    for (int i = 0; i <= 12; i++) {
        remat_session *session;
        s.config.memory_budget = least + (most - least) / 12 * (uint64_t)i;
        CHECKED(open_with(&s, &session));
        remat_plan_summary plan = rm_plan_summary_of(session);
        ck_assert_uint_ge(plan.budgeted_bytes, peak);
        ck_assert_uint_le(plan.step_ns, time);
        peak = plan.budgeted_bytes;
        time = plan.step_ns;
        remat_session_free(session);
    }
}
END_TEST

/* Without a calibration, measurements must not influence the plan. A device's rates are measured in each process and
 * for each number of threads, so here another number of threads stands for another process. */
START_TEST(plans_do_not_depend_on_measured_rates) {
    setting s = draw_setting(300 + (uint64_t)_i, true);
    remat_session *session;
    s.config.plan_only = true;
    s.config.threads = 1;
    uint64_t bytes[2], least = smallest_of(&s);
    char *steps[2];
    s.config.memory_budget = least + least / 4;
    for (int k = 0; k < 2; k++) {
        s.config.threads = k + 1;
        CHECKED(open_with(&s, &session));
        steps[k] = remat_plan_steps_text(session);
        bytes[k] = rm_plan_summary_of(session).planned_peak_bytes;
        remat_session_free(session);
    }
    ck_assert_str_eq(steps[0], steps[1]);
    ck_assert_uint_eq(bytes[0], bytes[1]);
    remat_text_free(steps[0]);
    remat_text_free(steps[1]);
}
END_TEST

/* A plan has the same predicted time whether a budget chose it or the caller gave it. */
START_TEST(predicted_time_is_independent_of_the_budget) {
    setting s = draw_setting(300 + (uint64_t)_i, true);
    remat_session *session;
    s.config.plan_only = true;
    uint64_t least = smallest_of(&s);
    s.config.memory_budget = least + least / 4;
    CHECKED(open_with(&s, &session));
    remat_plan_summary chosen = rm_plan_summary_of(session);
    char *steps = remat_plan_steps_text(session);
    remat_session_free(session);
    s.config.memory_budget = 0;
    s.config.strategy = "none";
    s.config.plan_steps = steps;
    CHECKED(open_with(&s, &session));
    remat_plan_summary written = rm_plan_summary_of(session);
    remat_session_free(session);
    ck_assert_uint_eq(chosen.step_ns, written.step_ns);
    ck_assert_uint_eq(chosen.recompute_ns, written.recompute_ns);
    ck_assert_uint_eq(chosen.fixed_ns, written.fixed_ns);
    remat_text_free(steps);
}
END_TEST

/* Every strategy respects the budget, and the refusal names the strategy. */
START_TEST(every_strategy_respects_the_budget) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    setting s = draw_setting(77, true);
    remat_session *session;
    s.config.strategy = strategies[_i];
    s.config.segments = 3;
    uint64_t least = smallest_of(&s);
    ck_says_all(remat_last_error(), strategies[_i]);
    s.config.memory_budget = least;
    run_within(&s);
    s.config.memory_budget = least - 1;
    ck_assert_int_eq(open_with(&s, &session), REMAT_INFEASIBLE);
}
END_TEST

/* REMAT_LONG_TESTS=1 tries a thousand, in release and sanitizer builds. */
int main(void) {
    int settings = rm_cases(1000, 40);
    TCase *tests = tcase_create("budget");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, used_bytes_are_the_planned_bytes, 0, settings);
    tcase_add_loop_test(tests, used_bytes_are_the_planned_bytes_on_the_cpu, 0, settings / 5);
    tcase_add_loop_test(tests, larger_budgets_never_give_slower_plans, 0, 10);
    tcase_add_loop_test(tests, plans_do_not_depend_on_measured_rates, 0, 4);
    tcase_add_loop_test(tests, predicted_time_is_independent_of_the_budget, 0, 4);
    tcase_add_loop_test(tests, every_strategy_respects_the_budget, 0, 5);
    return run_cases("budget", tests);
}

/* test_spill.c: plans that move saved blocks and states to a file and back. Loss, norms, gradients and parameters are
 * bit-identical to `none`. Nothing is allocated after the first step. A failing disk fails one step with one message.
 * The size of the file is known before the first step. */
#define _GNU_SOURCE
#include "tests/engine/interpose.h"

#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>

#include "engine/session/session.h"
#include "memory/family.h"
#include "memory/host.h"
#include "memory/spill.h"
#include "tests/engine/poison.h"
#include "tests/net.h"
#include "tests/says.h"
#include "tests/suite.h"

#define STEPS 3

/* ---- Plans that spill --------------------------------------------------------------------------- */

/* How to change a strategy's plan. Each stage has one state, which the next stage reads; so a stage reads the state of
 * the stage before it. */
typedef struct {
    const char *strategy;
    int64_t segments, tile;
    bool states;        /* states move to the file, too */
    int64_t lag, ahead; /* runs between SAVE and FREE; stages between LOAD and its backward run */
    int option;         /* the option of all stages that have it */
} spilling;

typedef struct {
    rm_plan out;
    bool away[2][512];
    struct {
        rm_object object;
        int64_t stage, due; /* FREE after so many runs */
    } late[1024];
    int64_t n_late, runs;
} writer;

static int64_t number(rm_object object, int64_t stage) { return object == RM_STATE ? stage - 1 : stage; }

static void free_late(writer *w, int64_t all_from_stage) {
    int64_t kept = 0;
    for (int64_t i = 0; i < w->n_late; i++)
        if (w->late[i].due <= w->runs || w->late[i].stage >= all_from_stage)
            CHECKED(rm_plan_free_object(&w->out, w->late[i].object, number(w->late[i].object, w->late[i].stage)));
        else
            w->late[kept++] = w->late[i];
    w->n_late = kept;
}

static void send_out(writer *w, rm_object object, int64_t s, int64_t lag) {
    CHECKED(rm_plan_save(&w->out, object, number(object, s)));
    w->away[object][s] = true;
    w->late[w->n_late].object = object;
    w->late[w->n_late].stage = s;
    w->late[w->n_late++].due = w->runs + lag;
}

static void fetch(writer *w, int64_t from, int64_t to) {
    free_late(w, from);
    for (int64_t s = to; s >= 0 && s >= from; s--)
        for (int object = 0; object < 2; object++) {
            rm_object kind = (rm_object)object;
            if (w->away[object][s]) CHECKED(rm_plan_load(&w->out, kind, number(kind, s)));
            w->away[object][s] = false;
        }
}

static void spill_plan(const rm_problem *problem, const spilling *how, rm_plan *plan) {
    writer w = {0};
    ck_assert_int_lt(problem->n_stages, 512);
    for (int64_t i = 0; i < plan->n_steps; i++) {
        rm_step step = plan->step[i];
        int64_t s = step.index;
        if (step.verb == RM_FREE) continue; /* added again below */
        bool keeps = step.verb == RM_RUN_FORWARD && step.option != RM_DROP;
        if (keeps && how->option < problem->stage[s].n_options) step.option = (int8_t)how->option;
        if (step.verb == RM_RUN_BACKWARD) fetch(&w, s - how->ahead, s);
        CHECKED(rm_plan_add(&w.out, step));
        w.runs++;
        free_late(&w, INT64_MAX);
        if (keeps && s % 7 != 3) send_out(&w, RM_SAVED, s, how->lag);
        if (keeps && how->states && s > 0 && s % 5 != 2) send_out(&w, RM_STATE, s, how->lag);
    }
    rm_plan_free(plan);
    *plan = w.out;
    CHECKED(rm_plan_free_dead(problem, plan));
}

static char *text_of_plan(const rm_problem *problem, const rm_plan *plan) {
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    CHECKED(rm_plan_write(problem, plan, file));
    fclose(file);
    return text;
}

/* The text of such a plan. Free it with free(). */
static char *plan_text(const remat_graph *g, remat_value loss, const remat_config *config, const spilling *how) {
    remat_config only = *config;
    only.plan_only = true;
    only.spill_dir = NULL;
    remat_session *s;
    CHECKED(remat_session_create(g, loss, &only, &s));
    spill_plan(&s->chain.problem, how, &s->training.plan);
    char *text = text_of_plan(&s->chain.problem, &s->training.plan);
    remat_session_free(s);
    return text;
}

/* ---- Runs --------------------------------------------------------------------------------------- */

typedef struct {
    double loss[STEPS], norm[STEPS];
    unsigned char *gradients, *parameters;
    size_t bytes;
    uint64_t moved_bytes;
} trace;

static remat_config configured(const spilling *how, int threads) {
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = how->strategy;
    config.segments = how->segments;
    config.tile = how->tile;
    config.threads = threads;
    config.seed = 5;
    config.optimizer = "adamw";
    config.clip_grad_norm = 0.5;
    config.spill_dir = "/tmp";
    return config;
}

/* What observers were told: bytes moved, and stages run, by kind. */
static _Atomic uint64_t observed_bytes[REMAT_EVENT_PROGRAM + 1];
static _Atomic int64_t observed[REMAT_EVENT_PROGRAM + 1];

static void observe(void *context, const remat_event *event) {
    observed[event->kind] += context == observed && event->begin_ns <= event->end_ns; /* Check's asserts allocate */
    observed_bytes[event->kind] += event->bytes;
}
static const remat_observer observer = {sizeof observer, (void *)observed, observe};

static void forget_observed(void) {
    for (int k = 0; k <= REMAT_EVENT_PROGRAM; k++) {
        observed[k] = 0;
        observed_bytes[k] = 0;
    }
}

/* An observed session whose plan spills. */
static remat_session *spilling_session(const net *n, const spilling *how, int threads) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, n);
    remat_config config = configured(how, threads);
    char *text = plan_text(g, loss, &config, how);
    config.plan_steps = text;
    config.observer = &observer;
    forget_observed();
    CHECKED(remat_session_create(g, loss, &config, &s));
    poison(s);
    ck_assert_int_gt(s->training.transfers.count, 0);
    free(text);
    remat_graph_free(g);
    return s;
}

static remat_session *keeping_session(const net *n, const spilling *how, int threads) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_config config = configured(how, threads);
    config.strategy = "none";
    config.spill_dir = NULL;
    CHECKED(remat_session_create(g, net_build(g, n), &config, &s));
    remat_graph_free(g);
    return s;
}

static trace run(remat_session *s, const net *n) {
    trace t = {0};
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r;
        net_feed(s, n, step);
        CHECKED(remat_step(s, 0.01, &r));
        ck_assert(isfinite(r.loss) && r.loss > 0 && isfinite(r.grad_norm) && r.grad_norm > 0);
        t.loss[step] = r.loss;
        t.norm[step] = r.grad_norm;
        if (step == 1) CHECKED(remat_evaluate(s, &r)); /* uses the same arena for other data */
    }
    if (s->runner.tier) t.moved_bytes = rm_spill_used((rm_spill *)s->runner.tier).load_bytes / STEPS;
    t.gradients = net_read_all(s, REMAT_GRADIENT, &t.bytes);
    t.parameters = net_read_all(s, REMAT_PARAM, &t.bytes);
    return t;
}

static void drop(trace *t) {
    free(t->gradients);
    free(t->parameters);
}

static void same(const trace *a, const trace *b) {
    ck_assert_mem_eq(a->loss, b->loss, sizeof a->loss);
    ck_assert_mem_eq(a->norm, b->norm, sizeof a->norm);
    ck_assert_uint_eq(a->bytes, b->bytes);
    ck_assert(!memcmp(a->gradients, b->gradients, a->bytes));
    ck_assert(!memcmp(a->parameters, b->parameters, a->bytes));
}

static net small(int cell) {
    return (net){.cell = (net_cell)cell,
                 .layers = 2,
                 .vocabulary = 13,
                 .embed = 6,
                 .hidden = 19,
                 .timesteps = 203,
                 .batch = 3,
                 .dropout = 0.2};
}

static const spilling ways[] = {
    {"none", 0, 16, false, 0, 0, 0},   {"none", 0, 8, true, 2, 1, 0},      {"none", 0, 1, true, 1, 2, 1},
    {"segments", 4, 8, true, 1, 3, 0}, {"segments", 5, 8, false, 3, 0, 1}, {"none", 0, 128, true, 1, 1, 2},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Every pass and every stage's runs are observed, and every transfer with its bytes. */
static void check_observed(remat_session *s) {
    rm_spill_use use = rm_spill_used((rm_spill *)s->runner.tier);
    int64_t stages = s->chain.n_stages, runs = stages + s->training.verdict.recomputed_stages;
    ck_assert_int_eq(observed[REMAT_EVENT_GRADIENTS], STEPS);
    ck_assert_int_eq(observed[REMAT_EVENT_UPDATE], STEPS);
    ck_assert_int_eq(observed[REMAT_EVENT_EVALUATION], 1);
    ck_assert_int_eq(observed[REMAT_EVENT_FORWARD], (STEPS + 1) * stages);
    ck_assert_int_eq(observed[REMAT_EVENT_RECOMPUTE], STEPS * (runs - stages));
    ck_assert_int_eq(observed[REMAT_EVENT_BACKWARD], STEPS * stages);
    ck_assert_int_eq(observed[REMAT_EVENT_LIVE], STEPS * (runs + stages));
    ck_assert_uint_eq(observed_bytes[REMAT_EVENT_SAVE], use.save_bytes);
    ck_assert_uint_eq(observed_bytes[REMAT_EVENT_LOAD], use.load_bytes);
    ck_assert_int_gt(observed[REMAT_EVENT_WAIT], 0);
}

START_TEST(spilling_plans_have_the_same_bits) {
    const spilling *how = &ways[_i / 2 % WAYS];
    net n = small(_i / 2 / WAYS);
    int threads = 1 + _i % 2;
    remat_session *keeping = keeping_session(&n, how, threads), *s = spilling_session(&n, how, threads);
    trace kept = run(keeping, &n), spilled = run(s, &n);
    same(&kept, &spilled);
    ck_assert_uint_eq(spilled.moved_bytes, s->training.verdict.load_bytes);
    check_observed(s);
    drop(&kept);
    drop(&spilled);
    remat_session_free(keeping);
    remat_session_free(s);
}
END_TEST

/* The planner's own plans, for a disk so slow that a part is recomputed: with and without spilled states, small and
 * large windows. Loaded data are compared with the originals, too. */
START_TEST(spilling_plans_of_the_planner_have_the_same_bits) {
    net n = small(NET_LSTM);
    spilling how = {.strategy = "none", .tile = 8};
    remat_graph *g;
    remat_session *planning, *keeping = keeping_session(&n, &how, 2);
    trace kept = run(keeping, &n);
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, &n);
    remat_config config = configured(&how, 2);
    config.plan_only = true;
    CHECKED(remat_session_create(g, loss, &config, &planning));
    rm_problem *problem = &planning->chain.problem;
    uint64_t stage_ns = problem->stage[1].option[0].forward.time_ns, bytes = problem->stage[1].option[0].saved_bytes;
    problem->tier.save_bytes_per_s = problem->tier.load_bytes_per_s = bytes * 1000000000 / (3 * stage_ns);
    problem->tier.latency_ns = problem->tier.host_bytes = 0; /* more than the whole network needs */
    rm_family family;
    CHECKED(rm_family_spill(problem, &(rm_plan_request){0}, &family));
    int64_t mixed = 0;
    config.plan_only = false;
    config.verify_recompute = true;
    for (int64_t i = _i; i < family.count; i += 1 + family.count / 4) {
        rm_plan plan = {0};
        rm_proposal proposal;
        CHECKED(family.write(&family, problem, i, &plan, &proposal));
        char *text = text_of_plan(problem, &plan);
        config.plan_steps = text;
        remat_session *s;
        CHECKED(remat_session_create(g, loss, &config, &s));
        trace spilled = run(s, &n);
        same(&kept, &spilled);
        mixed += s->training.transfers.count > 0 && s->training.verdict.recomputed_stages > 0;
        drop(&spilled);
        remat_session_free(s);
        free(text);
        rm_plan_free(&plan);
    }
    ck_assert_int_gt(mixed, 0);
    rm_family_free(&family);
    drop(&kept);
    remat_session_free(planning);
    remat_session_free(keeping);
    remat_graph_free(g);
}
END_TEST

/* Spilling adds one thread and nothing else: steps 2..4 call no malloc, free or mmap. */
START_TEST(spilling_allocates_nothing_after_the_first_step) {
    const spilling *how = &ways[_i];
    net n = small(NET_LSTM);
    remat_session *s = spilling_session(&n, how, 2);
    remat_step_result r;
    net_feed(s, &n, 0);
    CHECKED(remat_step(s, 0.01, &r));
    remat_status status = REMAT_OK;
    interposed before = interposed_now();
    int64_t ours = rm_host_allocations();
    for (int step = 1; step < 4 && !status; step++) status = remat_step(s, 0.01, &r);
    interposed after = interposed_now();
    CHECKED(status);
    ck_assert_int_eq(after.calls - before.calls, 0);
    ck_assert_int_eq(after.outstanding - before.outstanding, 0);
    ck_assert_int_eq(rm_host_allocations() - ours, 0);
    remat_session_free(s);
}
END_TEST

/* A disk that fails in the middle of a step: one message with directory and reason. The session continues with the same
 * bits, as if the step had not been made. */
START_TEST(a_failing_disk_fails_one_step) {
    const spilling *how = &ways[1 + _i % 2];
    net n = small(NET_GRU);
    remat_session *keeping = keeping_session(&n, how, 2), *s = spilling_session(&n, how, 2);
    for (int nth = 1 + _i; nth < 400; nth += 37) {
        remat_step_result r;
        net_feed(s, &n, 0);
        rm_spill_fail_at(nth, _i % 3 ? EIO : ENOSPC);
        remat_status status = remat_step(s, 0.01, &r);
        rm_spill_fail_at(0, 0);
        if (status == REMAT_OK) { /* there were fewer reads and writes */
            ck_assert_int_gt(nth, 20);
            remat_session_free(s);
            s = spilling_session(&n, how, 2);
            break;
        }
        ck_assert_int_eq(status, REMAT_IO);
        ck_says_all(remat_last_error(), "/tmp");
        ck_says_all(remat_last_error(), strerror(_i % 3 ? EIO : ENOSPC));
        ck_assert_int_eq(remat_update(s, 0.01, &r), REMAT_INVALID); /* the step gave no gradients */
    }
    trace kept = run(keeping, &n), spilled = run(s, &n);
    same(&kept, &spilled);
    drop(&kept);
    drop(&spilled);
    remat_session_free(keeping);
    remat_session_free(s);
}
END_TEST

/* The error comes before the first step: the session is not created. */
START_TEST(a_full_disk_is_reported_before_the_first_step) {
    net n = small(NET_LSTM);
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, &n);
    remat_config config = configured(&ways[1], 1);
    char *text = plan_text(g, loss, &config, &ways[1]);
    config.plan_steps = text;
    config.spill_dir = "/no/such/directory";
    ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_IO);
    ck_says_all(remat_last_error(), "/no/such/directory");
    config.spill_dir = NULL;
    ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "second tier");
    struct rlimit before, small = {0};
    ck_assert(!getrlimit(RLIMIT_FSIZE, &before));
    small = (struct rlimit){.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
    ck_assert(!setrlimit(RLIMIT_FSIZE, &small));
    config.spill_dir = "/tmp";
    remat_status status = remat_session_create(g, loss, &config, &s);
    ck_assert(!setrlimit(RLIMIT_FSIZE, &before));
    ck_assert_int_eq(status, REMAT_IO);
    ck_says_all(remat_last_error(), "0.1 MiB");
    free(text);
    remat_graph_free(g);
}
END_TEST

/* The null device counts transfers like other work. A session that only plans, or whose plan does not spill, opens no
 * file. */
START_TEST(null_device_counts_transfers) {
    net n = small(NET_LSTM);
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, &n);
    remat_config config = configured(&ways[1], 1);
    char *text = plan_text(g, loss, &config, &ways[1]);
    CHECKED(remat_session_create(g, loss, &config, &s));
    ck_assert_ptr_null(s->runner.tier);
    ck_assert_uint_gt(s->chain.problem.tier.load_bytes_per_s, 0);
    remat_session_free(s);
    config.plan_steps = text;
    config.plan_only = true;
    CHECKED(remat_session_create(g, loss, &config, &s));
    ck_assert_ptr_null(s->runner.tier);
    ck_assert_int_gt(s->training.transfers.count, 0);
    remat_session_free(s);
    config.plan_only = false;
    config.device = "null";
    CHECKED(remat_session_create(g, loss, &config, &s));
    CHECKED(remat_step(s, 0.01, &r));
    CHECKED(remat_step(s, 0.01, &r));
    ck_assert_uint_eq(s->api->tier_given(s->runner.tier), 2 * (uint64_t)s->training.transfers.count);
    remat_session_free(s);
    free(text);
    remat_graph_free(g);
}
END_TEST

/* `optimal` with a spill directory and a budget that is fast only with spilling: it runs, within the budget, with the
 * same bits. */
START_TEST(optimal_spills_within_the_budget) {
    net n = small(NET_LSTM);
    n.timesteps = 1200;
    spilling how = {.strategy = "optimal", .tile = 8};
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, &n);
    remat_config config = configured(&how, 2);
    config.memory_budget = 1; /* refused; the message names the smallest budget */
    ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_INFEASIBLE);
    config.memory_budget = 0;
    config.plan_only = true;
    CHECKED(remat_session_create(g, loss, &config, &s));
    uint64_t resident = rm_problem_resident_bytes(&s->chain.problem);
    remat_session_free(s);
    config.plan_only = false;
    config.memory_budget = resident + (4 << 20);
    remat_status status = remat_session_create(g, loss, &config, &s);
    ck_assert_msg(!status, "%s", remat_last_error());
    remat_session *keeping = keeping_session(&n, &how, 2);
    trace kept = run(keeping, &n), spilled = run(s, &n);
    same(&kept, &spilled);
    drop(&kept);
    drop(&spilled);
    remat_session_free(keeping);
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("spill");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, spilling_plans_have_the_same_bits, 0, 2 * WAYS * NET_CELLS);
    tcase_add_loop_test(tcase, spilling_plans_of_the_planner_have_the_same_bits, 0, 2);
    tcase_add_loop_test(tcase, spilling_allocates_nothing_after_the_first_step, 0, WAYS);
    tcase_add_loop_test(tcase, a_failing_disk_fails_one_step, 0, 4);
    tcase_add_test(tcase, a_full_disk_is_reported_before_the_first_step);
    tcase_add_test(tcase, null_device_counts_transfers);
    tcase_add_test(tcase, optimal_spills_within_the_budget);
    return run_cases("spill", tcase);
}

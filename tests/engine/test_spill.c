/* test_spill.c: plans that move saved blocks and states to a file and back. Loss, norms, gradients and parameters are those
 * of `none` to the last bit; nothing is allocated after the first step; a disk that fails costs one sentence and one step;
 * what the file takes was said before. */
#define _GNU_SOURCE
#include "tests/engine/interpose.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include "engine/session.h"
#include "memory/host.h"
#include "memory/spill.h"
#include "tests/net.h"

#define STEPS 4

/* ---- Plans that spill --------------------------------------------------------------------------- */

/* How the plan of a strategy is changed. */
typedef struct {
    const char *strategy;
    int64_t segments, tile;
    bool states;        /* states go out, too */
    int64_t lag, ahead; /* runs between SAVE and FREE; stages between LOAD and its backward run */
    int option;         /* that all stages are kept in, where they have it */
} spilling;

typedef struct {
    rm_plan out;
    bool away[2][512];
    struct {
        rm_object object;
        int64_t stage, due; /* FREE when so many runs have been made */
    } late[1024];
    int64_t n_late, runs;
} writer;

static void free_late(writer *w, int64_t all_from_stage) {
    int64_t kept = 0;
    for (int64_t i = 0; i < w->n_late; i++)
        if (w->late[i].due <= w->runs || w->late[i].stage >= all_from_stage)
            CHECKED(rm_plan_free_object(&w->out, w->late[i].object, w->late[i].stage));
        else
            w->late[kept++] = w->late[i];
    w->n_late = kept;
}

static void send_out(writer *w, rm_object object, int64_t s, int64_t lag) {
    CHECKED(rm_plan_save(&w->out, object, s));
    w->away[object][s] = true;
    w->late[w->n_late].object = object;
    w->late[w->n_late].stage = s;
    w->late[w->n_late++].due = w->runs + lag;
}

static void fetch(writer *w, int64_t from, int64_t to) {
    free_late(w, from);
    for (int64_t s = to; s >= 0 && s >= from; s--)
        for (int object = 0; object < 2; object++) {
            if (w->away[object][s]) CHECKED(rm_plan_load(&w->out, (rm_object)object, s));
            w->away[object][s] = false;
        }
}

static void spill_plan(const rm_problem *problem, const spilling *how, rm_plan *plan) {
    writer w = {0};
    ck_assert_int_lt(problem->n_stages, 512);
    for (int64_t i = 0; i < plan->n_steps; i++) {
        rm_step step = plan->step[i];
        int64_t s = step.index;
        bool keeps = step.verb == RM_RUN_FORWARD && step.option != RM_DROP;
        if (keeps && how->option < problem->stage[s].n_options) step.option = (int8_t)how->option;
        if (step.verb == RM_RUN_BACKWARD) fetch(&w, s - how->ahead, s);
        CHECKED(rm_plan_add(&w.out, step));
        if (step.verb != RM_RUN_FORWARD && step.verb != RM_RUN_BACKWARD) continue;
        w.runs++;
        free_late(&w, INT64_MAX);
        if (keeps && s % 7 != 3) send_out(&w, RM_SAVED, s, how->lag);
        if (keeps && how->states && s % 5 != 2) send_out(&w, RM_STATE, s, how->lag);
    }
    rm_plan_free(plan);
    *plan = w.out;
}

/* The text of such a plan, to be freed with free(). */
static char *plan_text(const remat_graph *g, remat_value loss, const remat_config *config, const spilling *how) {
    remat_config only = *config;
    only.plan_only = true;
    only.spill_dir = NULL;
    remat_session *s;
    CHECKED(remat_session_create(g, loss, &only, &s));
    spill_plan(&s->chain.problem, how, &s->training.plan);
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    CHECKED(rm_plan_write(&s->chain.problem, &s->training.plan, file));
    fclose(file);
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

static unsigned char *read_all(remat_session *s, remat_kind kind, size_t *bytes) {
    *bytes = 0;
    unsigned char *all = NULL;
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, kind, i, &info));
        all = realloc(all, *bytes + info.bytes);
        CHECKED(remat_read(s, kind, i, all + *bytes, info.bytes));
        *bytes += info.bytes;
    }
    return all;
}

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

/* A session whose plan spills. */
static remat_session *spilling_session(const net *n, const spilling *how, int threads) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, n);
    remat_config config = configured(how, threads);
    char *text = plan_text(g, loss, &config, how);
    config.plan_steps = text;
    CHECKED(remat_session_create(g, loss, &config, &s));
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
        if (step == 1) CHECKED(remat_evaluate(s, &r)); /* in the same arena, with other data in it */
    }
    if (s->runner.store) t.moved_bytes = rm_spill_used((rm_spill *)s->runner.store).load_bytes / STEPS;
    t.gradients = read_all(s, REMAT_GRADIENT, &t.bytes);
    t.parameters = read_all(s, REMAT_PARAM, &t.bytes);
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
                 .timesteps = 331,
                 .batch = 3,
                 .dropout = 0.2};
}

static const spilling ways[] = {
    {"none", 0, 16, false, 0, 0, 0},   {"none", 0, 8, true, 2, 1, 0},      {"none", 0, 1, true, 1, 2, 1},
    {"segments", 4, 8, true, 1, 3, 0}, {"segments", 5, 8, false, 3, 0, 1}, {"none", 0, 128, true, 1, 1, 2},
};
enum { WAYS = sizeof ways / sizeof *ways };

START_TEST(same_bits) {
    const spilling *how = &ways[_i / 2 % WAYS];
    net n = small(_i / 2 / WAYS);
    int threads = 1 + _i % 2;
    remat_session *keeping = keeping_session(&n, how, threads), *s = spilling_session(&n, how, threads);
    trace kept = run(keeping, &n), spilled = run(s, &n);
    same(&kept, &spilled);
    ck_assert_uint_eq(spilled.moved_bytes, s->training.verdict.load_bytes);
    drop(&kept);
    drop(&spilled);
    remat_session_free(keeping);
    remat_session_free(s);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("spill");
    TCase *tcase = tcase_create("spill");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, same_bits, 0, 2 * WAYS * NET_CELLS);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

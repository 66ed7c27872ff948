/* test_pipeline.c: a network whose layers lie on several ranks, which are threads of this process (pipe.h). For random
 * networks, cuts and plans the ranks have the bits of one rank: loss, norm, gradients, parameters after updates, outputs
 * and running statistics. Every array lies on one rank, and every rank is smaller than the whole. */
#include "tests/cases.h"
#include "tests/engine/pipe.h"

#include "engine/abi.h"
#include "tests/engine/poison.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"
#include "tests/suite.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

enum { STEPS = 2 };

typedef struct {
    remat_step_result step[STEPS], evaluation;
} results;

/* The next micro step has other inputs: rotated by one element. */
static void rotate_inputs(remat_session *s) {
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, REMAT_INPUT, i, &info));
        if (info.count < 2) continue;
        size_t width = info.bytes / (size_t)info.count;
        char *data = malloc(info.bytes + width);
        CHECKED(remat_read(s, REMAT_INPUT, i, data, info.bytes));
        memcpy(data + info.bytes, data, width);
        CHECKED(remat_write(s, REMAT_INPUT, i, data + width, info.bytes));
        free(data);
    }
}

/* One update, of as many micro steps as the session has. */
static void update(remat_session *s, remat_step_result *r) {
    if (s->micro_steps == 1) {
        CHECKED(remat_step(s, 0.01, r));
        return;
    }
    for (int t = 0; t < s->micro_steps; t++) {
        CHECKED(remat_gradients(s, r));
        rotate_inputs(s);
    }
    double loss = r->loss;
    CHECKED(remat_update(s, 0.01, r));
    r->loss = loss;
}

static void train(remat_session *s, void *data) {
    results *r = data;
    poison(s);
    for (int i = 0; i < STEPS; i++) update(s, &r->step[i]);
    for (int t = 0; t < s->micro_steps; t++) CHECKED(remat_gradients(s, NULL));
    CHECKED(remat_evaluate(s, &r->evaluation));
}

/* Arrays of one rank against those of a session that has all. */
static int64_t expect_same_arrays(remat_session *part, remat_session *all, remat_kind kind, int *holders,
                                  const char *what) {
    ck_assert_int_eq(remat_count(part, kind), remat_count(all, kind));
    int64_t bytes = 0;
    for (int64_t i = 0; i < remat_count(part, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(part, kind, i, &info));
        bytes += (int64_t)info.bytes;
        if (!info.count) continue;
        holders[i]++;
        char *x = malloc(info.bytes), *y = malloc(info.bytes);
        CHECKED(remat_read(part, kind, i, x, info.bytes));
        CHECKED(remat_read(all, kind, i, y, info.bytes));
        ck_assert_msg(!memcmp(x, y, info.bytes), "%s: %s (kind %d) differs", what, info.name, kind);
        free(x);
        free(y);
    }
    return bytes;
}

static void expect_same(const pipe_rank *rank, int size, remat_session *all, const char *what) {
    static const remat_kind kinds[] = {REMAT_PARAM,  REMAT_GRADIENT, REMAT_OPTIMIZER,
                                       REMAT_OUTPUT, REMAT_BUFFER,   REMAT_CARRIED};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int holders[4 * MAX_PARAMS] = {0};
        for (int r = 0; r < size; r++) expect_same_arrays(rank[r].session, all, kinds[k], holders, what);
        for (int64_t i = 0; i < remat_count(all, kinds[k]); i++)
            ck_assert_msg(holders[i] == 1, "%s: array %d of kind %d lies on %d ranks", what, (int)i, kinds[k],
                          holders[i]);
    }
}

static void expect_same_results(const results *a, const results *b, const char *what) {
    for (int i = 0; i < STEPS; i++) {
        ck_assert_msg(a->step[i].loss == b->step[i].loss, "%s: loss %.9g, %.9g", what, a->step[i].loss,
                      b->step[i].loss);
        ck_assert_msg(a->step[i].grad_norm == b->step[i].grad_norm, "%s: norm %.9g, %.9g", what, a->step[i].grad_norm,
                      b->step[i].grad_norm);
    }
    ck_assert_msg(a->evaluation.loss == b->evaluation.loss, "%s: evaluated to %.9g, %.9g", what, a->evaluation.loss,
                  b->evaluation.loss);
}

/* Creates the ranks' sessions; false: the network cannot be cut into so many. */
static bool open_ranks(const net *n, remat_value loss, remat_config config, pipe_rank *rank, int size, uint64_t seed) {
    for (int r = 0; r < size; r++) {
        config.pipeline = &rank[r].pipeline;
        remat_status status = remat_session_create(n->graph, loss, &config, &rank[r].session);
        if (r == 0 && status == REMAT_INVALID && says_all(remat_last_error(), "can be cut into at most")) return false;
        ck_assert_msg(status == REMAT_OK, "seed %lu, rank %d: %s", (unsigned long)seed, r, remat_last_error());
        fill_inputs(rank[r].session, seed);
    }
    return true;
}

static void close_ranks(pipe_rank *rank, int size) {
    for (int r = 0; r < size; r++) remat_session_free(rank[r].session);
}

static int n_tried, n_cut;

static void try_network(uint64_t seed, bool timed) {
    net n;
    rng_state = seed * 7919 + 1;
    remat_value loss = random_net_with(&n, timed, seed % 8 == 1);
    int size = 2 + (int)draw(3);
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = timed ? 1 + draw(4) : draw(3);
    config.seed = seed;
    config.optimizer = "adam";
    config.clip_grad_norm = 0.5;
    config.verify_recompute = seed % 3 == 0;
    if (seed % 4 == 2) config.micro_steps = 4; /* in flight together, without time */
    config.deterministic_world = seed % 8 == 2;
    ask_for_outputs(&config, &n);
    remat_session *all;
    CHECKED(remat_session_create(n.graph, loss, &config, &all));
    fill_inputs(all, seed);
    rng_state = seed + 12345;
    char *steps = random_plan(all), what[64];
    snprintf(what, sizeof what, "seed %lu, %s, %d ranks", (unsigned long)seed, timed ? "timed" : "deep", size);
    config.plan_steps = steps;
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    results one = {0}, each[PIPE_MOST] = {0};
    pipe_open(&line, rank, size, NULL);
    line.unbuffered = seed % 2; /* no rank relies on buffers */
    n_tried++;
    if (open_ranks(&n, loss, config, rank, size, seed)) {
        n_cut++;
        train(all, &one);
        for (int r = 0; r < size; r++) rank[r].data = &each[r];
        pipe_run(rank, size, train);
        for (int r = 0; r < size; r++) expect_same_results(&each[r], &one, what);
        expect_same(rank, size, all, what);
        close_ranks(rank, size);
    }
    free(steps);
    remat_session_free(all);
    remat_graph_free(n.graph);
}

enum { AT_ONCE = 8 };
static void try_some(uint64_t number, bool timed) {
    n_tried = n_cut = 0;
    for (uint64_t i = 0; i < AT_ONCE; i++) try_network(number * AT_ONCE + i, timed);
    ck_assert_msg(2 * n_cut >= n_tried, "only %d of %d networks could be cut", n_cut, n_tried);
}

START_TEST(random_networks_along_time_have_the_bits_of_one_rank) { try_some((uint64_t)_i, true); }
END_TEST
START_TEST(random_networks_by_depth_have_the_bits_of_one_rank) { try_some((uint64_t)_i, false); }
END_TEST

/* Each was wrong once: the loss is read on a second rank; a rank reads a value of all timesteps tile by tile. */
START_TEST(earlier_counterexamples_have_the_bits_of_one_rank) {
    static const uint64_t seeds[] = {516, 1042, 2124};
    try_network(seeds[_i], true);
}
END_TEST

/* ---- Micro steps in flight together ------------------------------------------------------------------------------ */

enum { DEEP = 6, WIDTH = 32, ROWS = 8, PARTS = 4 };

/* Without time, and with batch norm. Each output is the mean of a part's rows. */
static remat_value deep_model_of(remat_graph *g, int64_t rows, remat_value *output) {
    const int64_t shape[] = {rows, WIDTH}, square[] = {WIDTH, WIDTH}, channels[] = {WIDTH};
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, shape), h = x;
    for (int layer = 0; layer < DEEP; layer++) {
        char name[5][32];
        static const char *const names[] = {"linear%d", "bn%d.mean", "bn%d.var", "bn%d.weight", "bn%d.bias"};
        for (int i = 0; i < 5; i++) snprintf(name[i], sizeof name[i], names[i], layer);
        remat_value mean = remat_buffer(g, name[1], 1, channels, remat_init_constant(0));
        remat_value variance = remat_buffer(g, name[2], 1, channels, remat_init_constant(1));
        remat_value scale = remat_param(g, name[3], 1, channels, remat_init_constant(1));
        remat_value bias = remat_param(g, name[4], 1, channels, remat_init_constant(0));
        remat_value weight = remat_param(g, name[0], 2, square, remat_init_uniform(0.3));
        h = remat_linear(g, h, weight, REMAT_NONE);
        h = remat_batch_norm(g, h, scale, bias, mean, variance, 0.1, 1e-5, false);
        h = remat_dropout(g, remat_relu(g, h), 0.1);
    }
    *output = h;
    return remat_mse(g, h, remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, shape));
}

static remat_value deep_model(remat_graph *g, remat_value *output) { return deep_model_of(g, ROWS, output); }

static remat_config deep_config(const char *strategy, remat_value *output) {
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategy;
    config.segments = strcmp(strategy, "segments") ? 0 : 3;
    config.optimizer = "adam";
    config.threads = 1;
    config.micro_steps = PARTS;
    config.outputs = output;
    config.n_outputs = 1;
    config.verify_recompute = true;
    return config;
}

/* Every strategy, in the planned bytes. More parts in flight need more bytes than one. */
START_TEST(micro_steps_in_flight_have_the_bits_of_one_rank) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    net n = {0};
    remat_value output;
    CHECKED(remat_graph_create(&n.graph));
    remat_value loss = deep_model(n.graph, &output);
    remat_config config = deep_config(strategies[_i], &output);
    remat_session *all;
    results one = {0}, each[3] = {0};
    CHECKED(remat_session_create(n.graph, loss, &config, &all));
    ck_assert_int_eq(remat_pipeline_parts(all), 1);
    fill_inputs(all, 5);
    train(all, &one);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    pipe_open(&line, rank, 3, NULL);
    ck_assert(open_ranks(&n, loss, config, rank, 3, 5));
    ck_assert_int_eq(remat_pipeline_parts(rank[0].session), PARTS);
    for (int r = 0; r < 3; r++) rank[r].data = &each[r];
    pipe_run(rank, 3, train);
    for (int r = 0; r < 3; r++) {
        expect_same_results(&each[r], &one, strategies[_i]);
        ck_assert_uint_eq(each[r].step[0].arena_peak_bytes, rm_plan_summary_of(rank[r].session).planned_peak_bytes);
    }
    expect_same(rank, 3, all, strategies[_i]);
    close_ranks(rank, 3);
    remat_session_free(all);
    remat_graph_free(n.graph);
}
END_TEST

/* The outputs of each of an update's micro steps, on the rank that has them. */
typedef struct {
    float output[PARTS][ROWS * WIDTH];
} outputs;

static void collect(remat_session *s, void *data) {
    outputs *out = data;
    remat_array info;
    CHECKED(remat_array_info(s, REMAT_OUTPUT, 0, &info));
    for (int t = 0; t < PARTS; t++) {
        ck_assert(remat_pipeline_part(s, 0) == (remat_pipeline_parts(s) == 1 ? REMAT_OK : REMAT_INVALID));
        CHECKED(remat_gradients(s, NULL));
        if (remat_pipeline_parts(s) == 1) CHECKED(remat_read(s, REMAT_OUTPUT, 0, out->output[t], info.bytes));
        if (t == 1 && remat_pipeline_parts(s) > 1) {
            ck_assert_int_eq(remat_evaluate(s, NULL), REMAT_INVALID);
            ck_assert_int_eq(remat_forward(s), REMAT_INVALID);
        }
        rotate_inputs(s);
    }
    for (int t = 0; t < remat_pipeline_parts(s) && remat_pipeline_parts(s) > 1; t++) {
        CHECKED(remat_pipeline_part(s, t));
        if (info.count) CHECKED(remat_read(s, REMAT_OUTPUT, 0, out->output[t], info.bytes));
    }
}

START_TEST(outputs_of_every_micro_step_can_be_read) {
    net n = {0};
    remat_value output;
    CHECKED(remat_graph_create(&n.graph));
    remat_value loss = deep_model(n.graph, &output);
    remat_config config = deep_config("sqrt", &output);
    remat_session *all;
    static outputs one, each[2];
    CHECKED(remat_session_create(n.graph, loss, &config, &all));
    fill_inputs(all, 5);
    collect(all, &one);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    pipe_open(&line, rank, 2, NULL);
    ck_assert(open_ranks(&n, loss, config, rank, 2, 5));
    for (int r = 0; r < 2; r++) rank[r].data = &each[r];
    pipe_run(rank, 2, collect);
    ck_assert(!memcmp(&each[1], &one, sizeof one));
    close_ranks(rank, 2);
    remat_session_free(all);
    remat_graph_free(n.graph);
}
END_TEST

/* Without recomputing, the least budget moves checkpoints of every part to a spill file, each to a place of its own. */
START_TEST(micro_steps_in_flight_spill) {
    net n = {0};
    remat_value output;
    CHECKED(remat_graph_create(&n.graph));
    remat_value loss = deep_model_of(n.graph, 2048, &output);
    remat_config config = deep_config("optimal", &output);
    remat_session *all;
    results one = {0}, each[2] = {0};
    CHECKED(remat_session_create(n.graph, loss, &config, &all));
    fill_inputs(all, 5);
    train(all, &one);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    pipe_open(&line, rank, 2, NULL);
    config.recompute = "off";
    config.spill_dir = "/tmp";
    config.memory_budget = 1;
    config.pipeline = &rank[0].pipeline;
    remat_session *s;
    ck_assert_int_eq(remat_session_create(n.graph, loss, &config, &s), REMAT_INFEASIBLE);
    config.memory_budget = remat_smallest_budget();
    ck_assert(open_ranks(&n, loss, config, rank, 2, 5));
    for (int r = 0; r < 2; r++) {
        ck_assert_int_gt(rank[r].session->training.transfers.count, 0);
        rank[r].data = &each[r];
    }
    pipe_run(rank, 2, train);
    for (int r = 0; r < 2; r++) expect_same_results(&each[r], &one, "spilling");
    expect_same(rank, 2, all, "spilling");
    close_ranks(rank, 2);
    remat_session_free(all);
    remat_graph_free(n.graph);
}
END_TEST

/* A budget holds for all parts together: smaller ones recompute more, and the smallest that is named suffices. */
START_TEST(budget_holds_for_micro_steps_in_flight) {
    net n = {0};
    remat_value output;
    CHECKED(remat_graph_create(&n.graph));
    remat_value loss = deep_model(n.graph, &output);
    remat_config config = deep_config("optimal", &output);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    pipe_open(&line, rank, 2, NULL);
    config.verify_recompute = false;
    config.memory_budget = 1;
    config.pipeline = &rank[0].pipeline;
    remat_session *s;
    ck_assert_int_eq(remat_session_create(n.graph, loss, &config, &s), REMAT_INFEASIBLE);
    uint64_t least = remat_smallest_budget();
    for (uint64_t budget = least; budget < 2 * least; budget += least / 8) {
        config.memory_budget = budget;
        for (int r = 0; r < 2; r++) {
            config.pipeline = &rank[r].pipeline;
            ck_assert_msg(!remat_session_create(n.graph, loss, &config, &s), "%lu of %lu: %s", budget, least,
                          remat_last_error());
            ck_assert_uint_le(rm_plan_summary_of(s).budgeted_bytes, budget);
            remat_session_free(s);
        }
    }
    remat_graph_free(n.graph);
}
END_TEST

/* ---- A network of layers ---------------------------------------------------------------------------------------- */

enum { LAYERS = 4, HIDDEN = 8, TIMESTEPS = 50, BATCH = 2, WORDS = 11 };

/* An LSTM language model. `tied`: the first layer and the last share their weights. */
static remat_value language_model_of(remat_graph *g, bool tied, int64_t words) {
    const int64_t shape[] = {TIMESTEPS, BATCH}, table[] = {words, HIDDEN}, w[] = {4 * HIDDEN, HIDDEN};
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value embedding = remat_param(g, "embedding.weight", 2, table, remat_init_normal(1));
    remat_value x = remat_embedding(g, tokens, embedding);
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[2][32];
        snprintf(name[0], sizeof name[0], "lstm.weight_ih_l%d", layer);
        snprintf(name[1], sizeof name[1], "lstm.weight_hh_l%d", layer);
        if (layer) x = remat_dropout(g, x, 0.1);
        remat_value w_ih = remat_param(g, name[0], 2, w, remat_init_uniform(0.3));
        remat_value w_hh = remat_param(g, name[1], 2, w, remat_init_uniform(0.3));
        x = remat_lstm(g, x, w_ih, w_hh, REMAT_NONE, REMAT_NONE);
    }
    remat_value head = tied ? embedding : remat_param(g, "head.weight", 2, table, remat_init_uniform(0.3));
    return remat_softmax_cross_entropy(g, remat_linear(g, x, head, REMAT_NONE), targets);
}

static remat_value language_model(remat_graph *g, bool tied) { return language_model_of(g, tied, WORDS); }

static remat_config model_config(void) {
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = 4;
    config.optimizer = "adamw";
    config.fold_embedding = false;
    config.threads = 1;
    return config;
}

static char *plan_of(const remat_session *s) { return remat_plan_steps_text(s); }

/* Under every strategy, ranks follow one plan, use what was planned, and each holds less than the whole. */
static void try_model(remat_config config, int size, const char *what) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    net n = {.graph = g};
    remat_value loss = language_model(g, false);
    remat_session *all;
    CHECKED(remat_session_create(g, loss, &config, &all));
    fill_inputs(all, 3);
    results one = {0}, each[PIPE_MOST] = {0};
    train(all, &one);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    pipe_open(&line, rank, size, NULL);
    ck_assert(open_ranks(&n, loss, config, rank, size, 3));
    char *plan = plan_of(rank[0].session);
    uint64_t whole = rm_plan_summary_of(all).planned_peak_bytes;
    for (int r = 0; r < size; r++) {
        rank[r].data = &each[r];
        char *other = plan_of(rank[r].session);
        ck_assert_msg(!strcmp(plan, other), "%s: rank %d has another plan", what, r);
        free(other);
        uint64_t bytes = rm_plan_summary_of(rank[r].session).planned_peak_bytes;
        ck_assert_msg(bytes < whole, "%s: rank %d plans %lu bytes of %lu", what, r, bytes, whole);
    }
    free(plan);
    pipe_run(rank, size, train);
    ck_assert_int_gt(line.messages, 2 * TIMESTEPS / 4);
    for (int r = 0; r < size; r++) {
        remat_plan_summary planned = rm_plan_summary_of(rank[r].session);
        expect_same_results(&each[r], &one, what);
        ck_assert_uint_eq(each[r].step[0].arena_peak_bytes, planned.planned_peak_bytes);
    }
    expect_same(rank, size, all, what);
    close_ranks(rank, size);
    remat_session_free(all);
    remat_graph_free(g);
}

START_TEST(every_strategy_has_the_bits_of_one_rank) {
    static const char *const strategies[] = {"none", "segments", "sqrt", "lean", "optimal"};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
        for (int size = 2; size <= 4; size++) {
            remat_config config = model_config();
            config.strategy = strategies[i];
            config.segments = i == 1 ? 3 : 0;
            if (i == 4) config.memory_budget = 190000;
            config.stateful = size == 3;
            try_model(config, size, strategies[i]);
        }
}
END_TEST

/* Rank 0 measures the layers, and tells the others where it cut. */
START_TEST(measured_cuts_are_the_same_on_all_ranks) {
    remat_config config = model_config();
    config.strategy = "sqrt";
    config.calibration = "";
    config.memory_budget = _i ? 250000 : 0;
    try_model(config, 3, "measured layers");
}
END_TEST

/* Micro steps, in both orders of sums. */
START_TEST(micro_steps_have_the_bits_of_one_rank) {
    remat_config config = model_config();
    config.strategy = "sqrt";
    config.micro_steps = 2;
    config.deterministic_world = _i;
    try_model(config, 2, "micro steps");
}
END_TEST

/* The first rank holds the largest arrays, the second the most activations: the least budget is what one of them needs,
 * not what both need at their worst. Every rank gives the same answer. */
START_TEST(refused_budget_names_the_rank_and_the_least_that_fits) {
    static const char *const strategies[] = {"sqrt", "optimal"};
    static const char *const cuts[] = {"lstm.weight_ih_l1", "head"}, *const says[] = {"rank 1 of the", "rank 0 of the"};
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value loss = language_model(g, false);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    remat_config config = model_config();
    remat_session *s;
    uint64_t least = 0, most = 0;
    pipe_open(&line, rank, 2, cuts[_i % 2]);
    config.strategy = strategies[_i / 2];
    for (int r = 0; r < 2; r++) {
        config.pipeline = &rank[r].pipeline;
        config.memory_budget = 1;
        ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_INFEASIBLE);
        ck_assert_msg(says_all(remat_last_error(), says[_i % 2]), "%s", remat_last_error());
        ck_assert(r == 0 || remat_smallest_budget() == least);
        least = remat_smallest_budget();
        config.memory_budget = least;
        CHECKED(remat_session_create(g, loss, &config, &s));
        uint64_t bytes = rm_plan_summary_of(s).budgeted_bytes;
        most = bytes > most ? bytes : most;
        remat_session_free(s);
        config.memory_budget = least - 1;
        ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_INFEASIBLE);
    }
    ck_assert_uint_eq(most, least);
    remat_graph_free(g);
}
END_TEST

static uint64_t least_of(remat_graph *g, remat_value loss, remat_config config, const char *cut, int size) {
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    remat_session *s;
    pipe_open(&line, rank, size, cut);
    config.pipeline = &rank[0].pipeline;
    config.memory_budget = 1;
    ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_INFEASIBLE);
    return remat_smallest_budget();
}

/* The smallest of all cuts into two or three parts. */
static uint64_t least_of_all_cuts(remat_graph *g, remat_value loss, remat_config config, int size) {
    static const char *const names[] = {"lstm.weight_ih_l0", "lstm.weight_ih_l1", "lstm.weight_ih_l2",
                                        "lstm.weight_ih_l3", "head"};
    enum { NAMES = sizeof names / sizeof *names };
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < NAMES; i++)
        for (int j = i + 1; j < (size == 3 ? NAMES : i + 2); j++) {
            char cut[64];
            snprintf(cut, sizeof cut, size == 3 ? "%s,%s" : "%s", names[i], names[j % NAMES]);
            uint64_t bytes = least_of(g, loss, config, cut, size);
            least = bytes < least ? bytes : least;
        }
    return least;
}

/* A cut is chosen with which every rank fits, down to the least budget of all cuts; a refusal names that budget. */
START_TEST(cuts_over_the_budget_are_ruled_out) {
    static const char *const strategies[] = {"none", "sqrt", "optimal"};
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    net n = {.graph = g};
    remat_value loss = language_model_of(g, false, 100);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    remat_config config = model_config();
    int size = 2 + _i % 2;
    config.strategy = strategies[_i / 2];
    uint64_t least = least_of_all_cuts(g, loss, config, size);
    ck_assert_uint_eq(least_of(g, loss, config, NULL, size), least);
    pipe_open(&line, rank, size, NULL);
    ck_assert(open_ranks(&n, loss, config, rank, size, 1));
    char *fastest = strdup(remat_pipeline_cut(rank[0].session));
    close_ranks(rank, size);
    ck_assert_uint_gt(least_of(g, loss, config, fastest, size), least);
    free(fastest);
    pipe_open(&line, rank, size, NULL);
    config.memory_budget = least;
    ck_assert(open_ranks(&n, loss, config, rank, size, 1));
    for (int r = 0; r < size; r++) {
        ck_assert_uint_le(rm_plan_summary_of(rank[r].session).budgeted_bytes, least);
        ck_assert_str_eq(remat_pipeline_cut(rank[r].session), remat_pipeline_cut(rank[0].session));
    }
    close_ranks(rank, size);
    remat_graph_free(g);
}
END_TEST

static void expect_refused(const char *cut, int size, bool tied, remat_config config, const char *words) {
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value loss = language_model(g, tied);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    pipe_open(&line, rank, size, cut);
    config.pipeline = &rank[0].pipeline;
    ck_assert_msg(remat_session_create(g, loss, &config, &s) != REMAT_OK, "cut %s was accepted", cut ? cut : "NULL");
    ck_assert_msg(says_all(remat_last_error(), words), "\"%s\" does not say %s", remat_last_error(), words);
    remat_graph_free(g);
}

START_TEST(bad_cuts_are_refused) {
    remat_config config = model_config();
    expect_refused("gru", 2, false, config, "gru|no layer");
    expect_refused("", 2, false, config, "no layer");
    expect_refused("embedding", 2, false, config, "before the layers of rank 0|a parameter of a later layer");
    expect_refused("lstm.weight_ih_l2,head", 2, false, config, "2 ranks have 1 cut;");
    expect_refused("lstm.weight_ih_l2", 2, true, config, "both sides|embedding.weight");
    expect_refused(NULL, 3, true, config, "at most 1 part, not 3|tied");
}
END_TEST

/* A layer begins where it is told. */
START_TEST(layers_are_cut_at_the_named_parameters) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    net n = {.graph = g};
    remat_value loss = language_model(g, false);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    pipe_open(&line, rank, 3, "lstm.weight_ih_l1,head");
    ck_assert(open_ranks(&n, loss, model_config(), rank, 3, 1));
    static const int64_t held[3] = {3, 6, 1}; /* the embedding and a layer; three layers; the head */
    for (int r = 0; r < 3; r++) {
        int64_t count = 0;
        for (int64_t i = 0; i < remat_count(rank[r].session, REMAT_PARAM); i++) {
            remat_array info;
            CHECKED(remat_array_info(rank[r].session, REMAT_PARAM, i, &info));
            count += info.count > 0;
        }
        ck_assert_int_eq(count, held[r]);
    }
    float x;
    ck_assert_int_eq(
        remat_read(rank[0].session, REMAT_PARAM, remat_find(rank[0].session, REMAT_PARAM, "head.weight"), &x, 4),
        REMAT_INVALID);
    ck_assert(says_all(remat_last_error(), "head.weight|another rank"));
    close_ranks(rank, 3);
    remat_graph_free(g);
}
END_TEST

static remat_status broken_send(void *context, int to, const void *data, uint64_t bytes) {
    (void)context, (void)to, (void)data, (void)bytes;
    return rm_fail(REMAT_PEER, "rank 1 is gone");
}

/* A message that fails ends the step with its status. */
START_TEST(a_lost_rank_ends_the_step) {
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    net n = {.graph = g};
    remat_value loss = language_model(g, false);
    pipe_line line;
    pipe_rank rank[PIPE_MOST];
    pipe_open(&line, rank, 2, NULL);
    rank[0].pipeline.send = broken_send;
    ck_assert(open_ranks(&n, loss, model_config(), rank, 2, 1));
    ck_assert_int_eq(remat_step(rank[0].session, 0.1, NULL), REMAT_PEER);
    ck_assert(says_all(remat_last_error(), "rank 1 is gone"));
    close_ranks(rank, 2);
    remat_graph_free(g);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("pipeline");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, random_networks_along_time_have_the_bits_of_one_rank, 0, rm_cases(300, 8));
    tcase_add_loop_test(tests, random_networks_by_depth_have_the_bits_of_one_rank, 0, rm_cases(300, 8));
    tcase_add_loop_test(tests, earlier_counterexamples_have_the_bits_of_one_rank, 0, 3);
    tcase_add_test(tests, every_strategy_has_the_bits_of_one_rank);
    tcase_add_loop_test(tests, measured_cuts_are_the_same_on_all_ranks, 0, 2);
    tcase_add_loop_test(tests, micro_steps_have_the_bits_of_one_rank, 0, 2);
    tcase_add_loop_test(tests, micro_steps_in_flight_have_the_bits_of_one_rank, 0, 5);
    tcase_add_test(tests, micro_steps_in_flight_spill);
    tcase_add_test(tests, outputs_of_every_micro_step_can_be_read);
    tcase_add_test(tests, budget_holds_for_micro_steps_in_flight);
    tcase_add_loop_test(tests, refused_budget_names_the_rank_and_the_least_that_fits, 0, 4);
    tcase_add_loop_test(tests, cuts_over_the_budget_are_ruled_out, 0, 6);
    tcase_add_test(tests, bad_cuts_are_refused);
    tcase_add_test(tests, layers_are_cut_at_the_named_parameters);
    tcase_add_test(tests, a_lost_rank_ends_the_step);
    return run_cases("pipeline", tests);
}

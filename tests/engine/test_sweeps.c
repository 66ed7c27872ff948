/* test_sweeps.c: networks that need several passes over time, or more than a chain: both directions, an encoder and a
 * decoder of different lengths, attention, a U-Net. The number of sweeps; the same bits under every strategy and under
 * random plans; used bytes equal planned bytes; the device "null" plans the same. */
#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { T = 23, S = 17, B = 2, C = 5 };

static remat_value input(net *n, const char *name, int64_t timesteps) {
    bool timed = timesteps > 0;
    int64_t dim[] = {timesteps, B, C};
    return remat_input(n->graph, name, REMAT_F32, timed ? REMAT_SEQUENCE : REMAT_STATIC, timed ? 3 : 2,
                       timed ? dim : dim + 1);
}

static remat_value lstm(net *n, remat_value x, int64_t in) {
    return remat_lstm(n->graph, x, param(n, 2, 4 * C, in), param(n, 2, 4 * C, C), param(n, 1, 4 * C, 1), REMAT_NONE);
}

static remat_value head(net *n, remat_value y, int64_t in, remat_value target) {
    return remat_mse(n->graph, remat_linear(n->graph, y, param(n, 2, C, in), param(n, 1, C, 1)), target);
}

static remat_value both_directions(net *n) {
    remat_value y = input(n, "x", T);
    for (int layer = 0; layer < 2; layer++) {
        int64_t in = layer ? 2 * C : C;
        remat_value both[] = {lstm(n, y, in), REMAT_NONE};
        both[1] = remat_reverse(n->graph, lstm(n, remat_reverse(n->graph, y), in));
        y = remat_dropout(n->graph, remat_concat(n->graph, both, 2), 0.2);
    }
    return head(n, y, 2 * C, input(n, "target", T));
}

static remat_value encoder_and_decoder(net *n) {
    remat_value source = lstm(n, input(n, "source", T), C), y = lstm(n, input(n, "target", S), C);
    for (int k = 0; k < 2; k++) remat_initial_state(n->graph, y, k, remat_final_state(n->graph, source, k));
    return head(n, y, C, input(n, "next", S));
}

static remat_value decoder_with_attention(net *n) {
    remat_value source = lstm(n, input(n, "source", T), C), y = lstm(n, input(n, "target", S), C);
    for (int k = 0; k < 2; k++) remat_initial_state(n->graph, y, k, remat_final_state(n->graph, source, k));
    remat_value both[] = {remat_cross_attention(n->graph, y, source, source, 1, REMAT_NONE), y};
    return head(n, remat_concat(n->graph, both, 2), 2 * C, input(n, "next", S));
}

static remat_value attention(net *n) {
    remat_value y = lstm(n, input(n, "x", T), C);
    y = remat_add(n->graph, y, remat_attention(n->graph, y, y, y, 1, true));
    return head(n, lstm(n, y, C), C, input(n, "target", T));
}

static remat_value dense(net *n, remat_value x, int64_t in, int64_t out) {
    return remat_linear(n->graph, x, param(n, 2, out, in), param(n, 1, out, 1));
}

/* Two blocks: the ops between two attention layers form one sweep; the widest of them is cheap to recompute. */
static remat_value transformer(net *n) {
    remat_graph *g = n->graph;
    remat_value x = input(n, "x", T);
    for (int block = 0; block < 2; block++) {
        remat_value y = remat_layer_norm(g, x, param(n, 1, C, 1), param(n, 1, C, 1), 1e-5);
        y = remat_attention(g, dense(n, y, C, C), dense(n, y, C, C), dense(n, y, C, C), 1, true);
        x = remat_add(g, x, remat_dropout(g, dense(n, y, C, C), 0.1));
        y = remat_layer_norm(g, x, param(n, 1, C, 1), param(n, 1, C, 1), 1e-5);
        x = remat_add(g, x, dense(n, remat_gelu(g, dense(n, y, C, 4 * C)), 4 * C, C));
    }
    return head(n, x, C, input(n, "target", T));
}

/* Linear layers with skip connections: the way up reads the results of the way down. */
static remat_value u_net(net *n) {
    remat_value down[4] = {input(n, "x", 0)}, y;
    for (int i = 1; i < 4; i++)
        down[i] = remat_gelu(n->graph, remat_linear(n->graph, down[i - 1], param(n, 2, C, C), param(n, 1, C, 1)));
    y = down[3];
    for (int i = 2; i >= 0; i--) {
        remat_value both = remat_concat(n->graph, (remat_value[]){y, down[i]}, 2);
        y = remat_gelu(n->graph, remat_linear(n->graph, both, param(n, 2, C, 2 * C), REMAT_NONE));
    }
    return head(n, y, C, input(n, "target", 0));
}

/* Batch norm over the C channels of x. */
static remat_value normalised(net *n, remat_value x) {
    const int64_t dim[] = {C};
    char name[32];
    remat_value running[2];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "running_%d.%d", i, n->n_params);
        running[i] = remat_buffer(n->graph, name, 1, dim, remat_init_constant(i));
    }
    return remat_batch_norm(n->graph, x, param(n, 1, C, 1), param(n, 1, C, 1), running[0], running[1], 0.1, 1e-5,
                            false);
}

static remat_value batch_norms(net *n) {
    remat_value y = input(n, "x", 0);
    for (int i = 0; i < 4; i++) {
        y = normalised(n, remat_linear(n->graph, y, param(n, 2, C, C), REMAT_NONE));
        y = remat_dropout(n->graph, remat_relu(n->graph, y), 0.2);
    }
    return head(n, normalised(n, y), C, input(n, "target", 0)); /* the last statistics belong to a leaf */
}

/* Statistics over all timesteps, read after them. */
static remat_value batch_norm_along_time(net *n) {
    remat_value y = normalised(n, lstm(n, normalised(n, input(n, "x", T)), C));
    y = remat_last_step(n->graph, lstm(n, y, C));
    return head(n, normalised(n, y), C, input(n, "target", 0));
}

/* The head of a network without time processes its rows in chunks. */
static remat_value chunks_of_rows(net *n) {
    const int64_t rows = 23;
    remat_value x = remat_input(n->graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){rows, C}), y = x;
    for (int i = 0; i < 3; i++) y = remat_gelu(n->graph, remat_linear(n->graph, y, param(n, 2, C, C), REMAT_NONE));
    y = remat_add(n->graph, y, x);
    y = remat_as_sequence(n->graph, remat_reshape(n->graph, y, 3, (int64_t[]){rows, 1, -1}));
    remat_value target = remat_input(n->graph, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){rows, 1, C});
    return head(n, y, C, target);
}

/* A network without time computes the decoder's initial state, and the factor of each timestep. */
static remat_value captions(net *n) {
    remat_value image = input(n, "image", 0), y = lstm(n, input(n, "x", T), C);
    (void)y;
    for (int i = 0; i < 3; i++)
        image = remat_gelu(n->graph, remat_linear(n->graph, image, param(n, 2, C, C), REMAT_NONE));
    remat_value words = remat_reshape(n->graph, input(n, "words", T), 3, (int64_t[]){T, B, C});
    y = lstm(n, words, C);
    for (int k = 0; k < 2; k++) remat_initial_state(n->graph, y, k, image);
    remat_value table =
        remat_linear(n->graph, param(n, 2, C, C), param(n, 2, C, C), REMAT_NONE); /* depends on parameters alone */
    y = remat_linear(
        n->graph, y,
        remat_reshape(n->graph, remat_reshape(n->graph, table, 1, (int64_t[]){C * C}), 2, (int64_t[]){C, C}),
        REMAT_NONE);
    return head(n, y, C, input(n, "target", T));
}

static remat_value convolved(net *n, remat_value x, int64_t in, const int64_t stride[2]) {
    const int64_t dim[] = {C, in, 3, 3};
    char name[32];
    snprintf(name, sizeof name, "filters.%d", n->n_params++);
    remat_value w = remat_param(n->graph, name, 4, dim, remat_init_uniform(0.3));
    return normalised(n, remat_conv2d(n->graph, x, w, REMAT_NONE, stride, (int64_t[]){1, 1}, NULL, 1));
}

/* A stem with a pool, and four blocks, the last with a stride. */
static remat_value residual(net *n) {
    const int64_t two[] = {2, 2}, three[] = {3, 3};
    remat_graph *g = n->graph;
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 4, (int64_t[]){B, 3, 7, 5});
    remat_value y =
        remat_max_pool2d(g, remat_relu(g, convolved(n, x, 3, NULL)), three, (int64_t[]){1, 1}, (int64_t[]){1, 1});
    for (int block = 0; block < 4; block++) {
        const int64_t *stride = block == 3 ? two : NULL;
        remat_value skip = stride ? convolved(n, y, C, stride) : y;
        remat_value inner = remat_dropout(g, remat_relu(g, convolved(n, y, C, stride)), 0.1);
        y = remat_relu(g, remat_add(g, convolved(n, inner, C, NULL), skip));
    }
    return head(n, remat_mean(g, y, 2), C, input(n, "target", 0));
}

/* The decoder's initial state is also read after its last timestep. */
static remat_value begun_and_read_at_the_end(net *n) {
    remat_value h = remat_gelu(n->graph, remat_linear(n->graph, input(n, "h", 0), param(n, 2, C, C), REMAT_NONE));
    remat_value y = lstm(n, input(n, "x", T), C);
    remat_initial_state(n->graph, y, 0, h);
    return head(n, remat_mul(n->graph, remat_last_step(n->graph, y), h), C, input(n, "target", 0));
}

static const struct {
    const char *name;
    remat_value (*build)(net *);
    int32_t sweeps;   /* by depth every stage is a sweep */
    int64_t stages;   /* with tiles of 4 */
    int32_t crossing; /* values that another sweep reads */
} networks[] = {
    {"both directions", both_directions, 3, 18, 3},
    {"encoder and decoder", encoder_and_decoder, 2, 11, 2},
    {"attention", attention, 3, 13, 2},
    {"u-net", u_net, 8, 8, 7},
    {"chunks of rows", chunks_of_rows, 4, 9, 3},
    {"captions", captions, 4, 9, 3},
    {"batch norms", batch_norms, 11, 11, 10},
    {"batch norm along time", batch_norm_along_time, 4, 14, 3},
    {"transformer", transformer, 5, 20, 9},
    {"residual", residual, 22, 22, 21},
    {"initial state read at the end", begun_and_read_at_the_end, 2, 7, 1},
    {"decoder with attention", decoder_with_attention, 4, 17, 5},
};
enum { NETWORKS = sizeof networks / sizeof *networks, NORMS = 6, TRANSFORMER = 8 };

static remat_value build(int which, net *n) {
    *n = (net){.width = C, .odd = false};
    ck_assert(!remat_graph_create(&n->graph));
    remat_value loss = networks[which].build(n);
    ck_assert_msg(!remat_graph_check(n->graph), "%s", remat_last_error());
    return loss;
}

static remat_config configured(int which) {
    remat_config config = REMAT_CONFIG_INIT;
    config.seed = 7;
    config.threads = 1;
    remat_value (*by_depth[])(net *) = {u_net, batch_norms, residual};
    config.tile = 4;
    for (int i = 0; i < 3; i++)
        if (networks[which].build == by_depth[i]) config.tile = 0;
    return config;
}

static remat_session *open_session(const net *n, remat_value loss, const remat_config *config) {
    remat_session *s;
    ck_assert_msg(!remat_session_create(n->graph, loss, config, &s), "%s", remat_last_error());
    if (!config->plan_only) fill_inputs(s, 5);
    return s;
}

static void write_all(remat_session *s, remat_kind kind, FILE *out) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        remat_array_info(s, kind, i, &info);
        void *data = malloc(info.bytes);
        ck_assert(!remat_read(s, kind, i, data, info.bytes));
        fwrite(data, 1, info.bytes, out);
        free(data);
    }
}

/* Loss and gradients of a step, and the buffers after it. The caller frees them. */
static char *step(remat_session *s, size_t *bytes) {
    remat_step_result r;
    char *all;
    FILE *out = open_memstream(&all, bytes);
    ck_assert_msg(!remat_gradients(s, &r), "%s", remat_last_error());
    ck_assert_uint_eq(r.arena_peak_bytes, rm_plan_summary_of(s).planned_peak_bytes);
    fwrite(&r.loss, sizeof r.loss, 1, out);
    write_all(s, REMAT_GRADIENT, out);
    write_all(s, REMAT_BUFFER, out);
    fclose(out);
    return all;
}

static void expect_same(const net *n, remat_value loss, const remat_config *config, const char *expected, size_t bytes,
                        const char *what) {
    remat_session *s = open_session(n, loss, config);
    size_t got;
    char *all = step(s, &got);
    ck_assert_msg(got == bytes && !memcmp(all, expected, bytes), "different bits: %s", what);
    free(all);
    remat_session_free(s);
}

START_TEST(networks_have_the_expected_sweeps) {
    net n;
    remat_value loss = build(_i, &n);
    remat_config config = configured(_i);
    config.plan_only = true;
    remat_session *s = open_session(&n, loss, &config);
    ck_assert_int_eq(s->chain.n_sweeps, networks[_i].sweeps);
    ck_assert_int_eq(s->chain.n_stages, networks[_i].stages);
    ck_assert_int_eq(s->chain.n_crossing, networks[_i].crossing);
    char *real = remat_plan_problem_text(s);
    remat_session_free(s);
    config.device = "null";
    s = open_session(&n, loss, &config);
    char *null = remat_plan_problem_text(s), *bytes = strstr(null, "\npieces ");
    ck_assert(bytes && strstr(real, "\npieces ") && !strncmp(bytes, strstr(real, "\npieces "), 20));
    remat_text_free(real);
    remat_text_free(null);
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

START_TEST(every_strategy_has_the_same_bits) {
    static const char *const strategies[] = {"sqrt", "lean", "segments", "optimal", "optimal"};
    net n;
    size_t bytes;
    remat_value loss = build(_i, &n);
    remat_config config = configured(_i);
    config.strategy = "none";
    remat_session *s = open_session(&n, loss, &config);
    uint64_t most = rm_plan_summary_of(s).budgeted_bytes;
    char *kept = step(s, &bytes);
    remat_session_free(s);
    for (int i = 0; i < 5; i++) {
        config.strategy = strategies[i];
        config.segments = 3;
        config.verify_recompute = i % 2;
        config.memory_budget = 0;
        if (i == 4) {
            config.memory_budget = 1;
            ck_assert_int_eq(remat_session_create(n.graph, loss, &config, &s), REMAT_INFEASIBLE);
            config.memory_budget = remat_smallest_budget();
            ck_assert_uint_lt(config.memory_budget, most);
        }
        expect_same(&n, loss, &config, kept, bytes, strategies[i]);
    }
    free(kept);
    remat_graph_free(n.graph);
}
END_TEST

START_TEST(sweeps_have_the_same_bits_in_random_plans) {
    net n;
    size_t bytes;
    remat_value loss = build(_i, &n);
    remat_config config = configured(_i);
    remat_session *s = open_session(&n, loss, &config);
    char *kept = step(s, &bytes);
    int plans = rm_cases(500, 60);
    for (int i = 0; i < plans; i++) {
        rng_state = (uint64_t)i;
        char *steps = random_plan(s);
        config.plan_steps = steps;
        config.verify_recompute = i % 3 == 0;
        expect_same(&n, loss, &config, kept, bytes, steps);
        free(steps);
    }
    free(kept);
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

/* The saved bytes of the tiles between two attention layers, in units of C floats per row and timestep, without the
 * norms' statistics. "all" saves everything; "lean" saves the summands and the 4 units that gelu reads; "leaner" saves
 * nothing and runs the layers again. */
START_TEST(leaner_stages_save_the_fewest_bytes) {
    static const char *const name[] = {"all", "lean", "leaner"};
    static const uint64_t floats[] = {11, 5, 0};
    net n;
    remat_value loss = build(TRANSFORMER, &n);
    remat_config config = configured(TRANSFORMER);
    remat_session *s = open_session(&n, loss, &config);
    const rm_stage *stage = &rm_session_problem(s)->stage[7];
    ck_assert_int_eq(stage->n_options, 3);
    for (int k = 0; k < 3; k++) {
        uint64_t floor = floats[k] * 4 * B * C * sizeof(float), saved = stage->option[k].saved_bytes;
        ck_assert_str_eq(stage->option[k].name, name[k]);
        ck_assert_msg(saved >= floor && saved < floor + 12 * 64, "%s: %llu of %llu", name[k], (unsigned long long)saved,
                      (unsigned long long)floor);
    }
    ck_assert_uint_gt(stage->option[2].backward.time_ns, stage->option[1].backward.time_ns);
    remat_session_free(s);
    config.recompute = "exact-only";
    s = open_session(&n, loss, &config);
    ck_assert_int_eq(rm_session_problem(s)->stage[7].n_options, 1);
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

/* One tile or several: the same numbers, up to rounding. */
START_TEST(tiles_change_only_rounding) {
    net n;
    remat_value loss = build(_i, &n);
    remat_config config = configured(_i);
    remat_step_result r[2];
    remat_session *s[2];
    for (int i = 0; i < 2; i++) {
        s[i] = open_session(&n, loss, &config);
        ck_assert(!remat_gradients(s[i], &r[i]));
        config.tile = 100;
    }
    ck_assert_double_eq_tol(r[0].loss, r[1].loss, 1e-6);
    ck_assert(r[0].loss > 0);
    for (int64_t i = 0; i < remat_count(s[0], REMAT_GRADIENT); i++) {
        float gradient[2][9 * C * C];
        remat_array info;
        remat_array_info(s[0], REMAT_GRADIENT, i, &info);
        ck_assert_uint_le(info.bytes, sizeof gradient[0]);
        for (int k = 0; k < 2; k++) ck_assert(!remat_read(s[k], REMAT_GRADIENT, i, gradient[k], info.bytes));
        for (int64_t k = 0; k < info.count; k++)
            ck_assert_msg(fabsf(gradient[0][k] - gradient[1][k]) < 1e-5f + 1e-3f * fabsf(gradient[1][k]),
                          "%s: %g in tiles, %g in one", info.name, gradient[0][k], gradient[1][k]);
    }
    for (int i = 0; i < 2; i++) remat_session_free(s[i]);
    remat_graph_free(n.graph);
}
END_TEST

/* A step writes them once, whatever it recomputes; an evaluation does not write them. */
START_TEST(running_statistics_are_written_once_per_step) {
    net n;
    float running[C], first[C], both[C];
    remat_value loss = build(NORMS, &n);
    remat_config config = configured(NORMS);
    config.strategy = "sqrt";
    remat_session *s = open_session(&n, loss, &config);
    remat_step_result r;
    int64_t mean = remat_find(s, REMAT_BUFFER, "running_0.1");
    ck_assert(mean >= 0 && remat_count(s, REMAT_BUFFER) == 10);
    ck_assert(!remat_gradients(s, &r) && r.recomputed_stages > 0);
    ck_assert(!remat_read(s, REMAT_BUFFER, mean, first, sizeof first));
    ck_assert(!remat_evaluate(s, &r) && !remat_gradients(s, &r));
    ck_assert(!remat_read(s, REMAT_BUFFER, mean, both, sizeof both));
    for (int c = 0; c < C; c++) { /* the batch is the same: m, then 0.9 m + m, where m is a tenth of its mean */
        ck_assert(first[c] != 0);
        ck_assert_double_eq_tol(both[c], 1.9 * first[c], 1e-6);
    }
    ck_assert(!remat_evaluate(s, &r));
    double before = r.loss;
    for (int c = 0; c < C; c++) running[c] = 1e6f;
    ck_assert(!remat_write(s, REMAT_BUFFER, mean, running, sizeof running) && !remat_evaluate(s, &r));
    ck_assert(r.loss != before);
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

START_TEST(invalid_buffers_are_refused) {
    static const char *const words[] = {"buffer",        "running statistics",   "same buffer",
                                        "another layer", "buffer|another layer", "momentum|2"};
    net n = {.width = C};
    const int64_t dim[] = {C};
    ck_assert(!remat_graph_create(&n.graph));
    remat_value x = input(&n, "x", 0), mean = remat_buffer(n.graph, "mean", 1, dim, remat_init_zero());
    remat_value var = remat_buffer(n.graph, "var", 1, dim, remat_init_constant(1)), none = REMAT_NONE;
    remat_value other = remat_buffer(n.graph, "other", 1, dim, remat_init_zero()), w = param(&n, 1, C, 1);
    remat_value h = remat_buffer(n.graph, "h", 2, (int64_t[]){B, C}, remat_init_zero());
    if (_i == 0) remat_batch_norm(n.graph, x, none, none, w, var, 0.1, 1e-5, false);
    if (_i == 1) remat_linear(n.graph, x, param(&n, 2, C, C), mean);
    if (_i == 2) remat_batch_norm(n.graph, x, none, none, mean, mean, 0.1, 1e-5, false);
    if (_i == 3) {
        remat_value y = remat_batch_norm(n.graph, x, none, none, mean, var, 0.1, 1e-5, false);
        remat_batch_norm(n.graph, y, none, none, other, var, 0.1, 1e-5, false);
    }
    if (_i == 4) remat_initial_state(n.graph, lstm(&n, input(&n, "y", T), C), 0, h);
    if (_i == 5) remat_batch_norm(n.graph, x, none, none, mean, var, 2, 1e-5, false);
    ck_assert_int_eq(remat_graph_check(n.graph), REMAT_INVALID);
    ck_says_all(remat_last_error(), words[_i]);
    remat_graph_free(n.graph);
}
END_TEST

START_TEST(invalid_reshapes_are_refused) {
    static const char *const words[] = {"cannot",   "rank|0",      "dimension 1|-1", "(T,B)",
                                        "buffer",   "not a value", "reshape",        "loss|reshape",
                                        "sequence", "reshape",     "sequence",       "ranks"};
    net n = {.width = C};
    ck_assert(!remat_graph_create(&n.graph));
    const int64_t odd[] = {7, 3}, twice[] = {-1, -1}, flat[] = {-1}, one[] = {1}, dim[] = {T * B, C};
    remat_value x = input(&n, "x", T), w = param(&n, 2, C, C), h = input(&n, "h", 0),
                loss = head(&n, x, C, input(&n, "t", T));
    remat_value y = remat_reshape(n.graph, remat_linear(n.graph, h, w, REMAT_NONE), 1, flat), view = REMAT_NONE;
    remat_config config = configured(0);
    remat_session *s;
    if (_i == 0) remat_reshape(n.graph, w, 2, odd);
    if (_i == 1) remat_reshape(n.graph, w, 0, odd);
    if (_i == 2) remat_reshape(n.graph, w, 2, twice);
    if (_i == 3) remat_reshape(n.graph, x, 2, dim);
    if (_i == 4) remat_reshape(n.graph, remat_buffer(n.graph, "b", 1, dim + 1, remat_init_zero()), 1, flat);
    if (_i == 5) remat_reshape(n.graph, (remat_value){1000}, 1, flat);
    if (_i == 6) config.outputs = &y, config.n_outputs = 1;
    if (_i == 7) loss = view = remat_reshape(n.graph, loss, 1, one);
    if (_i == 8) remat_as_sequence(n.graph, x);
    if (_i == 10) {
        remat_value end = remat_reshape(n.graph, remat_last_step(n.graph, lstm(&n, x, C)), 3, (int64_t[]){C, B, 1});
        loss = head(&n, remat_as_sequence(n.graph, end), 1, input(&n, "later", C));
    }
    if (_i == 11) {
        remat_value mean = remat_buffer(n.graph, "mean", 1, dim + 1, remat_init_zero());
        remat_value var = remat_buffer(n.graph, "var", 1, dim + 1, remat_init_constant(1)), none = REMAT_NONE;
        remat_value table = remat_batch_norm(n.graph, param(&n, 2, C, C), none, none, mean, var, 0.1, 1e-5, true);
        loss = head(&n, remat_linear(n.graph, x, table, none), C, input(&n, "later", T));
    }
    if (_i == 9) {
        remat_graph *body;
        ck_assert(!remat_graph_create(&body));
        const int64_t row[] = {B, C};
        remat_value in = remat_input(body, "in", REMAT_F32, REMAT_STATIC, 2, row);
        remat_value state = remat_input(body, "state", REMAT_F32, REMAT_STATIC, 2, row);
        remat_value next = remat_tanh(body, remat_add(body, remat_reshape(body, in, 2, row), state));
        remat_cell cell = {.struct_bytes = sizeof cell,
                           .name = "cell",
                           .body = body,
                           .inputs = &in,
                           .n_inputs = 1,
                           .states = &state,
                           .next_states = &next,
                           .n_states = 1,
                           .output = next};
        remat_scan(n.graph, &cell, &x, NULL);
        remat_graph_free(body);
    }
    bool graph_is_right = _i == 6 || _i == 7;
    ck_assert_int_eq(remat_graph_check(n.graph), graph_is_right ? REMAT_OK : REMAT_INVALID);
    ck_assert_int_eq(remat_session_create(n.graph, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), words[_i]);
    remat_graph_free(n.graph);
}
END_TEST

/* The gradients of the first parameter from a loss, and from an output between the layer and attention over all
 * timesteps. */
static void outside_attention(bool loss, bool outside, float gradient[4 * C * C]) {
    net n = {.width = C};
    float dy[T][B][C];
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    ck_assert(!remat_graph_create(&n.graph));
    remat_value y = lstm(&n, input(&n, "x", T), C), a = remat_attention(n.graph, y, y, y, 1, true);
    remat_value end = head(&n, a, C, input(&n, "target", T));
    config.threads = 1;
    config.tile = 4;
    config.outputs = &y;
    config.n_outputs = config.n_differentiated = outside;
    s = open_session(&n, loss ? end : REMAT_NONE, &config);
    ck_assert(!remat_forward(s));
    for (int i = 0; i < T * B * C; i++) (&dy[0][0][0])[i] = 0.01f * (float)(i % 7 - 3);
    ck_assert(!outside || !remat_write(s, REMAT_OUTPUT_GRADIENT, 0, dy, sizeof dy));
    ck_assert(!remat_backward(s, NULL));
    ck_assert(
        !remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "p1"), gradient, 4 * C * C * sizeof *gradient));
    remat_session_free(s);
    remat_graph_free(n.graph);
}

START_TEST(gradients_of_the_caller_and_of_attention_add_up) {
    float of_loss[4 * C * C], of_output[4 * C * C], of_both[4 * C * C], largest = 0;
    outside_attention(true, false, of_loss), outside_attention(false, true, of_output),
        outside_attention(true, true, of_both);
    for (int i = 0; i < 4 * C * C; i++) {
        largest = fmaxf(largest, fabsf(of_loss[i]));
        ck_assert_float_eq_tol(of_both[i], of_loss[i] + of_output[i], 1e-6f);
    }
    ck_assert_float_gt(largest, 1e-4f);
}
END_TEST

static void expect_refused(net *n, remat_value loss, const remat_config *config, const char *words) {
    remat_session *s;
    ck_assert_int_eq(remat_session_create(n->graph, loss, config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), words);
    remat_graph_free(n->graph);
}

START_TEST(unsupported_stateful_networks_are_refused) {
    net n;
    remat_value loss = build(0, &n);
    remat_config config = configured(0);
    config.stateful = true;
    expect_refused(&n, loss, &config, "last timestep|first");
    loss = build(1, &n);
    expect_refused(&n, loss, &config, "remat_initial_state");
}
END_TEST

START_TEST(invalid_initial_states_are_refused) {
    static const char *const words[] = {"before", "a sequence", "2", "recurrent layer", "value|graph", "-1"};
    net n = {.width = C};
    ck_assert(!remat_graph_create(&n.graph));
    remat_value x = input(&n, "x", T), y = lstm(&n, x, C), later = lstm(&n, x, C), h = param(&n, 2, B, C);
    if (_i == 0) remat_initial_state(n.graph, y, 0, remat_final_state(n.graph, later, 0));
    if (_i == 1) remat_initial_state(n.graph, y, 0, x);
    if (_i == 2) remat_initial_state(n.graph, y, 2, h);
    if (_i == 3) remat_final_state(n.graph, x, 0);
    if (_i == 4) remat_initial_state(n.graph, y, 0, (remat_value){1000});
    if (_i == 5) remat_final_state(n.graph, y, -1);
    ck_assert_int_eq(remat_graph_check(n.graph), REMAT_INVALID);
    ck_says_all(remat_last_error(), words[_i]);
    remat_graph_free(n.graph);
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("sweeps");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, networks_have_the_expected_sweeps, 0, NETWORKS);
    tcase_add_loop_test(tests, every_strategy_has_the_same_bits, 0, NETWORKS);
    tcase_add_loop_test(tests, sweeps_have_the_same_bits_in_random_plans, 0, NETWORKS);
    tcase_add_test(tests, leaner_stages_save_the_fewest_bytes);
    tcase_add_loop_test(tests, tiles_change_only_rounding, 0, NETWORKS);
    tcase_add_test(tests, running_statistics_are_written_once_per_step);
    tcase_add_loop_test(tests, invalid_buffers_are_refused, 0, 6);
    tcase_add_loop_test(tests, invalid_reshapes_are_refused, 0, 12);
    tcase_add_test(tests, gradients_of_the_caller_and_of_attention_add_up);
    tcase_add_test(tests, unsupported_stateful_networks_are_refused);
    tcase_add_loop_test(tests, invalid_initial_states_are_refused, 0, 6);
    return run_cases("sweeps", tests);
}

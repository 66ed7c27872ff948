/* test_sessions.c: language models trained on the emulated device "cuda" (device.h). Every plan has the same bits, for
 * every order of streams, blocks and threads; losses are near the CPU's; timesteps are recorded once and launched
 * again. test_plans.c does the same with random networks and plans. No GPU is used. */
#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/net.h"
#include "tests/sanitized.h"

#ifdef HAVE_CUDA_HEADERS

#include "tests/cuda/device.h"
#include "tests/engine/cells_of_ops.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { STEPS = 4, MOST_NUMBERS = 3 * STEPS };

typedef struct {
    double number[MOST_NUMBERS]; /* loss, norm and evaluation loss of each step */
    unsigned char *gradients, *parameters;
    size_t bytes;
    int64_t replays, graphs;
} outcome;

typedef struct {
    const char *device, *strategy;
    int64_t segments;
    bool unfolded;
    unsigned whims;        /* of cuBLASLt (fake.h) */
    const char *precision; /* NULL: fp32 */
    int64_t tile;          /* 0: 5 timesteps */
    bool unrecorded;
    int clusters; /* clusters that the GPU runs at once (emulation.h) */
    bool off;     /* do not use clusters */
} way;

static remat_config config_of(const way *w) {
    remat_config config = REMAT_CONFIG_INIT;
    config.device = w->device;
    config.precision = w->precision;
    config.strategy = w->strategy;
    config.segments = w->segments;
    config.fold_embedding = !w->unfolded;
    config.tile = w->tile ? w->tile : 5;
    config.threads = 1;
    config.seed = 5;
    config.optimizer = "sgd";
    config.momentum = 0.9;
    config.clip_grad_norm = 0.5;
    return config;
}

static outcome run(const net *n, const way *w) {
    outcome o = {.replays = 0};
    remat_config config = config_of(w);
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, n);
    CHECKED(remat_graph_check(g));
    CHECKED(remat_session_create(g, loss, &config, &s));
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r, e;
        net_feed(s, n, step);
        CHECKED(remat_step(s, 0.1, &r));
        CHECKED(remat_evaluate(s, &e));
        memcpy(&o.number[3 * step], (double[]){r.loss, r.grad_norm, e.loss}, 3 * sizeof(double));
    }
    o.gradients = net_read_all(s, REMAT_GRADIENT, &o.bytes);
    o.parameters = net_read_all(s, REMAT_PARAM, &o.bytes);
    remat_session_free(s);
    remat_graph_free(g);
    return o;
}

/* Runs on the emulated device, with this order of streams, blocks and threads. */
static outcome run_cuda(const net *n, const way *w, int order) {
    emulated_device_reset((uint64_t)order);
    fake_lt_is(w->whims);
    if (w->unrecorded) setenv("REMAT_CUDA_GRAPHS", "OFF", 1);
    if (w->off) setenv("REMAT_CUDA_CLUSTERS", "OFF", 1);
    rm_emulated_clusters = w->clusters;
    rm_emulate_in((rm_emulated_order)(order % RM_ORDERS));
    outcome o = run(n, w);
    unsetenv("REMAT_CUDA_GRAPHS"), unsetenv("REMAT_CUDA_CLUSTERS");
    o.replays = fake_cuda_replays();
    o.graphs = fake_cuda_graphs();
    ck_assert_msg(!fake_cuda_violation(), "%s: %s", w->strategy, fake_cuda_violation());
    ck_assert_int_eq(fake_cuda_live(), 0);
    return o;
}

static void drop(outcome *o) { free(o->gradients), free(o->parameters); }

static void expect_same(const outcome *a, const outcome *b, const way *w) {
    for (int i = 0; i < MOST_NUMBERS; i++)
        ck_assert_msg(isfinite(a->number[i]) && !memcmp(&a->number[i], &b->number[i], sizeof(double)),
                      "%s, %d segments: number %d of step %d is %a, not %a", w->strategy, (int)w->segments, i % 3,
                      i / 3, b->number[i], a->number[i]);
    ck_assert_uint_eq(a->bytes, b->bytes);
    ck_assert_msg(!memcmp(a->gradients, b->gradients, a->bytes), "%s: gradients differ", w->strategy);
    ck_assert_msg(!memcmp(a->parameters, b->parameters, a->bytes), "%s: parameters differ", w->strategy);
}

/* Both round, in different ways: some tens of roundings of 2^-24 in a loss, more in gradients, which are sums of terms
 * that cancel. */
static void expect_near(const outcome *cpu, const outcome *cuda) {
    for (int i = 0; i < MOST_NUMBERS; i++) {
        double bound = (i % 3 == 1 ? 2e-5 : 2e-6) * cpu->number[i];
        ck_assert_msg(fabs(cpu->number[i] - cuda->number[i]) <= bound,
                      "number %d of step %d: %.9g, and %.9g on the CPU", i % 3, i / 3, cuda->number[i], cpu->number[i]);
    }
    const float *a = (const float *)cpu->parameters, *b = (const float *)cuda->parameters;
    for (size_t i = 0; i < cpu->bytes / sizeof *a; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= 2e-6f, "parameter %d: %.9g, and %.9g on the CPU", (int)i, (double)b[i],
                      (double)a[i]);
}

/* A prime number of timesteps in tiles of 5: the last one is short. H = 8 and H = 9: aligned and unaligned rows. */
static net net_number(int i) {
    return (net){.cell = (net_cell)(i % 3),
                 .layers = 2,
                 .vocabulary = 13,
                 .embed = 6,
                 .hidden = i / 3 % 2 ? 9 : 8,
                 .timesteps = 37,
                 .batch = i % 4 == 3 ? 1 : 3,
                 .dropout = 0.2};
}

static void try_plans(const net *n, bool unfolded, int clusters) {
    static const way ways[] = {{.strategy = "none"},
                               {.strategy = "lean"},
                               {.strategy = "segments", .segments = 2},
                               {.strategy = "segments", .segments = 3},
                               {.strategy = "sqrt"},
                               {.strategy = "sqrt", .unrecorded = true}};
    outcome first = {.replays = 0};
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways) - (clusters > 0); i++) {
        way w = ways[i];
        w.device = "cuda", w.unfolded = unfolded, w.clusters = clusters;
        outcome o = run_cuda(n, &w, i);
        ck_assert_msg(w.unrecorded || clusters ? !o.graphs : o.replays > 0,
                      "%s: recorded timesteps were launched %d times", w.strategy, (int)o.replays);
        if (i) expect_same(&first, &o, &w);
        if (i)
            drop(&o);
        else
            first = o;
    }
    outcome cpu = run(n, &(way){.device = "cpu", .strategy = "none", .unfolded = unfolded});
    expect_near(&cpu, &first);
    drop(&cpu), drop(&first);
}

START_TEST(language_models_have_the_same_bits_in_every_plan) {
    if (rm_release_only(_i, 2)) return;
    net n = net_number(_i);
    try_plans(&n, _i >= 6, 0);
}
END_TEST

/* One launch runs a tile's timesteps (ops/recurrent/persistent.cuh), so there is nothing to record. Clusters of two
 * blocks have one or two sequences. */
START_TEST(every_plan_has_the_same_bits_with_clusters) {
    if (rm_release_only(_i, 3)) return;
    net n = net_number(_i);
    n.timesteps = 13;
    n.hidden = 17 + _i;
    try_plans(&n, _i == 2, 2 - _i % 2);
}
END_TEST

START_TEST(clusters_can_be_switched_off) {
    net n = net_number(_i);
    n.timesteps = 11, n.hidden = 17;
    way w = {.device = "cuda", .strategy = "lean"};
    outcome without = run_cuda(&n, &w, 0);
    w.clusters = 2, w.off = true;
    outcome off = run_cuda(&n, &w, 1);
    expect_same(&without, &off, &w);
    ck_assert_int_eq(off.graphs, without.graphs);
    w.off = false;
    outcome with = run_cuda(&n, &w, 2);
    ck_assert(!with.graphs && memcmp(without.parameters, with.parameters, with.bytes));
    drop(&without), drop(&off), drop(&with);
}
END_TEST

/* Tiles on a GPU are longer than on a CPU (docs/plans.md). */
START_TEST(tiles_have_2048_rows) {
    static const struct {
        int64_t batch, tile, on_cpu;
    } wanted[] = {{1, 1024, 256}, {16, 128, 32}, {64, 32, 8}, {300, 8, 8}};
    for (int i = 0; i < 4; i++) {
        for (int gpu = 0; gpu < 2; gpu++) {
            remat_graph *g;
            remat_session *s;
            net n = net_number(0);
            n.timesteps = 1500, n.batch = wanted[i].batch;
            remat_config config = REMAT_CONFIG_INIT;
            config.device = gpu ? "cuda" : "cpu", config.plan_only = true, config.threads = 1;
            emulated_device_reset(1);
            CHECKED(remat_graph_create(&g));
            CHECKED(remat_session_create(g, net_build(g, &n), &config, &s));
            ck_assert_int_eq(rm_plan_summary_of(s).tile, gpu ? wanted[i].tile : wanted[i].on_cpu);
            remat_session_free(s);
            remat_graph_free(g);
        }
    }
}
END_TEST

/* Calibrations are stored per identity, so a switch that changes times must change the identity. */
START_TEST(switches_change_the_identity_of_the_device) {
    static const char *const off[] = {"REMAT_CUDA_SPLIT_K", "REMAT_CUDA_WORKSPACE", "REMAT_CUDA_GRAPHS",
                                      "REMAT_CUDA_ROUND", "REMAT_CUDA_CLUSTERS"};
    rm_device *device;
    emulated_device_reset(1);
    rm_emulated_clusters = 7;
    CHECKED(rm_device_cuda.open(1, &device));
    const uint64_t all = rm_device_cuda.identity(device);
    ck_assert(rm_device_cuda.identity(device) == all);
    for (int i = 0; i < 5; i++) {
        setenv(off[i], "OFF", 1);
        ck_assert_msg(rm_device_cuda.identity(device) != all, "%s does not change the identity", off[i]);
        unsetenv(off[i]);
    }
    rm_device_cuda.close(device);
    rm_emulated_clusters = 0;
}
END_TEST

/* Products in TF32, or a cuBLASLt whose bits depend on the number of rows, also in batches, or without any algorithm:
 * rebuilt gates of a tile still have the bits of its timesteps. */
START_TEST(every_product_library_has_the_same_bits) {
    if (rm_release_only(_i, 2)) return;
    static const struct {
        unsigned whims;
        const char *precision;
    } makers[] = {{FAKE_LT_OTHER_WHOLE, NULL},
                  {FAKE_LT_OTHER_WHOLE | FAKE_LT_OTHER_BATCHED, NULL},
                  {FAKE_LT_KNOWS_NOTHING, NULL},
                  {0, "tf32"},
                  {FAKE_LT_OTHER_WHOLE, "bf16"}};
    net n = net_number(_i);
    outcome plain = run_cuda(&n, &(way){.device = "cuda", .strategy = "none"}, 0);
    for (int i = 0; i < 5; i++) {
        way w = {.device = "cuda", .strategy = "none", .whims = makers[i].whims, .precision = makers[i].precision};
        outcome kept = run_cuda(&n, &w, i);
        w.strategy = "lean";
        outcome lean = run_cuda(&n, &w, i + 1);
        expect_same(&kept, &lean, &w);
        if (w.precision) ck_assert(memcmp(plain.parameters, kept.parameters, plain.bytes));
        drop(&kept), drop(&lean);
    }
    drop(&plain);
}
END_TEST

/* The number of recordings does not depend on the number of tiles or on what is saved. For each of two layers and each
 * direction there is one recording of timesteps at the start (or end) of a sequence, one of the others, and one of the
 * remainder. There are 200 tiles of 2 timesteps (the last has one), or tiles of 75 timesteps, in three parts: 32, 32
 * and 11. */
START_TEST(tiles_share_their_recordings) {
    static const way ways[] = {{.device = "cuda", .strategy = "none"},
                               {.device = "cuda", .strategy = "lean"},
                               {.device = "cuda", .strategy = "segments", .segments = 7}};
    net n = net_number(_i % 3);
    bool small = _i == 0;
    n.timesteps = small ? 399 : 150, n.hidden = 4, n.batch = 2;
    way w = ways[0];
    w.tile = small ? 2 : 75;
    w.unfolded = _i == 3;
    outcome first = run_cuda(&n, &w, 0);
    for (int i = small ? 2 : 0; i < 3; i++) {
        w.strategy = ways[i].strategy, w.segments = ways[i].segments;
        outcome o = run_cuda(&n, &w, i + 1);
        expect_same(&first, &o, &w);
        int64_t passes = 3 * STEPS, parts = small ? 200 : 2 * 3; /* forward, backward, evaluation */
        ck_assert_int_eq(o.graphs, 2 * 6);
        ck_assert_int_ge(o.replays, 2 * passes * parts - 2 * 6);
        drop(&o);
    }
    drop(&first);
}
END_TEST

/* The device has kernels for the cell's ops, but none for the scan. */
START_TEST(a_cell_of_ops_is_refused) {
    remat_graph *g;
    remat_session *s;
    written_cell written;
    remat_value w[CELL_WEIGHTS];
    remat_config config = config_of(&(way){.device = "cuda", .strategy = "none"});
    emulated_device_reset(1);
    CHECKED(remat_graph_create(&g));
    write_cell(CELL_RNN, 2, 3, 3, &written);
    for (int i = 0; i < CELL_WEIGHTS; i++)
        w[i] = remat_param(g, (char[]){(char)('a' + i), 0}, i < 2 ? 2 : 1, (int64_t[]){3, 3}, remat_init_zero());
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){5, 2, 3});
    remat_value loss = remat_mse(g, remat_scan(g, &written.cell, &x, w), x);
    ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_MISSING);
    ck_says_all(remat_last_error(), "cuda|kernel|rnn of ops|cpu");
    remat_graph_free(written.body);
    remat_graph_free(g);
}
END_TEST

/* ---- Weighted loss ---------------------------------------------------------------------------------------------- */

enum { WT = 17, WB = 3, WV = 6 };

/* The network predicts its input symbols. Three batches have different targets, with more and more of them ignored.
 * Each batch is an update; or all are micro steps of one update, and no target of the first one counts. */
static double train_weighted(const way *w, bool together, double losses[3]) {
    static const float weight[WV] = {1, 2, 0.5f, 1, 3, 0.25f};
    remat_config config = config_of(w);
    remat_graph *g;
    remat_session *s;
    remat_step_result r;
    config.micro_steps = together ? 3 : 1;
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){WT, WB});
    remat_value y = remat_input(g, "y", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){WT, WB});
    remat_value weights = remat_input(g, "weights", REMAT_F32, REMAT_STATIC, 1, (int64_t[]){WV});
    remat_value table = remat_param(g, "embedding.weight", 2, (int64_t[]){WV, 4}, remat_init_normal(1));
    remat_value h = net_layer(g, &(net){.layers = 1, .embed = 4, .hidden = 5}, 0, remat_embedding(g, x, table));
    remat_value logits = remat_linear(g, h, net_param(g, "head.", "weight", -1, 2, WV, 5, 1), REMAT_NONE);
    remat_value loss = remat_softmax_cross_entropy_weighted(g, logits, y, weights, -100, 0);
    CHECKED(remat_session_create(g, loss, &config, &s));
    CHECKED(remat_write(s, REMAT_INPUT, 2, weight, sizeof weight));
    for (int step = 0; step < 3; step++) {
        int32_t symbol[WT * WB];
        for (int i = 0; i < WT * WB; i++) symbol[i] = (i * 7 + step) % WV;
        CHECKED(remat_write(s, REMAT_INPUT, 0, symbol, sizeof symbol));
        int ignored = together && step == 0 ? WT * WB : step * 9;
        for (int i = 0; i < ignored; i++) symbol[i * 2 % (WT * WB)] = -100;
        CHECKED(remat_write(s, REMAT_INPUT, 1, symbol, sizeof symbol));
        CHECKED(together ? remat_gradients(s, &r) : remat_step(s, 0.1, &r));
        losses[step] = r.loss;
    }
    remat_session_free(s);
    remat_graph_free(g);
    return r.grad_norm;
}

/* The device sums the weights of the targets in every update, before the first tile. */
START_TEST(weighted_losses_match_the_cpu) {
    double cpu[3], cuda[3], segments[3];
    double norm = train_weighted(&(way){.device = "cpu", .strategy = "none"}, _i, cpu);
    emulated_device_reset(1);
    double norm_cuda = train_weighted(&(way){.device = "cuda", .strategy = "none"}, _i, cuda);
    emulated_device_reset(2);
    double norm_segments =
        train_weighted(&(way){.device = "cuda", .strategy = "segments", .segments = 3}, _i, segments);
    ck_assert(norm_cuda == norm_segments && !memcmp(cuda, segments, sizeof cuda));
    for (int i = 0; i < 3; i++) ck_assert_msg(fabs(cuda[i] - cpu[i]) <= 4e-6 * cpu[i], "%.9g, %.9g", cuda[i], cpu[i]);
    ck_assert_msg(fabs(norm_cuda - norm) <= 1e-5 * norm, "%.9g, %.9g", norm_cuda, norm);
}
END_TEST

/* ---- Collective kernels ----------------------------------------------------------------------------------------- */

static int n_sums;
static remat_status of_twins(void *context, double *values, int64_t count) {
    (void)context;
    n_sums++;
    for (int64_t i = 0; i < count; i++) values[i] *= 2; /* the other rank has the same values */
    return REMAT_OK;
}
static remat_status no_bucket(void *context, const remat_bucket *bucket) {
    return (void)context, (void)bucket, REMAT_OK;
}

enum { ROWS = 4, CHANNELS = 300 };
static void running_statistics(const char *device, float running[2][CHANNELS]) {
    static float x[ROWS][CHANNELS];
    const int64_t dim[] = {ROWS, CHANNELS};
    remat_ranks ranks = {.struct_bytes = sizeof ranks,
                         .size = 2,
                         .device = device,
                         .sum = of_twins,
                         .reduce = no_bucket,
                         .wait = no_bucket};
    remat_config config = REMAT_CONFIG_INIT;
    remat_graph *g;
    remat_session *s;
    CHECKED(remat_graph_create(&g));
    remat_value mean = remat_buffer(g, "mean", 1, dim + 1, remat_init_zero());
    remat_value var = remat_buffer(g, "var", 1, dim + 1, remat_init_constant(1));
    remat_value gain = remat_param(g, "gain", 1, dim + 1, remat_init_constant(1));
    remat_value in = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, dim);
    remat_value y = remat_batch_norm(g, in, gain, REMAT_NONE, mean, var, 0.1, 1e-5, true);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){CHANNELS, CHANNELS}, remat_init_uniform(0.1));
    config.device = device;
    config.ranks = &ranks;
    CHECKED(remat_session_create(g, remat_mse(g, remat_linear(g, y, w, REMAT_NONE), in), &config, &s));
    for (int i = 0; i < ROWS * CHANNELS; i++) x[i / CHANNELS][i % CHANNELS] = (float)sin(i * i);
    CHECKED(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    CHECKED(remat_forward(s));
    for (int k = 0; k < 2; k++) CHECKED(remat_read(s, REMAT_BUFFER, k, running[k], sizeof running[k]));
    remat_session_free(s);
    remat_graph_free(g);
}

/* More numbers than one message holds, in device memory that the host cannot access. */
START_TEST(collective_kernels_reach_other_ranks) {
    static float cpu[2][CHANNELS], cuda[2][CHANNELS];
    running_statistics("cpu", cpu);
    ck_assert_int_eq(n_sums, 2);
    emulated_device_reset(1);
    running_statistics("cuda", cuda);
    ck_assert_int_eq(n_sums, 2 + 2 + 2);
    for (int k = 0; k < 2; k++)
        for (int c = 0; c < CHANNELS; c++) ck_assert_float_eq_tol(cpu[k][c], cuda[k][c], 1e-6f);
}
END_TEST

START_TEST(one_value_per_channel_is_refused_on_cuda) {
    const int64_t dim[] = {1, CHANNELS};
    remat_config config = REMAT_CONFIG_INIT;
    remat_graph *g;
    remat_session *s;
    emulated_device_reset(1);
    CHECKED(remat_graph_create(&g));
    remat_value mean = remat_buffer(g, "bn.running_mean", 1, dim + 1, remat_init_zero());
    remat_value var = remat_buffer(g, "bn.running_var", 1, dim + 1, remat_init_constant(1));
    remat_value gain = remat_param(g, "bn.weight", 1, dim + 1, remat_init_constant(1));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, dim);
    remat_value y = remat_batch_norm(g, x, gain, REMAT_NONE, mean, var, 0.1, 1e-5, false);
    remat_value loss = remat_mse(g, y, x);
    config.device = "cuda";
    ck_assert_int_eq(remat_session_create(g, loss, &config, &s), REMAT_INVALID);
    ck_says_all(remat_last_error(), "bn|one value per channel");
    config.inference = true;
    CHECKED(remat_session_create(g, loss, &config, &s));
    remat_session_free(s);
    remat_graph_free(g);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("sessions");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, language_models_have_the_same_bits_in_every_plan, 0, rm_cases(9, 5));
    tcase_add_loop_test(c, every_plan_has_the_same_bits_with_clusters, 0, 3);
    tcase_add_loop_test(c, clusters_can_be_switched_off, 0, rm_cases(3, 1));
    tcase_add_loop_test(c, every_product_library_has_the_same_bits, 0, rm_cases(4, 2));
    tcase_add_test(c, tiles_have_2048_rows);
    tcase_add_test(c, collective_kernels_reach_other_ranks);
    tcase_add_test(c, one_value_per_channel_is_refused_on_cuda);
    tcase_add_test(c, a_cell_of_ops_is_refused);
    tcase_add_loop_test(c, weighted_losses_match_the_cpu, 0, 2);
    tcase_add_test(c, switches_change_the_identity_of_the_device);
    TCase *many = tcase_create("many");
    tcase_set_timeout(many, 300);
    tcase_add_loop_test(many, tiles_share_their_recordings, 0, rm_cases(4, 2));
    return run_cases("sessions", c, many);
}

#else

#include <stdio.h>

int main(void) { return puts("skipped: needs CUDA's headers"), 77; }

#endif

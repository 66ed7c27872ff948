/* test_sync_batch_norm.c: statistics over the batches of all ranks. Ranks with parts of the rows, each under its own
 * plan, get the results of one rank with all rows. The ranks are threads (team.h, which also checks that all ranks
 * issue the same collectives). */
#include "tests/cases.h"
#include "tests/engine/team.h"

#include "engine/session/session.h"
#include "tests/engine/random_net.h"
#include "tests/says.h"
#include "tests/suite.h"

enum { ROWS = 12, FEATURES = 5, LAYERS = 3 };
#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

static remat_value describe(net *n, int64_t rows, bool sync) {
    *n = (net){.width = FEATURES};
    CHECKED(remat_graph_create(&n->graph));
    remat_value y = remat_input(n->graph, "x", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){rows, FEATURES});
    for (int i = 0; i < LAYERS; i++) {
        char name[2][32];
        snprintf(name[0], sizeof name[0], "mean.%d", i);
        snprintf(name[1], sizeof name[1], "var.%d", i);
        const int64_t dim[] = {FEATURES};
        y = remat_linear(n->graph, y, param(n, 2, FEATURES, FEATURES), REMAT_NONE);
        y = remat_batch_norm(n->graph, y, param(n, 1, FEATURES, 1), param(n, 1, FEATURES, 1),
                             remat_buffer(n->graph, name[0], 1, dim, remat_init_zero()),
                             remat_buffer(n->graph, name[1], 1, dim, remat_init_constant(1)), 0.1, 1e-5, sync);
        if (i + 1 < LAYERS) y = remat_gelu(n->graph, y); /* the last layer is a leaf */
    }
    return remat_mse(n->graph, y, remat_input(n->graph, "t", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){rows, FEATURES}));
}

typedef struct {
    int64_t first, rows;
    bool sync;
    const char *strategy;
    float gradient[LAYERS * FEATURES * (FEATURES + 2)], buffer[LAYERS * FEATURES * 2];
    double loss;
} rank_of;

static void read_all(remat_session *s, remat_kind kind, float *to) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, kind, i, &info));
        CHECKED(remat_read(s, kind, i, to, info.bytes));
        to += info.bytes / sizeof *to;
    }
}

static void feed(remat_session *s, const rank_of *r) {
    float rows[2][ROWS][FEATURES];
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < FEATURES; j++) rows[k][i][j] = (float)sin(1 + 7 * k + 3 * i * i + 5 * j);
    for (int k = 0; k < 2; k++)
        CHECKED(remat_write(s, REMAT_INPUT, k, rows[k][r->first], (uint64_t)r->rows * sizeof rows[0][0]));
}

static void train(rank_of *r, const remat_ranks *ranks) {
    net n;
    remat_session *s;
    remat_step_result result;
    remat_config config = REMAT_CONFIG_INIT;
    remat_value loss = describe(&n, r->rows, r->sync);
    config.threads = 1;
    config.ranks = ranks;
    config.strategy = r->strategy;
    config.segments = 2;
    CHECKED(remat_session_create(n.graph, loss, &config, &s));
    feed(s, r);
    CHECKED(remat_gradients(s, &result));
    r->loss = result.loss;
    read_all(s, REMAT_GRADIENT, r->gradient);
    read_all(s, REMAT_BUFFER, r->buffer);
    remat_session_free(s);
    remat_graph_free(n.graph);
}

static void train_among_ranks(teammate *mate) {
    rank_of *r = mate->data;
    mate->ranks.weight = (double)r->rows * mate->team->size / ROWS;
    train(r, &mate->ranks);
}

static void expect_close(const float *a, const float *b, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= 2e-6f * (1 + fabsf(a[i])), "%s %zu: %g, and %g on one rank", what, i, a[i],
                      b[i]);
}

/* Compares ranks with batches of 4, 6 and 2 rows, each with its own plan, with one rank that has all rows. */
static void compare(bool sync, rank_of *one, rank_of *three) {
    static const char *const strategy[] = {"none", "segments", "sqrt"};
    static const int64_t rows[] = {4, 6, 2};
    void *data[3];
    *one = (rank_of){.rows = ROWS, .sync = sync, .strategy = "none"};
    train(one, NULL);
    for (int r = 0; r < 3; r++) {
        int64_t first = r ? three[r - 1].first + rows[r - 1] : 0;
        three[r] = (rank_of){.first = first, .rows = rows[r], .sync = sync, .strategy = strategy[r]};
        data[r] = &three[r];
    }
    team_run(&(team){.size = 3}, &(remat_ranks){.struct_bytes = sizeof(remat_ranks), .bucket_bytes = 64},
             train_among_ranks, data);
}

START_TEST(ranks_match_one_rank_with_all_rows) {
    static rank_of one, three[3];
    compare(true, &one, three);
    for (int r = 0; r < 3; r++) {
        ck_assert_double_eq_tol(three[r].loss, one.loss, 1e-6);
        expect_close(three[r].gradient, one.gradient, sizeof one.gradient / sizeof(float), "gradient");
        expect_close(three[r].buffer, one.buffer, sizeof one.buffer / sizeof(float), "running statistic");
        ck_assert(!memcmp(three[r].buffer, three[0].buffer, sizeof one.buffer));
        ck_assert(!memcmp(three[r].gradient, three[0].gradient, sizeof one.gradient));
    }
}
END_TEST

/* Without sync each rank has its own statistics. */
START_TEST(without_sync_statistics_differ) {
    static rank_of one, three[3];
    compare(false, &one, three);
    ck_assert(fabs(three[0].loss - one.loss) > 1e-3);
    ck_assert(memcmp(three[0].buffer, three[1].buffer, sizeof one.buffer));
}
END_TEST

/* Ranks with other stage boundaries would issue collectives in another order. */
START_TEST(stage_boundaries_are_compared_if_layers_are_collective) {
    for (int sync = 0; sync < 2; sync++) {
        net n;
        remat_session *s;
        remat_config config = REMAT_CONFIG_INIT;
        remat_value loss = describe(&n, ROWS, sync);
        config.plan_only = true;
        config.tile = 3;
        CHECKED(remat_session_create(n.graph, loss, &config, &s));
        char *settings = remat_settings_text(s);
        ck_assert_int_eq(says_all(settings, "stages|: 3\n"), sync);
        remat_text_free(settings);
        remat_session_free(s);
        remat_graph_free(n.graph);
    }
}
END_TEST

static remat_status fails(void *context, double *values, int64_t count) {
    (void)context, (void)values, (void)count;
    return rm_fail(REMAT_PEER, "rank 1 has gone");
}
static remat_status no_bucket(void *context, const remat_bucket *bucket) {
    return (void)context, (void)bucket, REMAT_OK;
}

START_TEST(a_failing_rank_fails_the_step) {
    net n;
    remat_session *s;
    remat_step_result result;
    remat_ranks ranks = {.struct_bytes = sizeof ranks, .size = 2, .sum = fails, .reduce = no_bucket, .wait = no_bucket};
    remat_config config = REMAT_CONFIG_INIT;
    remat_value loss = describe(&n, ROWS, true);
    config.ranks = &ranks;
    CHECKED(remat_session_create(n.graph, loss, &config, &s));
    feed(s, &(rank_of){.rows = ROWS});
    ck_assert_int_eq(remat_forward(s), REMAT_PEER);
    ck_assert_str_eq(remat_last_error(), "rank 1 has gone");
    ck_assert_int_eq(remat_gradients(s, &result), REMAT_PEER);
    CHECKED(remat_evaluate(s, &result)); /* calls no collectives */
    remat_session_free(s);
    remat_graph_free(n.graph);
}
END_TEST

/* Can a session be created for x (1,FEATURES,1,side)? */
static remat_status norm_alone(int64_t side, bool sync, bool inference, const remat_ranks *ranks) {
    remat_graph *g;
    remat_session *s = NULL;
    remat_config config = REMAT_CONFIG_INIT;
    const int64_t dim[] = {1, FEATURES, 1, side};
    CHECKED(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 4, dim);
    remat_value gain = remat_param(g, "bn1.weight", 1, dim + 1, remat_init_constant(1));
    remat_value mean = remat_buffer(g, "layer4.0.bn1.running_mean", 1, dim + 1, remat_init_zero());
    remat_value var = remat_buffer(g, "layer4.0.bn1.running_var", 1, dim + 1, remat_init_constant(1));
    remat_value y = remat_batch_norm(g, x, gain, REMAT_NONE, mean, var, 0.1, 1e-5, sync);
    config.inference = inference;
    config.ranks = ranks;
    remat_status status = remat_session_create(g, remat_mse(g, y, x), &config, &s);
    remat_session_free(s);
    remat_graph_free(g);
    return status;
}

START_TEST(one_value_per_channel_is_refused_in_training) {
    remat_ranks ranks = {.struct_bytes = sizeof ranks, .size = 2, .sum = fails, .reduce = no_bucket, .wait = no_bucket};
    const char *words = "layer4.0.bn1|one value per channel|f32 (1,5,1,1)|batch";
    for (int i = 0; i < 3; i++) { /* also sync with a single rank, and ranks without sync */
        ck_assert_int_eq(norm_alone(1, i == 1, false, i == 2 ? &ranks : NULL), REMAT_INVALID);
        ck_says_all(remat_last_error(), words);
    }
    CHECKED(norm_alone(1, false, true, NULL));
    CHECKED(norm_alone(2, false, false, NULL));
    CHECKED(norm_alone(1, true, false, &ranks));
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("sync_batch_norm");
    tcase_add_test(tests, ranks_match_one_rank_with_all_rows);
    tcase_add_test(tests, without_sync_statistics_differ);
    tcase_add_test(tests, stage_boundaries_are_compared_if_layers_are_collective);
    tcase_add_test(tests, a_failing_rank_fails_the_step);
    tcase_add_test(tests, one_value_per_channel_is_refused_in_training);
    return run_cases("sync_batch_norm", tests);
}

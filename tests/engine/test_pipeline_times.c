/* test_pipeline_times.c: the simulated step of a pipeline (engine/report/pipeline_times.h), on ranks that do not exist. */
#include "engine/report/pipeline_times.h"
#include "tests/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())
enum { HIDDEN = 512, ROWS = 32, TILE = 8, TILES = 40, MOST = 8, ROOM = 1 << 20 };

/* Equal layers, and a head that costs next to nothing. */
static remat_value build(remat_graph *g, int layers) {
    const int64_t shape[] = {TILE * TILES, ROWS, HIDDEN}, out[] = {TILE * TILES, ROWS, 1}, w[] = {4 * HIDDEN, HIDDEN};
    const int64_t head[] = {1, HIDDEN};
    remat_value h = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, shape);
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_SEQUENCE, 3, out);
    for (int layer = 0; layer < layers; layer++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "ih.%d", layer);
        snprintf(name[1], sizeof name[1], "hh.%d", layer);
        remat_value ih = remat_param(g, name[0], 2, w, remat_init_uniform(0.1));
        h = remat_lstm(g, h, ih, remat_param(g, name[1], 2, w, remat_init_uniform(0.1)), REMAT_NONE, REMAT_NONE);
    }
    return remat_mse(g, remat_linear(g, h, remat_param(g, "head", 2, head, remat_init_uniform(0.1)), REMAT_NONE), y);
}

/* Without time: equal layers, and a head that costs next to nothing. */
static remat_value build_deep(remat_graph *g, int layers) {
    const int64_t shape[] = {ROWS, HIDDEN}, out[] = {ROWS, 1}, square[] = {HIDDEN, HIDDEN}, head[] = {1, HIDDEN};
    remat_value h = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 2, shape);
    remat_value y = remat_input(g, "y", REMAT_F32, REMAT_STATIC, 2, out);
    for (int layer = 0; layer < layers; layer++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%d", layer);
        h = remat_relu(g, remat_linear(g, h, remat_param(g, name, 2, square, remat_init_uniform(0.1)), REMAT_NONE));
    }
    return remat_mse(g, remat_linear(g, h, remat_param(g, "head", 2, head, remat_init_uniform(0.1)), REMAT_NONE), y);
}

/* Of the LSTM layers; other nodes take no time. */
static double *times_of_nodes(const remat_session *s, const double *layer_ns) {
    const remat_graph *g = s->chain.graph;
    double *ns = calloc((size_t)g->n_nodes, sizeof *ns);
    for (int32_t n = 0; ns && n < g->n_nodes; n++)
        if (!strcmp(g->node[n].op->name, "lstm")) ns[n] = *layer_ns++;
    return ns;
}

/* micro_steps > 1: of a network without time. layer_ns: measured times; NULL: counted work. */
static void simulate_by(const double *layer_ns, int ranks, const char *strategy, int micro_steps,
                        rm_pipeline_rank *out) {
    remat_graph *g;
    remat_session *session[MOST];
    ck_ok(remat_graph_create(&g));
    remat_value loss = micro_steps > 1 ? build_deep(g, 8 * ranks) : build(g, ranks);
    for (int r = 0; r < ranks; r++) {
        remat_pipeline pipeline = {.struct_bytes = sizeof pipeline, .rank = r, .size = ranks};
        remat_config config = REMAT_CONFIG_INIT;
        config.device = "null";
        config.plan_only = true;
        config.strategy = strategy;
        config.micro_steps = micro_steps;
        config.tile = TILE;
        config.pipeline = &pipeline;
        ck_ok(remat_session_create(g, loss, &config, &session[r]));
    }
    double *node_ns = layer_ns ? times_of_nodes(session[0], layer_ns) : NULL;
    ck_ok(rm_pipeline_times(session, ranks, ROOM, node_ns, out));
    free(node_ns);
    for (int r = 0; r < ranks; r++) remat_session_free(session[r]);
    remat_graph_free(g);
}

static void simulate(int ranks, const char *strategy, int micro_steps, rm_pipeline_rank *out) {
    simulate_by(NULL, ranks, strategy, micro_steps, out);
}

static double bubble(const rm_pipeline_rank *rank, int n) {
    double waits = 0, all = 0;
    for (int r = 0; r < n; r++) waits += (double)rank[r].wait_ns, all += (double)(rank[r].wait_ns + rank[r].compute_ns);
    return waits / all;
}

/* Forward and backward, the last rank begins after P - 1 tiles of the others. The first rank of a backward pass computes
 * the gradients of its input, too, so the ends differ a little. */
START_TEST(the_bubble_is_that_of_n_tiles) {
    static const int sizes[] = {2, 4, 8};
    const int n = sizes[_i];
    rm_pipeline_rank rank[MOST];
    simulate(n, "none", 1, rank);
    double expected = (n - 1.0) / (TILES + n - 1.0);
    ck_assert_msg(fabs(bubble(rank, n) - expected) < 0.02, "%d ranks: %g, not %g", n, bubble(rank, n), expected);
    for (int r = 0; r < n; r++) {
        const uint64_t all = rank[r].compute_ns + rank[r].wait_ns;
        ck_assert_msg(all == rank[0].compute_ns + rank[0].wait_ns, "rank %d ends at another time", r);
        ck_assert(rank[r].sent_bytes >= (uint64_t)TILE * TILES * ROWS * HIDDEN * 4);
    }
}
END_TEST

/* A segment that is recomputed fills and empties the pipeline once more, and sends again. */
START_TEST(recomputed_segments_have_a_bubble_each) {
    rm_pipeline_rank none[4], again[4];
    simulate(4, "none", 1, none);
    simulate(4, "sqrt", 1, again);
    ck_assert(bubble(again, 4) > bubble(none, 4) + 0.05);
    ck_assert(again[0].sent_bytes > none[0].sent_bytes);
    ck_assert(again[0].compute_ns > none[0].compute_ns);
}
END_TEST

/* Micro steps that are in flight together take the place of tiles. */
START_TEST(the_bubble_is_that_of_n_micro_steps) {
    static const int sizes[] = {2, 4, 8};
    const int n = sizes[_i], micro_steps = 16;
    rm_pipeline_rank rank[MOST];
    simulate(n, "none", micro_steps, rank);
    double expected = (n - 1.0) / (micro_steps + n - 1.0);
    ck_assert_msg(fabs(bubble(rank, n) - expected) < 0.02, "%d ranks: %g, not %g", n, bubble(rank, n), expected);
    for (int r = 0; r < n; r++)
        ck_assert_uint_eq(rank[r].sent_bytes, (uint64_t)(r ? r + 1 < n ? 2 : 1 : 1) * micro_steps * ROWS * HIDDEN * 4);
}
END_TEST

/* What is left is messages and sums. */
START_TEST(measured_times_replace_counted_work) {
    static const double measured[] = {100e6, 300e6}, zero[] = {0, 0};
    rm_pipeline_rank by_times[2], rest[2];
    simulate_by(measured, 2, "none", 1, by_times);
    simulate_by(zero, 2, "none", 1, rest);
    for (int r = 0; r < 2; r++) {
        double ns = (double)by_times[r].compute_ns - (double)rest[r].compute_ns;
        ck_assert_msg(fabs(ns / measured[r] - 1) < 1e-4, "rank %d: %g", r,
                      ns); /* each instruction's is rounded to 1 ns */
    }
    simulate_by(measured, 2, "sqrt", 1, by_times);
    ck_assert((double)by_times[1].compute_ns > 1.2 * measured[1]); /* forward runs twice */
}
END_TEST

int main(void) {
    TCase *tests = tcase_create("pipeline_times");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, the_bubble_is_that_of_n_tiles, 0, 3);
    tcase_add_loop_test(tests, the_bubble_is_that_of_n_micro_steps, 0, 3);
    tcase_add_test(tests, measured_times_replace_counted_work);
    tcase_add_test(tests, recomputed_segments_have_a_bubble_each);
    return run_cases("pipeline_times", tests);
}

/* test_bits.c: the first promise. Loss, gradients and parameters are bit-identical under every plan: no recomputation,
 * sqrt, every number of segments; with dropout, several layers, each cell, one and two threads. They are compared as
 * bytes, so a NaN must be the same NaN in both; a separate assertion keeps the losses finite. */
#include <string.h>

#include "engine/abi.h"
#include "tests/cases.h"
#include "tests/engine/poison.h"
#include "tests/net.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

#define STEPS 20

/* The results of a run. */
typedef struct {
    double loss[STEPS], norm[STEPS];
    unsigned char *gradients, *parameters; /* of the last step; all arrays one after the other */
    size_t bytes;
    int64_t segments;
} trace;

static trace run(const net *n, const char *strategy, int64_t segments, int64_t tile, int threads) {
    trace t = {0};
    remat_graph *g;
    CHECKED(remat_graph_create(&g));
    remat_value loss = net_build(g, n);
    CHECKED(remat_graph_check(g));
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategy;
    config.segments = segments;
    config.tile = tile;
    config.threads = threads;
    config.seed = 5;
    config.optimizer = "adamw";
    config.weight_decay = 0.01;
    config.clip_grad_norm = 0.5;
    remat_session *s;
    CHECKED(remat_session_create(g, loss, &config, &s));
    poison(s);
    t.segments = rm_plan_summary_of(s).segments;
    for (int step = 0; step < STEPS; step++) {
        remat_step_result r;
        net_feed(s, n, step);
        CHECKED(remat_step(s, 0.01, &r));
        ck_assert(isfinite(r.loss) && r.loss > 0 && isfinite(r.grad_norm) && r.grad_norm > 0);
        t.loss[step] = r.loss;
        t.norm[step] = r.grad_norm;
    }
    t.gradients = net_read_all(s, REMAT_GRADIENT, &t.bytes);
    t.parameters = net_read_all(s, REMAT_PARAM, &t.bytes);
    remat_session_free(s);
    remat_graph_free(g);
    return t;
}

static void drop(trace *t) {
    free(t->gradients);
    free(t->parameters);
}

static void same(const trace *a, const trace *b, const char *what, int64_t segments) {
    for (int step = 0; step < STEPS; step++) {
        ck_assert_msg(!memcmp(&a->loss[step], &b->loss[step], sizeof(double)),
                      "%s, %ld segments: loss of step %d is %a, not %a", what, (long)segments, step, b->loss[step],
                      a->loss[step]);
        ck_assert_msg(!memcmp(&a->norm[step], &b->norm[step], sizeof(double)),
                      "%s, %ld segments: gradient norm of step %d", what, (long)segments, step);
    }
    ck_assert_uint_eq(a->bytes, b->bytes);
    ck_assert_msg(!memcmp(a->gradients, b->gradients, a->bytes), "%s, %ld segments: gradients", what, (long)segments);
    ck_assert_msg(!memcmp(a->parameters, b->parameters, a->bytes), "%s, %ld segments: parameters", what,
                  (long)segments);
}

/* Compares none with sqrt and with segments = first, first + stride, ... last. */
static void sweep(const net *n, int64_t tile, int threads, int64_t first, int64_t last, int64_t stride) {
    const char *what = net_cell_name[n->cell];
    trace kept = run(n, "none", 0, tile, threads);
    trace root = run(n, "sqrt", 0, tile, threads);
    same(&kept, &root, "sqrt", 0);
    drop(&root);
    for (int64_t segments = first; segments <= last; segments += stride) {
        trace t = run(n, "segments", segments, tile, threads);
        same(&kept, &t, what, segments);
        drop(&t);
    }
    drop(&kept);
}

static net small(net_cell cell) {
    return (net){.cell = cell,
                 .layers = 2,
                 .vocabulary = 13,
                 .embed = 6,
                 .hidden = 9,
                 .timesteps = 64,
                 .batch = 3,
                 .dropout = 0.2};
}

/* T = 64 with one timestep per tile: every N from 1 to 64 is exact. Under sanitizers, every seventh N is tried. */
START_TEST(every_segment_count_has_the_same_bits) {
    net n = small(_i / 2);
    sweep(&n, 1, 1 + _i % 2, 1, 64, SANITIZED ? 7 : 1);
}
END_TEST

/* T = 331 (a prime) with the default tile: N that are not divisors, up to many more than there are tiles. */
START_TEST(segment_counts_that_do_not_divide_have_the_same_bits) {
    net n = small(_i / 2);
    n.timesteps = 331;
    sweep(&n, 0, 1 + _i % 2, 1, 13, 2);
    sweep(&n, 7, 1 + _i % 2, 5, 61, 14);
}
END_TEST

/* Extreme shapes, one at a time, for each cell. */
START_TEST(extreme_shapes_have_the_same_bits) {
    net n = small(_i);
    n.batch = 1;
    sweep(&n, 16, 2, 3, 3, 1);
    n.layers = 1;
    sweep(&n, 10, 1, 4, 4, 1);
    n.timesteps = 1;
    sweep(&n, 0, 2, 1, 9, 4);
    n = small(_i);
    n.timesteps = 5; /* shorter than any default tile, fewer than the segments */
    sweep(&n, 0, 1, 2, 9, 7);
    sweep(&n, 64, 1, 2, 2, 1);
    n = small(_i);
    n.hidden = 33; /* wider than a vector register, and not a multiple of it */
    n.embed = 1;
    n.batch = 17;
    n.timesteps = 40;
    sweep(&n, 3, 2, 5, 5, 1);
}
END_TEST

/* Many carried states: two per layer. */
START_TEST(many_layers_have_the_same_bits) {
    net n = small(NET_LSTM);
    n.layers = _i ? 200 : 33;
    n.hidden = 3;
    n.timesteps = _i ? 6 : 32;
    sweep(&n, 2, 1, 3, 3, 1);
}
END_TEST

/* More segments than tiles: the plan reports how many it uses. */
START_TEST(segments_are_limited_to_the_tiles) {
    net n = small(NET_LSTM);
    trace t = run(&n, "segments", 1000, 8, 1);
    ck_assert_int_eq(t.segments, 8);
    drop(&t);
    t = run(&n, "segments", 1000, 1, 1);
    ck_assert_int_eq(t.segments, 64);
    drop(&t);
}
END_TEST

/* Another seed, or no dropout, gives other losses. Otherwise the tests above would prove nothing about dropout. */
START_TEST(dropout_changes_the_loss) {
    net n = small(NET_LSTM), dry = n;
    dry.dropout = 0;
    trace a = run(&n, "segments", 4, 8, 1), b = run(&dry, "segments", 4, 8, 1);
    ck_assert(a.loss[0] != b.loss[0]);
    drop(&a);
    drop(&b);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("same bits");
    tcase_set_timeout(tcase, 540);
    tcase_add_loop_test(tcase, every_segment_count_has_the_same_bits, 0, 2 * NET_CELLS);
    tcase_add_loop_test(tcase, segment_counts_that_do_not_divide_have_the_same_bits, 0, 2 * NET_CELLS);
    tcase_add_loop_test(tcase, extreme_shapes_have_the_same_bits, 0, NET_CELLS);
    tcase_add_loop_test(tcase, many_layers_have_the_same_bits, 0, 2);
    tcase_add_test(tcase, segments_are_limited_to_the_tiles);
    tcase_add_test(tcase, dropout_changes_the_loss);
    return run_cases("bits", tcase);
}

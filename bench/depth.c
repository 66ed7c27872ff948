/* depth.c: memory as a function of depth, as measured by Chen, Xu, Zhang and Guestrin ("Training deep nets with
 * sublinear memory cost", 2016, section 5.2): residual networks of growing depth on a batch of 16 images of 32 x 32
 * with 16 channels; a block has two 3 x 3 convolutions with batch norm. For each depth and each of four strategies it
 * prints the planned bytes of activations, which must equal the measured bytes, and the best step time of a few. Losses
 * must be bit-identical. The strategies alternate, step by step.
 *
 *   bench_depth [MOST_BLOCKS [STEPS]]      256, 4; on one thread. depth.gp plots its table
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/abi.h"
#include "engine/remat.h"

enum { BATCH = 16, SIDE = 32, WIDTH = 16, CLASSES = 10, WAYS = 4 };

static void check(remat_status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", remat_last_error());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static remat_value named(remat_graph *g, const char *what, int layer, int rank, const int64_t *dim, remat_init init) {
    char name[48];
    snprintf(name, sizeof name, "%d.%s", layer, what);
    return remat_param(g, name, rank, dim, init);
}

static remat_value convolved(remat_graph *g, remat_value x, int layer, int64_t in) {
    const int64_t filters[] = {WIDTH, in, 3, 3}, one[] = {1, 1}, width = WIDTH;
    char mean[48], variance[48];
    snprintf(mean, sizeof mean, "%d.mean", layer), snprintf(variance, sizeof variance, "%d.variance", layer);
    x = remat_conv2d(g, x, named(g, "weight", layer, 4, filters, remat_init_normal(0.08)), REMAT_NONE, NULL, one, NULL,
                     1);
    return remat_batch_norm(g, x, named(g, "gain", layer, 1, &width, remat_init_constant(1)),
                            named(g, "bias", layer, 1, &width, remat_init_zero()),
                            remat_buffer(g, mean, 1, &width, remat_init_zero()),
                            remat_buffer(g, variance, 1, &width, remat_init_constant(1)), 0.1, 1e-5, false);
}

static remat_value network(remat_graph *g, int blocks) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_STATIC, 4, (int64_t[]){BATCH, 3, SIDE, SIDE});
    remat_value label = remat_input(g, "label", REMAT_I32, REMAT_STATIC, 1, (int64_t[]){BATCH});
    remat_value y = remat_relu(g, convolved(g, x, 0, 3));
    for (int b = 0; b < blocks; b++) {
        remat_value inner = remat_relu(g, convolved(g, y, 2 * b + 1, WIDTH));
        y = remat_relu(g, remat_add(g, convolved(g, inner, 2 * b + 2, WIDTH), y));
    }
    remat_value head = named(g, "head", 0, 2, (int64_t[]){CLASSES, WIDTH}, remat_init_normal(0.1));
    return remat_softmax_cross_entropy(g, remat_linear(g, remat_mean(g, y, 2), head, REMAT_NONE), label);
}

static remat_session *session(const remat_graph *g, remat_value loss, const char *strategy, uint64_t budget) {
    static float x[BATCH * 3 * SIDE * SIDE];
    static int32_t label[BATCH];
    remat_session *s = NULL;
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategy, config.memory_budget = budget, config.threads = 1, config.optimizer = "sgd";
    remat_status status = remat_session_create(g, loss, &config, &s);
    if (status == REMAT_INFEASIBLE) return NULL;
    check(status);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)(i * 7919 % 1000) * 0.002f - 1;
    for (int i = 0; i < BATCH; i++) label[i] = i % CLASSES;
    check(remat_write(s, REMAT_INPUT, 0, x, sizeof x)), check(remat_write(s, REMAT_INPUT, 1, label, sizeof label));
    return s;
}

static void measure(int blocks, int steps) {
    remat_graph *g;
    check(remat_graph_create(&g));
    remat_value loss = network(g, blocks);
    remat_session *way[WAYS] = {session(g, loss, "none", 0), session(g, loss, "sqrt", 0)};
    way[2] = session(g, loss, "optimal", rm_plan_summary_of(way[1]).budgeted_bytes);
    if (session(g, loss, "optimal", 1)) exit(1);
    way[3] = session(g, loss, "optimal", remat_smallest_budget());
    double best[WAYS] = {1e9, 1e9, 1e9, 1e9};
    for (int step = 0; step < steps; step++) {
        double first = 0;
        for (int i = 0; i < WAYS; i++) {
            remat_step_result result;
            double start = now();
            check(remat_step(way[i], 0.01, &result));
            if (now() - start < best[i]) best[i] = now() - start;
            if (i == 0) first = result.loss;
            if (memcmp(&first, &result.loss, sizeof first) ||
                result.arena_peak_bytes != rm_plan_summary_of(way[i]).planned_peak_bytes)
                fprintf(stderr, "%d blocks: other bits, or other bytes than planned\n", blocks), exit(1);
        }
    }
    printf("| %d |", blocks);
    for (int i = 0; i < WAYS; i++) {
        printf(" %.1f, %.2f |", (double)rm_plan_summary_of(way[i]).activations_peak_bytes / 1048576, best[i] / best[0]);
        remat_session_free(way[i]);
    }
    printf("\n"), fflush(stdout);
    remat_graph_free(g);
}

int main(int argc, char **argv) {
    int most = argc > 1 ? atoi(argv[1]) : 256, steps = argc > 2 ? atoi(argv[2]) : 4;
    if (most < 4 || steps < 1) return fprintf(stderr, "bench_depth [MOST_BLOCKS, 4 or more [STEPS]]\n"), 2;
    printf("MiB of activations, and time of a step relative to none's:\n\n| blocks | none | sqrt | optimal in sqrt's "
           "bytes | "
           "optimal in the least |\n|--:|--:|--:|--:|--:|\n");
    for (int blocks = 4; blocks <= most; blocks *= 2) measure(blocks, steps);
}

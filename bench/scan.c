/* scan.c: the cost of writing a cell as a graph of ops (remat_scan): alternating training steps of a built-in layer and
 * of the same layer as a graph (tests/engine/cells_of_ops.h). Prints rows of a table in docs/notes/cells.md.
 *
 *     bench_scan [B [H [T [steps]]]]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/abi.h"
#include "tests/engine/cells_of_ops.h"

typedef struct {
    int64_t batch, width, steps;
} size;

static void check(remat_status status) {
    if (status) fprintf(stderr, "%s\n", remat_last_error()), exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static remat_value layer(remat_graph *g, int kind, bool of_ops, remat_value x, size z) {
    static const char *const names[] = {"w_ih", "w_hh", "b_ih", "b_hh"};
    remat_value w[CELL_WEIGHTS];
    for (int i = 0; i < CELL_WEIGHTS; i++)
        w[i] = remat_param(g, names[i], i < 2 ? 2 : 1, (int64_t[]){cell_gates[kind] * z.width, z.width},
                           remat_init_uniform(0.06));
    if (!of_ops)
        return (kind == CELL_LSTM  ? remat_lstm
                : kind == CELL_GRU ? remat_gru
                                   : remat_rnn_tanh)(g, x, w[0], w[1], w[2], w[3]);
    written_cell written;
    write_cell(kind, z.batch, z.width, z.width, &written);
    remat_value y = remat_scan(g, &written.cell, &x, w);
    remat_graph_free(written.body);
    return y;
}

static remat_session *open_session(int kind, bool of_ops, const char *strategy, int threads, size z) {
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    check(remat_graph_create(&g));
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){z.steps, z.batch, z.width});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){z.steps, z.batch, z.width});
    remat_value loss = remat_mse(g, layer(g, kind, of_ops, remat_requires_grad(g, x), z), target);
    config.strategy = strategy;
    config.threads = threads;
    config.optimizer = "sgd";
    check(remat_session_create(g, loss, &config, &s));
    uint64_t bytes = (uint64_t)(z.steps * z.batch * z.width) * sizeof(float);
    float *data = malloc(bytes);
    for (uint64_t i = 0; i < bytes / sizeof(float); i++) data[i] = (float)sin((double)i);
    check(remat_write(s, REMAT_INPUT, 0, data, bytes));
    check(remat_write(s, REMAT_INPUT, 1, data, bytes));
    free(data);
    remat_graph_free(g);
    return s;
}

static double seconds(remat_session *s) {
    double start = now();
    check(remat_step(s, 0.1, NULL));
    return now() - start;
}

static void row(int kind, const char *strategy, int threads, size z, int repetitions) {
    static const char *const names[] = {"lstm", "gru", "rnn_tanh"};
    remat_session *s[2];
    double best[2] = {INFINITY, INFINITY};
    for (int i = 0; i < 2; i++) s[i] = open_session(kind, i, strategy, threads, z);
    for (int k = 0; k < repetitions; k++)
        for (int i = 0; i < 2; i++) best[i] = fmin(best[i], seconds(s[i]));
    printf("| %s B%d H%d T%d | %s | %d | %.1f | %.1f | %.2f | %.1f | %.1f |\n", names[kind], (int)z.batch, (int)z.width,
           (int)z.steps, strategy, threads, 1e3 * best[0], 1e3 * best[1], best[1] / best[0],
           (double)rm_plan_summary_of(s[0]).activations_peak_bytes / (1 << 20),
           (double)rm_plan_summary_of(s[1]).activations_peak_bytes / (1 << 20));
    fflush(stdout);
    for (int i = 0; i < 2; i++) remat_session_free(s[i]);
}

int main(int argc, char **argv) {
    static const char *const strategies[] = {"none", "lean"};
    size z = {argc > 1 ? atoi(argv[1]) : 16, argc > 2 ? atoi(argv[2]) : 256, argc > 3 ? atoi(argv[3]) : 512};
    printf("| work | plan | threads | built in, ms a step | of ops, ms | ratio | built in, MiB | of ops, MiB |\n"
           "|---|---|---:|---:|---:|---:|---:|---:|\n");
    for (int kind = 0; kind < CELL_KINDS; kind++)
        for (int i = 0; i < 2; i++)
            for (int threads = 1; threads <= 2; threads++)
                row(kind, strategies[i], threads, z, argc > 4 ? atoi(argv[4]) : 7);
    return 0;
}

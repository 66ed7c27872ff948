/* spill.c: one LSTM layer on a long sequence, with activations kept, recomputed and spilled: measured and predicted
 * step times, bytes transferred, and the share of the transfer time that overlaps with computation.
 *
 *   bench_spill DIRECTORY [T [B [H [STEPS [THREADS]]]]]       20000 1 256 3 0
 *
 * Budgets are shares of the activations without recomputation. For each budget it runs the fastest plan without a
 * second tier and the fastest with one. Times are the best of STEPS steps; "waited" is how long the computation waited
 * for the disk in that run of steps, "hidden" the share of the disk's busy time during which it did not wait;
 * "us/MiB" is the planner's cost of a MiB transferred during computation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/abi.h"
#include "engine/session/session.h"
#include "memory/spill.h"

#define MIB (1.0 / (1 << 20))

typedef struct {
    int64_t steps, batch, hidden;
    int repeats, threads; /* threads 0: all processors */
    const char *directory;
    char calibration[256];
} setting;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(remat_status status) {
    if (!status) return;
    fprintf(stderr, "bench_spill: %s\n", remat_last_error());
    exit(1);
}

/* Tokens -> embedding -> lstm -> linear -> cross entropy, next token. */
static remat_value build(remat_graph *g, const setting *t) {
    int64_t v = 65, h = t->hidden, shape[] = {t->steps, t->batch};
    remat_init init = remat_init_uniform(1 / sqrt((double)h));
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value table = remat_param(g, "embedding", 2, (int64_t[]){v, h}, remat_init_normal(1));
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){4 * h, h}, init);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){4 * h, h}, init);
    remat_value b_ih = remat_param(g, "b_ih", 1, (int64_t[]){4 * h}, init);
    remat_value b_hh = remat_param(g, "b_hh", 1, (int64_t[]){4 * h}, init);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){v, h}, init);
    remat_value x = remat_lstm(g, remat_embedding(g, tokens, table), w_ih, w_hh, b_ih, b_hh);
    return remat_softmax_cross_entropy(g, remat_linear(g, x, w, REMAT_NONE), targets);
}

static void feed(remat_session *s, const setting *t) {
    size_t count = (size_t)(t->steps * t->batch);
    int32_t *tokens = malloc(count * sizeof *tokens);
    for (size_t i = 0; i < count; i++) tokens[i] = (int32_t)((i * 2654435761u >> 8) % 65);
    for (int input = 0; input < 2; input++) check(remat_write(s, REMAT_INPUT, input, tokens, count * sizeof *tokens));
    free(tokens);
}

static uint64_t resident_bytes;

/* Prints one row. budget_bytes 0: no limit. Returns the peak bytes of activations. */
static uint64_t measure(const setting *t, const char *name, const char *strategy, uint64_t budget_bytes, bool spills) {
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategy;
    config.threads = t->threads;
    config.memory_budget = budget_bytes;
    config.spill_dir = spills ? t->directory : NULL;
    config.calibration = t->calibration;
    check(remat_graph_create(&g));
    if (remat_session_create(g, build(g, t), &config, &s)) {
        printf("%-34s %s\n", name, remat_last_error());
        remat_graph_free(g);
        return 0;
    }
    feed(s, t);
    remat_step_result r;
    check(remat_gradients(s, &r));
    rm_spill *file = (rm_spill *)s->runner.tier;
    rm_spill_use before = file ? rm_spill_used(file) : (rm_spill_use){0};
    double best = INFINITY;
    for (int i = 0; i < t->repeats; i++) {
        double start = now();
        check(remat_gradients(s, &r));
        best = fmin(best, now() - start);
    }
    rm_spill_use use = file ? rm_spill_used(file) : before;
    double busy = 1e-9 * (double)(use.busy_ns - before.busy_ns) / t->repeats;
    double waited = 1e-9 * (double)(use.wait_ns - before.wait_ns) / t->repeats;
    remat_plan_summary plan = rm_plan_summary_of(s);
    const rm_verdict *v = &s->training.verdict;
    printf("%-34s %9.1f %9.3f %9.3f %7ld %8.0f %8.0f %8.3f %8.3f", name, (double)plan.activations_peak_bytes * MIB,
           best, 1e-9 * (double)(v->total_ns + s->fixed_ns), (long)v->recomputed_stages, (double)v->save_bytes * MIB,
           (double)v->load_bytes * MIB, busy, waited);
    printf(busy > 0 ? " %6.0f%%" : "       -", 100 * (1 - waited / busy));
    printf(spills ? " %9.0f\n" : "         -\n", 1e-3 * (double)s->chain.problem.tier.cost_ns_per_mib);
    fflush(stdout);
    resident_bytes = plan.planned_peak_bytes - plan.activations_peak_bytes;
    remat_session_free(s);
    remat_graph_free(g);
    return plan.activations_peak_bytes;
}

static void print_disk(const char *directory) {
    rm_spill *spill;
    rm_tier rates;
    check(rm_spill_open(directory, &spill));
    check(rm_spill_measure(spill, &rates));
    printf("%s: %s, out %.0f MB/s, in %.0f MB/s, %.0f us a transfer\n", directory,
           rm_spill_direct(spill) ? "past the page cache" : "through the page cache",
           1e-6 * (double)rates.save_bytes_per_s, 1e-6 * (double)rates.load_bytes_per_s,
           1e-3 * (double)rates.latency_ns);
    rm_spill_close(spill);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "bench_spill DIRECTORY [T [B [H [STEPS [THREADS]]]]]\n");
        return 2;
    }
    setting t = {.steps = argc > 2 ? atoll(argv[2]) : 20000,
                 .batch = argc > 3 ? atoll(argv[3]) : 1,
                 .hidden = argc > 4 ? atoll(argv[4]) : 256,
                 .repeats = argc > 5 ? atoi(argv[5]) : 3,
                 .threads = argc > 6 ? atoi(argv[6]) : 0,
                 .directory = argv[1]};
    snprintf(t.calibration, sizeof t.calibration, "%s/bench-spill-calibration", t.directory);
    print_disk(t.directory);
    printf("LSTM, T=%ld B=%ld H=%ld\n\n", (long)t.steps, (long)t.batch, (long)t.hidden);
    printf("%-34s %9s %9s %9s %7s %8s %8s %8s %8s %7s %9s\n", "", "peak MiB", "step s", "predicted", "rerun", "out MiB",
           "in MiB", "busy s", "waited", "hidden", "us/MiB");
    uint64_t all = measure(&t, "none", "none", 0, false);
    static const double shares[] = {0.5, 0.2, 0.1, 0.05, 0.02};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        char name[80];
        uint64_t budget = resident_bytes + (uint64_t)(shares[i] * (double)all) + (4 << 20);
        for (int spills = 0; spills < 2; spills++) {
            snprintf(name, sizeof name, "optimal, %.0f%% + 4 MiB%s", 100 * shares[i], spills ? ", spill" : "");
            measure(&t, name, "optimal", budget, spills);
        }
    }
    unlink(t.calibration);
    return 0;
}

/* 02_read_a_plan.c: a plan is data that you can read before anything runs, even on a machine too small to run it.
 *
 * It introduces sequences, recurrent layers, `plan_only` and the plan summary. It plans one network, 200,000 timesteps
 * long, with three strategies. The byte counts are exact: a training run would use as much.
 */
#include "common.h"

enum { TIMESTEPS = 200000, BATCH = 8, SYMBOLS = 256, EMBED = 64, HIDDEN = 512 };

static remat_value language_model(remat_graph *g) {
    int64_t shape[] = {TIMESTEPS, BATCH};
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_init small = remat_init_uniform(0.04);
    remat_value table = remat_param(g, "table", 2, (int64_t[]){SYMBOLS, EMBED}, remat_init_normal(1));
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){4 * HIDDEN, EMBED}, small);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, small);
    remat_value b_ih = remat_param(g, "b_ih", 1, (int64_t[]){4 * HIDDEN}, small);
    remat_value b_hh = remat_param(g, "b_hh", 1, (int64_t[]){4 * HIDDEN}, small);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){SYMBOLS, HIDDEN}, small);
    remat_value h = remat_lstm(g, remat_embedding(g, tokens, table), w_ih, w_hh, b_ih, b_hh);
    return remat_softmax_cross_entropy(g, remat_linear(g, h, w, REMAT_NONE), targets);
}

static void print_plan(const remat_graph *g, remat_value loss, const char *strategy, int64_t segments) {
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategy;
    config.segments = segments;
    config.optimizer = "adam";
    config.threads = 2;
    config.plan_only = true; /* allocates nothing; such a session cannot run */
    remat_session *s;
    check(remat_session_create(g, loss, &config, &s));
    remat_plan_summary plan;
    check(remat_session_plan(s, &plan));
    printf("%-10s %8ld %17.1f %11.1f\n", plan.strategy, (long)plan.segments,
           (double)plan.activations_peak_bytes / (1 << 30), (double)plan.planned_peak_bytes / (1 << 30));
    remat_session_free(s);
}

int main(void) {
    remat_graph *g;
    check(remat_graph_create(&g));
    remat_value loss = language_model(g);
    check(remat_graph_check(g));

    printf("strategy   segments  activations, GiB  arena, GiB\n");
    print_plan(g, loss, "none", 0);
    print_plan(g, loss, "segments", 4);
    print_plan(g, loss, "segments", 64);
    print_plan(g, loss, "sqrt", 0);
    remat_graph_free(g);
    return 0;
}

/* Expected output:
strategy   segments  activations, GiB  arena, GiB
none              1              18.4        18.5
segments          4               4.6         4.7
segments         64               0.3         0.3
sqrt             56               0.3         0.4
*/

/* 08_write_an_op.c: an external op, used in a network like a built-in one.
 *
 * It introduces remat_op.h: an op descriptor with its kernels (softsign.c), remat_apply, and remat_op_check, which
 * tests the promises of an op and finds the mistake in a second op. The external op gets the same guarantees as
 * built-in ops: bit-identical results when it is recomputed or kept lean, and memory that is known in advance.
 */
#include <string.h>

#include "common.h"
#include "softsign.h"

enum { T = 64, BATCH = 2, HIDDEN = 16, STEPS = 20 };

static remat_value network(remat_graph *g) {
    remat_init small = remat_init_uniform(0.25);
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, BATCH, 1});
    remat_value target = remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, BATCH, 1});
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){4 * HIDDEN, 1}, small);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, small);
    remat_value slope = remat_param(g, "slope", 1, (int64_t[]){HIDDEN}, remat_init_constant(1));
    remat_value w = remat_param(g, "w", 2, (int64_t[]){1, HIDDEN}, small);
    remat_value h = remat_lstm(g, x, w_ih, w_hh, REMAT_NONE, REMAT_NONE), y;
    remat_apply(g, &softsign, (remat_value[]){h, slope}, 2, NULL,
                &y); /* the graph remembers a mistake, as with any builder */
    h = remat_lstm(g, y, remat_param(g, "w_ih2", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, small),
                   remat_param(g, "w_hh2", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, small), REMAT_NONE, REMAT_NONE);
    return remat_mse(g, remat_linear(g, h, w, REMAT_NONE), target);
}

/* Inputs: a square wave. Targets: its running mean. */
static void feed(remat_session *s) {
    float x[T][BATCH], target[T][BATCH];
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < T; t++) {
            x[t][b] = t / (4 + 3 * b) % 2 ? -1 : 1;
            target[t][b] = t ? (target[t - 1][b] * (float)t + x[t][b]) / (float)(t + 1) : x[t][b];
        }
    check(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    check(remat_write(s, REMAT_INPUT, 1, target, sizeof target));
}

/* Returns the loss after some steps; *activations gets the bytes of activations. */
static double train(const char *strategy, uint64_t *activations) {
    remat_graph *graph;
    remat_session *s;
    remat_step_result result = {0};
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategy;
    config.segments = 4;
    config.tile = 8;
    config.optimizer = "adam";
    check(remat_graph_create(&graph));
    check(remat_session_create(graph, network(graph), &config, &s));
    feed(s);
    for (int step = 0; step < STEPS; step++) check(remat_step(s, 0.01, &result));
    remat_plan_summary plan;
    check(remat_session_plan(s, &plan));
    *activations = plan.activations_peak_bytes;
    remat_session_free(s);
    remat_graph_free(graph);
    return result.loss;
}

int main(void) {
    check(remat_op_check(&softsign, &softsign_f64, NULL));
    printf("softsign keeps its promises\n");
    if (remat_op_check(&broken_softsign, &broken_softsign_f64, NULL) != REMAT_INVALID) return 1;
    const char *why = remat_last_error();
    printf("%.*s: it is not the derivative\n", (int)(strstr(why, " is ") - why), why); /* the message also says by how
                                                                                          much */

    uint64_t everything, segments, lean;
    double loss = train("none", &everything);
    bool same = train("segments", &segments) == loss && train("lean", &lean) == loss;
    printf("everything kept, in 4 segments, and lean: %s\n",
           same ? "the same loss, to the last bit" : "different losses");
    printf("%s\n", segments < everything && lean < everything ? "each time in fewer bytes" : "in no fewer bytes");
    return 0;
}

/* Expected output:
softsign keeps its promises
softsign, sample "sequence": the gradient of x[0][0]: it is not the derivative
everything kept, in 4 segments, and lean: the same loss, to the last bit
each time in fewer bytes
*/

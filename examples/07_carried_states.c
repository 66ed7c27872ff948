/* 07_carried_states.c: truncated back-propagation. A sequence is trained in short calls: states are carried from call
 * to call, gradients stop at the start of a call.
 *
 * It introduces `stateful` in training, finding carried states by name, and resetting them. The task needs carried
 * states: the first symbol of a sequence says whether the others rise or fall, and only the first call sees it.
 */
#include <string.h>

#include "common.h"

enum { CALL = 4, CALLS = 3, BATCH = 2, SYMBOLS = 8, HIDDEN = 24, EPOCHS = 200 };

/* Symbol t of one of two sequences: 6 0 1 2 3 4 5 0 1 ... and 7 5 4 3 2 1 0 5 4 ... */
static int32_t symbol(int sequence, int t) {
    if (t == 0) return 6 + sequence;
    return sequence ? 5 - (t - 1) % 6 : (t - 1) % 6;
}

static void feed(remat_session *s, int call, bool hide_the_past) {
    int32_t tokens[CALL][BATCH], targets[CALL][BATCH];
    for (int t = 0; t < CALL; t++)
        for (int b = 0; b < BATCH; b++) {
            tokens[t][b] = hide_the_past ? 0 : symbol(b, call * CALL + t);
            targets[t][b] = symbol(b, call * CALL + t + 1);
        }
    check(remat_write(s, REMAT_INPUT, 0, tokens, sizeof tokens));
    check(remat_write(s, REMAT_INPUT, 1, targets, sizeof targets));
}

/* Sets both states of the LSTM to zero, as in a new session. */
static void reset(remat_session *s) {
    static const float zeros[BATCH * HIDDEN];
    check(remat_write(s, REMAT_CARRIED, remat_find(s, REMAT_CARRIED, "lstm.0.h"), zeros, sizeof zeros));
    check(remat_write(s, REMAT_CARRIED, remat_find(s, REMAT_CARRIED, "lstm.0.c"), zeros, sizeof zeros));
}

static remat_value network(remat_graph *g) {
    remat_init small = remat_init_uniform(0.2);
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){CALL, BATCH});
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){CALL, BATCH});
    remat_value table = remat_param(g, "table", 2, (int64_t[]){SYMBOLS, 8}, remat_init_normal(1));
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){4 * HIDDEN, 8}, small);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, small);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){SYMBOLS, HIDDEN}, small);
    remat_value h = remat_lstm(g, remat_embedding(g, tokens, table), w_ih, w_hh, REMAT_NONE, REMAT_NONE);
    return remat_softmax_cross_entropy(g, remat_linear(g, h, w, REMAT_NONE), targets);
}

/* The loss of the last call, whose inputs are all zeros. */
static double loss_of_the_last_call(remat_session *s, bool keep_states) {
    remat_step_result result;
    reset(s);
    for (int call = 0; call < CALLS; call++) {
        if (!keep_states) reset(s);
        feed(s, call, call == CALLS - 1);
        check(remat_gradients(s, &result)); /* without an update; unlike an evaluation, it updates the carried states */
    }
    return result.loss;
}

int main(void) {
    remat_graph *graph;
    remat_session *s;
    check(remat_graph_create(&graph));
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adam";
    config.stateful = true;
    check(remat_session_create(graph, network(graph), &config, &s));
    remat_step_result result;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        reset(s); /* a new sequence */
        for (int call = 0; call < CALLS; call++) {
            feed(s, call, call == CALLS - 1);
            check(remat_step(s, 0.01, &result));
        }
    }
    printf("states carried: loss %.1f\n", loss_of_the_last_call(s, true));
    printf("states reset:   loss %s\n", loss_of_the_last_call(s, false) > 1 ? "above 1" : "below 1");
    remat_session_free(s);
    remat_graph_free(graph);
    return 0;
}

/* Expected output:
states carried: loss 0.0
states reset:   loss above 1
*/

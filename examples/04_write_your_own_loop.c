/* 04_write_your_own_loop.c: a custom training loop, and a network that generates text from its own output.
 *
 * It introduces remat_gradients and remat_update (forward and backward separate from the optimizer), a varying learning
 * rate, reading gradients, a second session for inference that shares only the parameters with the first, outputs,
 * and states carried from call to call (`stateful`). A GRU memorises a rhyme and recites it.
 */
#include <string.h>

#include "common.h"

static const char rhyme[] = "the rose is red, the violet's blue, the honey's sweet, and so are you. ";
enum { LENGTH = sizeof rhyme - 1, SYMBOLS = 128, EMBED = 16, HIDDEN = 48, STEPS = 150 };

/* Both sessions use this description; they differ only in length. Returns the logits. */
static remat_value speaker(remat_graph *g, int64_t timesteps) {
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){timesteps, 1});
    remat_init small = remat_init_uniform(0.14);
    remat_value table = remat_param(g, "table", 2, (int64_t[]){SYMBOLS, EMBED}, remat_init_normal(1));
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){3 * HIDDEN, EMBED}, small);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){3 * HIDDEN, HIDDEN}, small);
    remat_value b_ih = remat_param(g, "b_ih", 1, (int64_t[]){3 * HIDDEN}, small);
    remat_value b_hh = remat_param(g, "b_hh", 1, (int64_t[]){3 * HIDDEN}, small);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){SYMBOLS, HIDDEN}, small);
    remat_value h = remat_gru(g, remat_embedding(g, tokens, table), w_ih, w_hh, b_ih, b_hh);
    return remat_linear(g, h, w, REMAT_NONE);
}

static void learn(remat_session *s) {
    int32_t tokens[LENGTH], targets[LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        tokens[i] = rhyme[i];
        targets[i] = rhyme[(i + 1) % LENGTH];
    }
    check(remat_write(s, REMAT_INPUT, 0, tokens, sizeof tokens));
    check(remat_write(s, REMAT_INPUT, 1, targets, sizeof targets));
    remat_step_result result;
    for (int step = 0; step < STEPS; step++) {
        check(remat_gradients(s, &result)); /* gradients may be read here: remat_read(s, REMAT_GRADIENT, ...) */
        double warm_up = step < 10 ? (step + 1) / 10.0 : 1;
        check(remat_update(s, 0.01 * warm_up, &result));
        if (step % 50 == 0) printf("step %3d: loss %.1f\n", step, result.loss);
    }
    printf("at last: loss %.1f\n", result.loss);
}

static void copy_parameters(remat_session *from, remat_session *to) {
    static float buffer[SYMBOLS * HIDDEN * 3];
    for (int64_t i = 0; i < remat_count(from, REMAT_PARAM); i++) {
        remat_array array;
        check(remat_array_info(from, REMAT_PARAM, i, &array));
        check(remat_read(from, REMAT_PARAM, i, buffer, array.bytes));
        check(remat_write(to, REMAT_PARAM, remat_find(to, REMAT_PARAM, array.name), buffer, array.bytes));
    }
}

/* Starts with the first letter. One timestep per call; each call continues from the state of the previous one. */
static void recite(remat_session *s, int32_t token) {
    putchar(token);
    for (int i = 1; i < LENGTH - 1; i++) { /* its last character is a space */
        float logits[SYMBOLS];
        remat_step_result result;
        check(remat_write(s, REMAT_INPUT, 0, &token, sizeof token));
        check(remat_evaluate(s, &result));
        check(remat_read(s, REMAT_OUTPUT, 0, logits, sizeof logits));
        token = 0;
        for (int32_t v = 1; v < SYMBOLS; v++)
            if (logits[v] > logits[token]) token = v;
        putchar(token);
    }
    putchar('\n');
}

int main(void) {
    remat_graph *long_graph, *short_graph;
    check(remat_graph_create(&long_graph));
    check(remat_graph_create(&short_graph));
    remat_value logits = speaker(long_graph, LENGTH);
    remat_value targets = remat_input(long_graph, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){LENGTH, 1});
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adam";
    config.clip_grad_norm = 5;
    remat_session *teacher, *reciter;
    check(
        remat_session_create(long_graph, remat_softmax_cross_entropy(long_graph, logits, targets), &config, &teacher));
    learn(teacher);

    remat_value next = speaker(short_graph, 1);
    config = REMAT_CONFIG_INIT;
    config.inference = config.stateful = true;
    config.outputs = &next;
    config.n_outputs = 1;
    check(remat_session_create(short_graph, REMAT_NONE, &config, &reciter));
    copy_parameters(teacher, reciter);
    recite(reciter, rhyme[0]);

    remat_session_free(teacher);
    remat_session_free(reciter);
    remat_graph_free(long_graph);
    remat_graph_free(short_graph);
    return 0;
}

/* Expected output:
step   0: loss 4.9
step  50: loss 0.9
step 100: loss 0.1
at last: loss 0.0
the rose is red, the violet's blue, the honey's sweet, and so are you.
*/

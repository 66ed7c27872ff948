/* 16_sessions_that_share.c: a last, short batch and an evaluation at another length, with the parameters and the memory of the session
 * that trains.
 *
 * It introduces `remat_graph_resized`, which copies a network for another batch or length, `remat_config.share`, and `remat_correct`.
 * 10 sequences are trained in batches of 4, 4 and 2: each of them is seen once in an epoch. The task is to repeat the first symbol of a
 * sequence at each timestep; the evaluation asks for it after twice the length.
 */
#include "common.h"

enum { TIME = 12, LONGER = 24, ROWS = 10, BATCH = 4, LAST = ROWS % BATCH, SYMBOLS = 5, HIDDEN = 24, EPOCHS = 150 };

typedef struct {
    remat_graph *graph;
    remat_session *session;
} net;

static remat_value logits;

static remat_value network(remat_graph *g) {
    remat_init small = remat_init_uniform(0.2);
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){TIME, BATCH});
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){TIME, BATCH});
    remat_value table = remat_param(g, "table", 2, (int64_t[]){SYMBOLS, 8}, remat_init_normal(1));
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){4 * HIDDEN, 8}, small);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, small);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){SYMBOLS, HIDDEN}, small);
    remat_value h = remat_lstm(g, remat_embedding(g, tokens, table), w_ih, w_hh, REMAT_NONE, REMAT_NONE);
    logits = remat_linear(g, h, w, REMAT_NONE);
    return remat_softmax_cross_entropy(g, logits, targets);
}

/* The network for another length and batch, whose session shares the first one's arrays. Values keep their ids. */
static net resized(const net *first, remat_value loss, remat_config config, int64_t timesteps, int64_t rows) {
    net n;
    check(remat_graph_resized(first->graph, TIME, timesteps, BATCH, rows, &n.graph));
    config.share = first->session;
    check(remat_session_create(n.graph, loss, &config, &n.session));
    return n;
}

/* Rows first .. first+rows-1: row r begins with symbol r % SYMBOLS; the symbols after it carry no information. */
static void feed(remat_session *s, int64_t timesteps, int64_t rows, int64_t first, int32_t *targets) {
    int32_t tokens[LONGER * ROWS];
    for (int64_t t = 0; t < timesteps; t++)
        for (int64_t b = 0; b < rows; b++) {
            int64_t row = first + b;
            tokens[t * rows + b] = (int32_t)((row + (t ? t * t + row / SYMBOLS : 0)) % SYMBOLS);
            targets[t * rows + b] = (int32_t)(row % SYMBOLS);
        }
    uint64_t bytes = (uint64_t)(timesteps * rows) * sizeof *tokens;
    check(remat_write(s, REMAT_INPUT, 0, tokens, bytes));
    check(remat_write(s, REMAT_INPUT, 1, targets, bytes));
}

static void free_net(net *n) {
    remat_session_free(n->session);
    remat_graph_free(n->graph);
}

int main(void) {
    net first;
    remat_config config = REMAT_CONFIG_INIT;
    remat_step_result result;
    int32_t targets[LONGER * ROWS];
    float out[LONGER * ROWS * SYMBOLS];
    config.optimizer = "adam";
    check(remat_graph_create(&first.graph));
    remat_value loss = network(first.graph);
    check(remat_session_create(first.graph, loss, &config, &first.session));
    net last = resized(&first, loss, config, TIME, LAST); /* trains, too: gradients and Adam's averages are shared */
    config.inference = true;
    config.outputs = &logits;
    config.n_outputs = 1;
    net longer = resized(&first, loss, config, LONGER, ROWS);
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        for (int64_t row = 0; row < ROWS; row += BATCH) {
            bool whole = row + BATCH <= ROWS;
            remat_session *s = whole ? first.session : last.session;
            feed(s, TIME, whole ? BATCH : LAST, row, targets);
            check(remat_step(s, 0.01, &result));
        }
    feed(longer.session, LONGER, ROWS, 0, targets);
    check(remat_evaluate(longer.session, &result));
    check(remat_read(longer.session, REMAT_OUTPUT, 0, out, sizeof out));
    printf("all rows, %d timesteps: loss %s, %lld of %d right\n", LONGER, result.loss < 0.1 ? "below 0.1" : "too large",
           (long long)remat_correct(out, targets, LONGER * ROWS, SYMBOLS, 1), LONGER * ROWS);
    free_net(&longer);
    free_net(&last);
    free_net(&first);
    return 0;
}

/* Expected output:
all rows, 24 timesteps: loss below 0.1, 240 of 240 right
*/

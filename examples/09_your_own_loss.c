/* 09_your_own_loss.c: a loss that the library lacks, and the inputs that an output depends on.
 *
 * It introduces outputs whose gradients come from your code (n_differentiated), remat_forward and remat_backward, and
 * gradients of inputs (remat_requires_grad). An RNN reads whether each moment is calm or wild, and learns a bound that
 * nine in ten values of the next moment stay below: the 0.9 quantile, which minimises the pinball loss. For a value y
 * and a forecast q this loss is 0.9 (y - q) if y > q, else 0.1 (q - y). The session runs in a planned arena, where most
 * activations are dropped and recomputed.
 */
#include <math.h>

#include "common.h"

enum { T = 200, B = 4, HIDDEN = 8, STEPS = 400 };

static float wildness[T][B][1], value[T][B], forecast[T][B], gradient[T][B];

static float draw(void) { /* from 0 .. 1 */
    static uint32_t state = 1;
    state = state * 1664525 + 1013904223;
    return (float)(state >> 8) * 0x1p-24f;
}

/* After a calm moment the next value is uniform in +-0.25, after a wild one in +-1. */
static void observe(void) {
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++) {
            wildness[t][b][0] = draw() < 0.5f ? 0 : 1;
            value[t][b] = (2 * draw() - 1) * (t && wildness[t - 1][b][0] > 0 ? 1 : 0.25f);
        }
}

static remat_value network(remat_graph *g) {
    remat_init small = remat_init_uniform(0.3);
    remat_value x = remat_input(g, "wildness", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, 1});
    remat_requires_grad(g, x);
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){HIDDEN, 1}, small);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){HIDDEN, HIDDEN}, small);
    remat_value b_ih = remat_param(g, "b_ih", 1, (int64_t[]){HIDDEN}, small);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){1, HIDDEN}, small);
    remat_value b = remat_param(g, "b", 1, (int64_t[]){1}, remat_init_zero());
    return remat_linear(g, remat_rnn_tanh(g, x, w_ih, w_hh, b_ih, REMAT_NONE), w, b);
}

/* The mean over all forecasts, and its gradient. */
static double pinball(void) {
    double loss = 0;
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++) {
            double above = value[t][b] - forecast[t][b];
            loss += (above > 0 ? 0.9 * above : -0.1 * above) / (T * B);
            gradient[t][b] = (above > 0 ? -0.9f : 0.1f) / (T * B);
        }
    return loss;
}

static double train(remat_session *s, double lr) {
    observe();
    check(remat_write(s, REMAT_INPUT, 0, wildness, sizeof wildness));
    check(remat_forward(s));
    check(remat_read(s, REMAT_OUTPUT, 0, forecast, sizeof forecast));
    double loss = pinball();
    check(remat_write(s, REMAT_OUTPUT_GRADIENT, 0, gradient, sizeof gradient));
    check(remat_backward(s, NULL));
    check(remat_update(s, lr, NULL));
    return loss;
}

/* The input with the largest gradient of the last forecast of row 0: that forecast's gradient is set to 1, all others
 * to 0. */
static int most_important_moment(remat_session *s) {
    static float by_input[T][B][1];
    for (int t = 0; t < T; t++)
        for (int b = 0; b < B; b++) gradient[t][b] = t == T - 1 && b == 0;
    check(remat_forward(s));
    check(remat_write(s, REMAT_OUTPUT_GRADIENT, 0, gradient, sizeof gradient));
    check(remat_backward(s, NULL));
    check(remat_read(s, REMAT_GRADIENT, remat_find(s, REMAT_GRADIENT, "wildness"), by_input, sizeof by_input));
    int most = 0;
    for (int t = 1; t < T; t++)
        if (fabsf(by_input[t][0][0]) > fabsf(by_input[most][0][0])) most = t;
    return most;
}

int main(void) {
    remat_graph *graph;
    remat_session *s;
    check(remat_graph_create(&graph));
    remat_value forecasts = network(graph);
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adam";
    config.strategy = "sqrt"; /* any other gives the same bits */
    config.tile = 8;
    config.outputs = &forecasts;
    config.n_outputs = config.n_differentiated = 1;
    check(remat_session_create(graph, REMAT_NONE, &config, &s)); /* without a loss from the library */
    double last = 0;
    for (int step = 0; step < STEPS; step++) {
        double loss = train(s, step < STEPS / 2 ? 0.01 : 0.001);
        if (step == 0) printf("first step: loss %.2f\n", loss);
        if (step >= STEPS - 100) last += loss / 100;
    }
    printf("last step:  loss %.2f\n", last);
    double sum[2] = {0}, n[2] = {0};
    for (int t = 1; t < T; t++)
        for (int b = 0; b < B; b++) {
            int wild = wildness[t - 1][b][0] > 0;
            sum[wild] += forecast[t][b];
            n[wild]++;
        }
    printf("nine in ten stay below %.1f after a calm moment, and below %.1f after a wild one\n", sum[0] / n[0],
           sum[1] / n[1]);
    printf("the forecast for moment %d depends most on moment %d\n", T - 1, most_important_moment(s));
    remat_session_free(s);
    remat_graph_free(graph);
    return 0;
}

/* Expected output:
first step: loss 0.10
last step:  loss 0.06
nine in ten stay below 0.2 after a calm moment, and below 0.8 after a wild one
the forecast for moment 199 depends most on moment 198
*/

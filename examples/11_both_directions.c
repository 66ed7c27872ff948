/* 11_both_directions.c: a bidirectional recurrent layer with exact gradients over a long sequence, in a byte budget.
 *
 * It introduces remat_reverse, which reverses time, remat_concat, and plans for networks that pass over time more
 * than once. At each of 1,000 timesteps the target is the mean of the numbers three steps earlier and three steps
 * later. A layer that only runs forwards cannot know the later one; a pair of layers, one per direction, can. PyTorch:
 * nn.LSTM(..., bidirectional=True).
 */
#include <string.h>

#include "common.h"

enum { TIMESTEPS = 1000, BATCH = 4, HIDDEN = 16, LAG = 3, STEPS = 200 };

static remat_value parameter(remat_graph *g, const char *layer, const char *name, int rank, int64_t rows,
                             int64_t columns) {
    char text[64];
    snprintf(text, sizeof text, "%s.%s", layer, name);
    return remat_param(g, text, rank, (int64_t[]){rows, columns}, remat_init_uniform(0.25));
}

static remat_value lstm(remat_graph *g, remat_value x, const char *name) {
    return remat_lstm(g, x, parameter(g, name, "weight_ih", 2, 4 * HIDDEN, 1),
                      parameter(g, name, "weight_hh", 2, 4 * HIDDEN, HIDDEN),
                      parameter(g, name, "bias", 1, 4 * HIDDEN, 1), REMAT_NONE);
}

static remat_value network(remat_graph *g, bool both) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){TIMESTEPS, BATCH, 1});
    remat_value answer = remat_input(g, "answer", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){TIMESTEPS, BATCH, 1});
    remat_value y = lstm(g, x, "forwards");
    if (both) {
        remat_value backward = remat_reverse(g, lstm(g, remat_reverse(g, x), "backwards"));
        y = remat_concat(g, (remat_value[]){y, backward}, 2);
    }
    remat_value w = parameter(g, "head", "weight", 2, 1, both ? 2 * HIDDEN : HIDDEN);
    return remat_mse(g, remat_linear(g, y, w, parameter(g, "head", "bias", 1, 1, 1)), answer);
}

static float x[TIMESTEPS][BATCH], answer[TIMESTEPS][BATCH];

/* Its own random numbers, so that the output is the same everywhere. */
static float uniform(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(state >> 40) * 0x1p-24f;
}

static void make_batch(void) {
    for (int t = 0; t < TIMESTEPS; t++)
        for (int b = 0; b < BATCH; b++) x[t][b] = uniform();
    for (int t = LAG; t < TIMESTEPS - LAG; t++)
        for (int b = 0; b < BATCH; b++) answer[t][b] = (x[t - LAG][b] + x[t + LAG][b]) / 2;
}

/* Fills in the losses of all steps. Budget 0: no budget. Returns the bytes that a budget counts. */
static uint64_t train(bool both, uint64_t budget, double loss[STEPS]) {
    remat_graph *g;
    remat_session *s;
    check(remat_graph_create(&g));
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = "optimal"; /* the fastest plan that fits; without a budget it recomputes nothing */
    config.memory_budget = budget;
    config.optimizer = "adam";
    config.threads = 1;
    config.seed = 1;
    check(remat_session_create(g, network(g, both), &config, &s));
    check(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    check(remat_write(s, REMAT_INPUT, 1, answer, sizeof answer));
    remat_step_result result;
    for (int step = 0; step < STEPS; step++) {
        check(remat_step(s, 0.02, &result));
        loss[step] = result.loss;
    }
    remat_plan_summary plan;
    check(remat_session_plan(s, &plan));
    uint64_t bytes = plan.budgeted_bytes;
    printf("%s, %-12s recomputed stages in a step: %s\n", both ? "both directions" : "one direction  ",
           budget ? "half of it:" : "no budget:", result.recomputed_stages ? "some" : "none");
    remat_session_free(s);
    remat_graph_free(g);
    return bytes;
}

int main(void) {
    double one[STEPS], both[STEPS], budgeted[STEPS];
    make_batch();
    train(false, 0, one);
    uint64_t bytes = train(true, 0, both);
    train(true, bytes / 2, budgeted);
    printf("the future helps: %s\n", both[STEPS - 1] < one[STEPS - 1] / 2 ? "yes" : "no");
    printf("losses in half the memory, bit by bit: %s\n",
           memcmp(both, budgeted, sizeof both) ? "DIFFERENT" : "the same");
    return 0;
}

/* Expected output:
one direction  , no budget:   recomputed stages in a step: none
both directions, no budget:   recomputed stages in a step: none
both directions, half of it:  recomputed stages in a step: some
the future helps: yes
losses in half the memory, bit by bit: the same
*/

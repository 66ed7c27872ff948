/* 03_long_sequence_lstm.c: the purpose of Remat: exact back-propagation through a long sequence in little memory,
 * bit-identical to training without recomputation.
 *
 * It introduces training with different strategies. An LSTM reads 4,000 random numbers. Two of them are marked, one
 * near the start and one in the middle, and the LSTM must output their sum at the end (the "adding problem"). It is
 * trained twice from the same seed: with all activations stored, and in segments. The program compares the losses bit
 * by bit and prints the memory.
 */
#include <string.h>

#include "common.h"

enum { TIMESTEPS = 4000, BATCH = 8, HIDDEN = 32, STEPS = 3 };

static remat_value adding_network(remat_graph *g) {
    remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){TIMESTEPS, BATCH, 2});
    remat_value sum = remat_input(g, "sum", REMAT_F32, REMAT_STATIC, 2, (int64_t[]){BATCH, 1});
    remat_init small = remat_init_uniform(0.17);
    remat_value w_ih = remat_param(g, "w_ih", 2, (int64_t[]){4 * HIDDEN, 2}, small);
    remat_value w_hh = remat_param(g, "w_hh", 2, (int64_t[]){4 * HIDDEN, HIDDEN}, small);
    remat_value b_ih = remat_param(g, "b_ih", 1, (int64_t[]){4 * HIDDEN}, small);
    remat_value b_hh = remat_param(g, "b_hh", 1, (int64_t[]){4 * HIDDEN}, small);
    remat_value w = remat_param(g, "w", 2, (int64_t[]){1, HIDDEN}, small);
    remat_value h = remat_lstm(g, x, w_ih, w_hh, b_ih, b_hh);
    return remat_mse(g, remat_linear(g, remat_last_step(g, h), w, REMAT_NONE), sum);
}

/* Its own random numbers, so that the output is the same everywhere. */
static float uniform(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(state >> 40) * 0x1p-24f;
}

static void make_batch(float x[TIMESTEPS][BATCH][2], float sum[BATCH]) {
    for (int b = 0; b < BATCH; b++) {
        for (int t = 0; t < TIMESTEPS; t++) {
            x[t][b][0] = uniform();
            x[t][b][1] = 0;
        }
        int first = (int)(uniform() * 100), second = TIMESTEPS / 2 + (int)(uniform() * 100);
        x[first][b][1] = x[second][b][1] = 1;
        sum[b] = x[first][b][0] + x[second][b][0];
    }
}

static float x[TIMESTEPS][BATCH][2], sum[BATCH];

static void train(const char *strategy, int64_t segments, double loss[STEPS]) {
    remat_graph *g;
    remat_session *s;
    check(remat_graph_create(&g));
    remat_config config = REMAT_CONFIG_INIT;
    config.strategy = strategy;
    config.segments = segments;
    config.optimizer = "adam";
    config.clip_grad_norm = 1;
    config.seed = 1;
    check(remat_session_create(g, adding_network(g), &config, &s));
    check(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    check(remat_write(s, REMAT_INPUT, 1, sum, sizeof sum));
    remat_step_result result;
    for (int step = 0; step < STEPS; step++) {
        check(remat_step(s, 0.002, &result));
        loss[step] = result.loss;
    }
    remat_plan_summary plan;
    check(remat_session_plan(s, &plan));
    printf("%-8s  activations %2.0f MiB, recomputed stages in a step: %ld of %ld\n", plan.strategy,
           (double)plan.activations_peak_bytes / (1 << 20), (long)result.recomputed_stages, (long)plan.n_stages);
    remat_session_free(s);
    remat_graph_free(g);
}

int main(void) {
    double kept[STEPS], segments[STEPS];
    make_batch(x, sum);
    train("none", 0, kept);
    train("segments", 16, segments);
    printf("losses, bit by bit: %s\n", memcmp(kept, segments, sizeof kept) ? "DIFFERENT" : "the same");
    printf("the loss fell: %s\n", kept[STEPS - 1] < kept[0] ? "yes" : "no");
    return 0;
}

/* Expected output:
none      activations 24 MiB, recomputed stages in a step: 0 of 63
segments  activations  2 MiB, recomputed stages in a step: 59 of 63
losses, bit by bit: the same
the loss fell: yes
*/

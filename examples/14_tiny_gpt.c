/* 14_tiny_gpt.c: a transformer of three blocks memorises a song byte by byte and continues it from its first words.
 *
 * It introduces attention as in Llama (rotary positions, four query heads on two key and value heads), a residual
 * stream, a head tied to the embedding, and outputs besides the loss, which an evaluation computes. The plan may drop
 * and recompute every block: here the activations are halved, and the losses stay bit-identical.
 */
#include <math.h>
#include <string.h>

#include "common.h"

enum { T = 96, BATCH = 4, WIDTH = 32, HEADS = 4, GROUPS = 2, BLOCKS = 3, BYTES = 128, STEPS = 120 };

static remat_value parameter(remat_graph *g, int block, const char *what, int64_t rows, int64_t columns) {
    char name[32];
    snprintf(name, sizeof name, "h.%d.%s", block, what);
    return remat_param(g, name, 2, (int64_t[]){rows, columns}, remat_init_normal(1 / sqrt((double)columns)));
}

static remat_value norm(remat_graph *g, remat_value x, int block, const char *what) {
    const int64_t width = WIDTH;
    char name[32];
    snprintf(name, sizeof name, "h.%d.%s", block, what);
    return remat_rms_norm(g, x, remat_param(g, name, 1, &width, remat_init_constant(1)), 1e-5);
}

static remat_value linear(remat_graph *g, remat_value x, int block, const char *what, int64_t rows, int64_t columns) {
    return remat_linear(g, x, parameter(g, block, what, rows, columns), REMAT_NONE);
}

static remat_value block(remat_graph *g, remat_value x, int i) {
    const int64_t narrow = WIDTH / HEADS * GROUPS;
    remat_value y = norm(g, x, i, "attention.norm");
    remat_value q = remat_rotary(g, linear(g, y, i, "q", WIDTH, WIDTH), HEADS, 10000);
    remat_value k = remat_rotary(g, linear(g, y, i, "k", narrow, WIDTH), GROUPS, 10000);
    y = remat_attention(g, q, k, linear(g, y, i, "v", narrow, WIDTH), HEADS, true);
    x = remat_add(g, x, linear(g, y, i, "o", WIDTH, WIDTH));
    y = remat_gelu(g, linear(g, norm(g, x, i, "mlp.norm"), i, "up", 4 * WIDTH, WIDTH));
    return remat_add(g, x, linear(g, y, i, "down", WIDTH, 4 * WIDTH));
}

/* The loss; *logits (T,B,BYTES). */
static remat_value gpt(remat_graph *g, remat_value *logits) {
    remat_value byte = remat_input(g, "bytes", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, BATCH});
    remat_value next = remat_input(g, "next", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, BATCH});
    remat_value table = remat_param(g, "embedding", 2, (int64_t[]){BYTES, WIDTH}, remat_init_normal(0.2));
    remat_value x = remat_embedding(g, byte, table);
    for (int i = 0; i < BLOCKS; i++) x = block(g, x, i);
    *logits = remat_linear(g, norm(g, x, BLOCKS, "norm"), table, REMAT_NONE);
    return remat_softmax_cross_entropy(g, *logits, next);
}

/* ---- The song ---------------------------------------------------------------------------------------------------- */

static char song[4096];
static int length;

static void compose(void) {
    static const char *const number[] = {"no", "one", "two", "three", "four", "five", "six", "seven"};
    for (int verse = 0; verse < 21; verse++)
        length += snprintf(song + length, sizeof song - (size_t)length,
                           "%s green bottles hanging on the wall, and one of them falls.\n", number[7 - verse % 7]);
}

static void write_batch(remat_session *s, int step) {
    int32_t byte[T][BATCH], next[T][BATCH];
    for (int b = 0; b < BATCH; b++) {
        int at = (step * 37 + b * 151) % (length - T - 1);
        for (int t = 0; t < T; t++) byte[t][b] = song[at + t], next[t][b] = song[at + t + 1];
    }
    check(remat_write(s, REMAT_INPUT, 0, byte, sizeof byte));
    check(remat_write(s, REMAT_INPUT, 1, next, sizeof next));
}

/* Appends the most probable next byte to the first `n` bytes, again and again, up to the end of the line. Only row 0 of
 * the batch is used; attention is causal, so bytes after the n-th have no effect. */
static void sing(remat_session *s, char *line, int n) {
    static float logits[T][BATCH][BYTES];
    int32_t byte[T][BATCH] = {{0}};
    while (n < T && (n == 0 || line[n - 1] != '\n')) {
        for (int t = 0; t < n; t++) byte[t][0] = line[t];
        check(remat_write(s, REMAT_INPUT, 0, byte, sizeof byte));
        check(remat_evaluate(s, NULL));
        check(remat_read(s, REMAT_OUTPUT, 0, logits, sizeof logits));
        int likeliest = 0;
        for (int i = 1; i < BYTES; i++)
            if (logits[n - 1][0][i] > logits[n - 1][0][likeliest]) likeliest = i;
        line[n++] = (char)likeliest;
    }
    line[n] = 0;
}

/* Fills in the losses of all steps. Budget 0: no limit. Returns the budget that would halve the activations. */
static uint64_t train(uint64_t budget, double loss[STEPS]) {
    remat_graph *g;
    remat_session *s;
    remat_value logits;
    remat_step_result result;
    check(remat_graph_create(&g));
    remat_value mean = gpt(g, &logits);
    remat_config config = REMAT_CONFIG_INIT;
    config.optimizer = "adamw";
    config.strategy = "optimal";
    config.memory_budget = budget;
    config.threads = 1;
    config.outputs = &logits;
    config.n_outputs = 1;
    check(remat_session_create(g, mean, &config, &s));
    for (int step = 0; step < STEPS; step++) {
        write_batch(s, step);
        check(remat_step(s, 0.01, &result));
        loss[step] = result.loss;
    }
    char line[T + 1] = "five green";
    sing(s, line, (int)strlen(line));
    printf("%s, recomputed: %s\n  %s", budget ? "half the activations" : "no recomputation",
           result.recomputed_stages ? "some" : "none", line);
    remat_plan_summary plan;
    check(remat_session_plan(s, &plan));
    remat_session_free(s);
    remat_graph_free(g);
    return plan.budgeted_bytes - plan.activations_peak_bytes / 2;
}

int main(void) {
    double kept[STEPS], again[STEPS];
    compose();
    train(train(0, kept), again);
    printf("loss below 0.1: %s; the same bits: %s\n", kept[STEPS - 1] < 0.1 ? "yes" : "no",
           memcmp(kept, again, sizeof kept) ? "NO" : "yes");
    return 0;
}

/* Expected output:
no recomputation, recomputed: none
  five green bottles hanging on the wall, and one of them falls.
half the activations, recomputed: some
  five green bottles hanging on the wall, and one of them falls.
loss below 0.1: yes; the same bits: yes
*/

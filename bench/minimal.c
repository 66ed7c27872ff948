/* minimal.c: training steps, forward and backward, of one recurrent layer: mingru, minlstm, lstm or gru. minimal.py
 * runs it to compare it with PyTorch. It prints one line: the seconds of each step and the bytes of activations.
 *
 *     bench_minimal CELL B I H T [SEGMENTS [STEPS [THREADS]]]
 *
 * I > 0: I numbers per timestep; the loss is the mean square of h. I = 0: a byte-level language model: embedding (H),
 * layer, linear, cross entropy. SEGMENTS 0: no recomputation.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/abi.h"
#include "engine/remat.h"

enum { VOCABULARY = 256 };

typedef struct {
    const char *cell;
    int64_t batch, in, hidden, steps;
} work;

static void check(remat_status status) {
    if (status) fprintf(stderr, "%s\n", remat_last_error()), exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t number(char **argv, int argc, int i, int64_t otherwise) {
    return i < argc ? strtoll(argv[i], NULL, 10) : otherwise;
}

static remat_value matrix(remat_graph *g, const char *name, int64_t rows, int64_t columns) {
    return remat_param(g, name, 2, (int64_t[]){rows, columns}, remat_init_uniform(1 / sqrt((double)columns)));
}

/* For tokens: rows of the product of embedding and weights, computed once per step. Sessions fold an LSTM's embedding
 * in the same way. */
static remat_value projected(remat_graph *g, remat_value x, remat_value embedding, int64_t rows, int64_t width) {
    remat_value w = matrix(g, "w", rows, width);
    if (!embedding.id) return remat_linear(g, x, w, REMAT_NONE);
    return remat_embedding(g, x, remat_linear(g, embedding, w, REMAT_NONE));
}

static remat_value layer(remat_graph *g, const work *k, remat_value x, remat_value embedding, int64_t width) {
    int64_t h = k->hidden;
    bool gru = !strcmp(k->cell, "gru"), lstm = !strcmp(k->cell, "lstm");
    if (!strcmp(k->cell, "mingru")) return remat_min_gru(g, projected(g, x, embedding, 2 * h, width));
    if (!strcmp(k->cell, "minlstm")) return remat_min_lstm(g, projected(g, x, embedding, 3 * h, width));
    if (!gru && !lstm) fprintf(stderr, "no cell %s\n", k->cell), exit(2);
    int64_t rows = (lstm ? 4 : 3) * h;
    remat_value w_ih = matrix(g, "w_ih", rows, width), w_hh = matrix(g, "w_hh", rows, h);
    remat_value b_ih = remat_param(g, "b_ih", 1, &rows, remat_init_zero());
    remat_value b_hh = remat_param(g, "b_hh", 1, &rows, remat_init_zero());
    if (embedding.id) x = remat_embedding(g, x, embedding);
    return (lstm ? remat_lstm : remat_gru)(g, x, w_ih, w_hh, b_ih, b_hh);
}

static remat_value describe(remat_graph *g, const work *k) {
    int64_t tokens[] = {k->steps, k->batch}, numbers[] = {k->steps, k->batch, k->in},
            h[] = {k->steps, k->batch, k->hidden};
    if (k->in) {
        remat_value x = remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, numbers);
        return remat_mse(g, layer(g, k, x, REMAT_NONE, k->in),
                         remat_input(g, "target", REMAT_F32, REMAT_SEQUENCE, 3, h));
    }
    remat_value x = remat_input(g, "x", REMAT_I32, REMAT_SEQUENCE, 2, tokens);
    remat_value target = remat_input(g, "target", REMAT_I32, REMAT_SEQUENCE, 2, tokens);
    remat_value embedding = matrix(g, "embedding", VOCABULARY, k->hidden);
    x = remat_linear(g, layer(g, k, x, embedding, k->hidden), matrix(g, "head", VOCABULARY, k->hidden), REMAT_NONE);
    return remat_softmax_cross_entropy(g, x, target);
}

static void fill(remat_session *s) {
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        check(remat_array_info(s, REMAT_INPUT, i, &info));
        void *data = calloc(1, info.bytes);
        for (uint64_t k = 0; k < info.bytes / 4 && data; k++)
            if (info.dtype == REMAT_I32)
                ((int32_t *)data)[k] = (int32_t)(k * 7919 % VOCABULARY);
            else if (i == 0)
                ((float *)data)[k] = sinf((float)k);
        check(remat_write(s, REMAT_INPUT, i, data, info.bytes));
        free(data);
    }
}

int main(int argc, char **argv) {
    if (argc < 6) return fprintf(stderr, "bench_minimal CELL B I H T [SEGMENTS [STEPS [THREADS]]]\n"), 2;
    work k = {argv[1], number(argv, argc, 2, 1), number(argv, argc, 3, 1), number(argv, argc, 4, 1),
              number(argv, argc, 5, 1)};
    remat_graph *g;
    remat_session *s;
    remat_config config = REMAT_CONFIG_INIT;
    check(remat_graph_create(&g));
    remat_value loss = describe(g, &k);
    config.segments = number(argv, argc, 6, 0);
    config.strategy = config.segments ? "segments" : "none";
    config.threads = (int)number(argv, argc, 8, 0);
    check(remat_session_create(g, loss, &config, &s));
    fill(s);
    for (int64_t i = 0, steps = number(argv, argc, 7, 5); i < steps; i++) {
        double start = now();
        check(remat_gradients(s, NULL));
        printf("%.6f ", now() - start);
    }
    printf("%llu\n", (unsigned long long)rm_plan_summary_of(s).activations_peak_bytes);
    remat_session_free(s);
    remat_graph_free(g);
    return 0;
}

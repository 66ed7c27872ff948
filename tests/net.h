/* net.h: the small networks that the tests of the engine train: embedding -> recurrent layers (dropout between) ->
 * linear -> cross-entropy, with PyTorch's parameter names. Main entries: net_build, net_session, net_feed. */
#ifndef NET_H
#define NET_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/remat.h"
#include "engine/rng.h"

typedef enum { NET_LSTM, NET_GRU, NET_RNN, NET_CELLS } net_cell;
static const char *const net_cell_name[] = {"lstm", "gru", "rnn"};
static const int net_gates[] = {4, 3, 1};

typedef struct {
    net_cell cell;
    int layers;
    int64_t vocabulary, embed, hidden, timesteps, batch;
    double dropout;
} net;

#ifndef CHECKED /* programs that do not use Check define their own */
#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())
#endif

static inline remat_value net_param(remat_graph *g, const char *prefix, const char *suffix, int layer, int rank,
                                    int64_t rows, int64_t columns, double bound) {
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%s%s", prefix, suffix);
    else
        snprintf(name, sizeof name, "%s%s_l%d", prefix, suffix, layer);
    return remat_param(g, name, rank, (int64_t[]){rows, columns}, remat_init_uniform(bound));
}

static inline remat_value net_layer(remat_graph *g, const net *n, int layer, remat_value x) {
    int64_t rows = net_gates[n->cell] * n->hidden, inputs = layer ? n->hidden : n->embed;
    double bound = 1 / sqrt((double)n->hidden);
    remat_value w_ih = net_param(g, "rnn.", "weight_ih", layer, 2, rows, inputs, bound);
    remat_value w_hh = net_param(g, "rnn.", "weight_hh", layer, 2, rows, n->hidden, bound);
    remat_value b_ih = net_param(g, "rnn.", "bias_ih", layer, 1, rows, 0, bound);
    remat_value b_hh = net_param(g, "rnn.", "bias_hh", layer, 1, rows, 0, bound);
    if (n->cell == NET_LSTM) return remat_lstm(g, x, w_ih, w_hh, b_ih, b_hh);
    if (n->cell == NET_GRU) return remat_gru(g, x, w_ih, w_hh, b_ih, b_hh);
    return remat_rnn_tanh(g, x, w_ih, w_hh, b_ih, b_hh);
}

/* Returns the loss. It does not assert: a test of failing allocations calls remat_graph_check itself. */
static inline remat_value net_build(remat_graph *g, const net *n) {
    int64_t shape[] = {n->timesteps, n->batch};
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, shape);
    remat_value table =
        remat_param(g, "embedding.weight", 2, (int64_t[]){n->vocabulary, n->embed}, remat_init_normal(1));
    remat_value x = remat_embedding(g, tokens, table);
    for (int layer = 0; layer < n->layers; layer++) {
        if (layer && n->dropout > 0) x = remat_dropout(g, x, n->dropout);
        x = net_layer(g, n, layer, x);
    }
    double bound = 1 / sqrt((double)n->hidden);
    remat_value w = net_param(g, "head.", "weight", -1, 2, n->vocabulary, n->hidden, bound);
    remat_value b = net_param(g, "head.", "bias", -1, 1, n->vocabulary, 0, bound);
    return remat_softmax_cross_entropy(g, remat_linear(g, x, w, b), targets);
}

/* Writes tokens and targets, drawn from the batch's number. */
static inline void net_feed(remat_session *s, const net *n, int64_t batch) {
    int64_t count = n->timesteps * n->batch;
    int32_t *data = malloc(count * sizeof *data);
    for (int input = 0; input < 2; input++) {
        for (int64_t i = 0; i < count; i++) data[i] = rm_random(17, batch, input, 0, i) % n->vocabulary;
        CHECKED(remat_write(s, REMAT_INPUT, input, data, count * sizeof *data));
    }
    free(data);
}

/* All arrays of a kind, one after the other. Free the result with free(). */
static inline unsigned char *net_read_all(remat_session *s, remat_kind kind, size_t *bytes) {
    *bytes = 0;
    unsigned char *all = NULL;
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, kind, i, &info));
        all = realloc(all, *bytes + info.bytes);
        CHECKED(remat_read(s, kind, i, all + *bytes, info.bytes));
        *bytes += info.bytes;
    }
    return all;
}

#endif

/* callers_loss.h: a network, and a cross-entropy that the caller computes from its logits. */
#ifndef CALLERS_LOSS_H
#define CALLERS_LOSS_H

#include "tests/engine/poison.h"
#include "tests/says.h"

#define CHECKED(call) ck_assert_msg((call) == REMAT_OK, "%s: %s", #call, remat_last_error())

/* ---- A network, and a loss of the caller ------------------------------------------------------------------------ */

enum { T = 23, B = 3, C = 5, H = 8, V = 7, TILE = 4 };

typedef struct {
    remat_graph *graph;
    remat_value logits, loss;
} tagger;

static inline remat_value matrix(remat_graph *g, const char *name, int64_t rows, int64_t columns) {
    return remat_param(g, name, 2, (int64_t[]){rows, columns}, remat_init_uniform(0.5));
}

static inline remat_value layer(remat_graph *g, int cell, remat_value x, int64_t width, const char *w_ih,
                                const char *w_hh) {
    static const int gates[] = {4, 3, 1};
    remat_value ih = matrix(g, w_ih, gates[cell] * H, width), hh = matrix(g, w_hh, gates[cell] * H, H);
    return (cell == 0 ? remat_lstm : cell == 1 ? remat_gru : remat_rnn_tanh)(g, x, ih, hh, REMAT_NONE, REMAT_NONE);
}

/* x -> recurrent -> dropout -> recurrent -> linear: a class for each timestep, with or without a built-in loss. */
static inline tagger build(int cell, bool with_loss) {
    tagger t = {0};
    CHECKED(remat_graph_create(&t.graph));
    remat_graph *g = t.graph;
    remat_value x = remat_requires_grad(g, remat_input(g, "x", REMAT_F32, REMAT_SEQUENCE, 3, (int64_t[]){T, B, C}));
    remat_value h = remat_dropout(g, layer(g, cell, x, C, "w_ih0", "w_hh0"), 0.2);
    t.logits = remat_linear(g, layer(g, cell, h, H, "w_ih1", "w_hh1"), matrix(g, "w", V, H), REMAT_NONE);
    if (with_loss) {
        remat_value targets = remat_input(g, "targets", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){T, B});
        t.loss = remat_softmax_cross_entropy(g, t.logits, targets);
    }
    CHECKED(remat_graph_check(g));
    return t;
}

static inline int32_t target(int batch, int row) { return (row * 5 + row / 3 + batch) % V; }

static inline void feed(remat_session *s, int batch) {
    float x[T * B * C];
    int32_t targets[T * B];
    for (int i = 0; i < T * B * C; i++) x[i] = (float)sin(1 + 0.37 * i + batch);
    for (int row = 0; row < T * B; row++) targets[row] = target(batch, row);
    CHECKED(remat_write(s, REMAT_INPUT, 0, x, sizeof x));
    if (remat_count(s, REMAT_INPUT) > 1) CHECKED(remat_write(s, REMAT_INPUT, 1, targets, sizeof targets));
}

/* The mean over rows of log(sum exp) - logit of the target. The gradient replaces the logits. */
static inline double cross_entropy(float logits[T * B * V], int batch) {
    double loss = 0;
    for (int row = 0; row < T * B; row++) {
        float *z = logits + row * V;
        double sum = 0, most = z[0], of_target = z[target(batch, row)];
        for (int v = 1; v < V; v++) most = fmax(most, z[v]);
        for (int v = 0; v < V; v++) sum += exp(z[v] - most);
        for (int v = 0; v < V; v++) z[v] = (float)((exp(z[v] - most) / sum - (v == target(batch, row))) / (T * B));
        loss += (log(sum) + most - of_target) / (T * B);
    }
    return loss;
}

/* A training step with the caller's own loss. */
static inline remat_status own_gradients(remat_session *s, int batch, remat_step_result *r) {
    static _Thread_local float logits[T * B * V];
    remat_status status = remat_forward(s);
    if (!status) status = remat_read(s, REMAT_OUTPUT, 0, logits, sizeof logits);
    double loss = cross_entropy(logits, batch);
    if (!status) status = remat_write(s, REMAT_OUTPUT_GRADIENT, 0, logits, sizeof logits);
    if (!status) status = remat_backward(s, r);
    ck_assert(status || r->loss == 0);
    r->loss = loss;
    return status;
}

static inline remat_config configured(void) {
    remat_config config = REMAT_CONFIG_INIT;
    config.tile = TILE;
    config.threads = 1;
    config.seed = 3;
    config.optimizer = "adam";
    return config;
}

/* A session of a tagger; its logits are differentiated if it has no built-in loss. */
static inline remat_session *open_session(const tagger *t, remat_config config) {
    remat_session *s;
    config.outputs = &t->logits;
    config.n_outputs = 1;
    config.n_differentiated = t->loss.id == 0;
    CHECKED(remat_session_create(t->graph, t->loss, &config, &s));
    poison(s);
    return s;
}

static inline void close_session(tagger *t, remat_session *s) {
    remat_session_free(s);
    remat_graph_free(t->graph);
}

/* ---- The same bits --------------------------------------------------------------------------------------------- */

typedef struct {
    double norm[2];
    unsigned char bits[1 << 16]; /* gradients and parameters after the last step */
    size_t n;
} trace;

static inline void read_all(remat_session *s, remat_kind kind, trace *out) {
    for (int64_t i = 0; i < remat_count(s, kind); i++) {
        remat_array info;
        CHECKED(remat_array_info(s, kind, i, &info));
        ck_assert_uint_le(out->n + info.bytes, sizeof out->bits);
        CHECKED(remat_read(s, kind, i, out->bits + out->n, info.bytes));
        out->n += info.bytes;
    }
}

#endif

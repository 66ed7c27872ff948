/* random_net.h: random networks, along time and by depth, and random valid plans for them. Some outputs lie on the path
 * to the loss, some do not, and some get their gradient from the caller. Main entries: random_net, ask_for_outputs,
 * differentiate_some, outside_gradients, random_plan. All draws depend on rng_state alone. */
#ifndef RANDOM_NET_H
#define RANDOM_NET_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph/graph.h"
#include "engine/rng.h"
#include "engine/session/session.h"
#include "memory/strategy.h"

/* ---- A small generator of its own ----------------------------------------------------------------------------- */

static uint64_t rng_state;
static inline uint32_t draw(uint32_t below) {
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}
static inline float draw_real(void) { return (float)draw(20001) / 10000.0f - 1; }

/* ---- Random networks ------------------------------------------------------------------------------------------ */

enum { MAX_POOL = 32, MAX_PARAMS = 128, MAX_OUTPUTS = 16 };
typedef struct {
    remat_graph *graph;
    remat_value pool[MAX_POOL];  /* values (T,B,C) or (B,C) to build on */
    remat_value apart[MAX_POOL]; /* more values, on which the loss does not depend */
    remat_value output[MAX_OUTPUTS];
    int n_pool, n_apart, n_outputs, n_differentiated, n_params;
    remat_value target, loss, twice_the_loss;
    bool picks_apart;
    int64_t steps, batch, width;
    bool odd; /* with shared parameters, a block that is used twice, computed weights, an unread branch */
    struct {
        remat_value value;
        int rank;
        int64_t a, b;
    } param[MAX_PARAMS];
} net;

static remat_value param(net *n, int rank, int64_t a, int64_t b) {
    char name[32];
    int from = n->odd && n->n_params && draw(3) == 0 ? (int)draw((uint32_t)n->n_params) : n->n_params;
    for (int i = from; i < n->n_params; i++)
        if (n->param[i].rank == rank && n->param[i].a == a && n->param[i].b == b) return n->param[i].value;
    snprintf(name, sizeof name, "p%d", n->n_params);
    remat_value value = remat_param(n->graph, name, rank, (int64_t[]){a, b}, remat_init_uniform(0.5));
    n->param[n->n_params].value = value;
    n->param[n->n_params].rank = rank;
    n->param[n->n_params].a = a;
    n->param[n->n_params++].b = b;
    return value;
}
static remat_value pick(net *n) {
    int i = (int)draw((uint32_t)(n->n_pool + (n->picks_apart ? n->n_apart : 0)));
    return i < n->n_pool ? n->pool[i] : n->apart[i - n->n_pool];
}

static void add_output(net *n, remat_value value) {
    if (n->n_outputs < MAX_OUTPUTS) n->output[n->n_outputs++] = value;
}

/* Sometimes gives the layer a mask of sequence starts, computed before it. Returns the layer's y with those resets. */
static remat_value maybe_reset(net *n, bool reversed) {
    char name[32];
    if (draw(3)) return REMAT_NONE;
    snprintf(name, sizeof name, "reset.%d", n->graph->n_values);
    remat_value reset = remat_input(n->graph, name, REMAT_F32, REMAT_SEQUENCE, 2, (int64_t[]){n->steps, n->batch});
    return reversed ? remat_reverse(n->graph, reset) : reset;
}
static remat_value reset_at(net *n, remat_value reset, remat_value y) {
    return reset.id ? remat_reset_states(n->graph, y, reset) : y;
}

/* For each row, the timestep that an input selects. */
static remat_value step_somewhere(net *n, remat_value x) {
    char name[32];
    snprintf(name, sizeof name, "index.%d", n->graph->n_values);
    return remat_step_at(n->graph, x, remat_input(n->graph, name, REMAT_I32, REMAT_STATIC, 1, &n->batch));
}

/* If the number of features is even: attention with two heads that share k and v, with rotary positions. Sometimes with a
 * bias. */
static remat_value attended(net *n) {
    remat_graph *g = n->graph;
    remat_value q = pick(n), k = pick(n), v = pick(n);
    bool causal = draw(2), even = n->width % 2 == 0;
    const int64_t heads = even ? 2 : 1, most = n->steps + (int64_t)draw(2);
    remat_value bias = REMAT_NONE;
    if (draw(3) == 0)
        bias = remat_reshape(g, param(n, 2, heads * n->steps, most), 3, (int64_t[]){heads, n->steps, most});
    if (!even && bias.id) return remat_biased_attention(g, q, k, v, 1, causal, REMAT_NONE, bias, 0);
    if (!even) return remat_attention(g, q, k, v, 1, causal);
    k = remat_slice(g, k, 0, n->width / 2), v = remat_slice(g, v, n->width / 2, n->width / 2);
    q = remat_rotary(g, q, 1, 50);
    const double dropout = draw(2) ? 0.2 : 0;
    if (bias.id) return remat_biased_attention(g, q, k, v, 2, causal, REMAT_NONE, bias, dropout);
    return remat_attention_dropout(g, q, k, v, 2, causal, REMAT_NONE, dropout);
}

/* Layers on reversed time. Their result is sometimes an output, in reversed order. */
static remat_value backwards(net *n) {
    remat_graph *g = n->graph;
    int64_t c = n->width;
    remat_value x = remat_reverse(g, pick(n)), y = x, reset = maybe_reset(n, true);
    if (draw(3))
        y = reset_at(n, reset,
                     remat_rnn_tanh(g, y, param(n, 2, c, c), param(n, 2, c, c), REMAT_NONE, param(n, 1, c, 1)));
    if (draw(2)) y = remat_add(g, remat_dropout(g, y, 0.25), x);
    if (draw(4) == 0) y = remat_attention(g, y, y, x, 1, true);
    if (draw(2))
        y = reset_at(n, reset,
                     remat_lstm(g, y, param(n, 2, 4 * c, c), param(n, 2, 4 * c, c), REMAT_NONE, param(n, 1, 4 * c, 1)));
    if (draw(6) == 0) add_output(n, y);
    if (draw(6) == 0) add_output(n, draw(2) ? remat_last_step(g, y) : step_somewhere(n, y));
    return remat_reverse(g, y);
}

/* A layer whose weights are known only after the last timestep. */
static remat_value known_at_the_end(net *n) {
    remat_graph *g = n->graph;
    static remat_value (*const reductions[])(remat_graph *, remat_value) = {remat_mean_over_time, remat_last_step,
                                                                            remat_max_over_time};
    remat_value whole = reductions[draw(3)](g, pick(n)); /* (B,C) */
    if (draw(2)) whole = remat_tanh(g, whole);
    return remat_linear(g, remat_linear(g, pick(n), whole, REMAT_NONE), param(n, 2, n->width, n->batch), REMAT_NONE);
}

/* Layers whose initial state is another layer's final state, or a parameter. */
static remat_value begun(net *n) {
    remat_graph *g = n->graph;
    int64_t c = n->width;
    remat_value first =
        remat_lstm(g, pick(n), param(n, 2, 4 * c, c), param(n, 2, 4 * c, c), param(n, 1, 4 * c, 1), REMAT_NONE);
    remat_value end = remat_final_state(g, first, (int)draw(2)), h = param(n, 2, n->batch, c),
                reset = maybe_reset(n, false);
    if (draw(3) == 0) add_output(n, end);
    if (draw(2)) end = remat_tanh(g, remat_add(g, end, h));
    remat_value y;
    if (draw(2))
        y = remat_gru(g, pick(n), param(n, 2, 3 * c, c), param(n, 2, 3 * c, c), REMAT_NONE, param(n, 1, 3 * c, 1));
    else
        y = remat_lstm(g, pick(n), param(n, 2, 4 * c, c), param(n, 2, 4 * c, c), REMAT_NONE, REMAT_NONE);
    y = reset_at(n, reset, y);
    reset = maybe_reset(n, false);
    if (draw(3) == 0)
        y = reset_at(n, reset,
                     remat_lstm_projected(g, pick(n), param(n, 2, 8 * c, c), param(n, 2, 8 * c, c), REMAT_NONE,
                                          param(n, 1, 8 * c, 1), param(n, 2, c, 2 * c)));
    remat_initial_state(g, y, 0, draw(3) ? end : h);
    return draw(2) ? remat_add(g, y, first) : y;
}

/* Layers whose input, or weight, is a reshape. */
static remat_value reshaped(net *n, bool timed) {
    remat_graph *g = n->graph;
    const int64_t seen[] = {n->steps, n->batch, 1, -1}, back[] = {n->steps, n->batch, n->width};
    const int64_t flat[] = {-1}, square[] = {n->width, n->width};
    remat_value y = remat_reshape(g, pick(n), timed ? 4 : 3, timed ? seen : seen + 1);
    if (draw(2)) y = remat_gelu(g, y);
    y = remat_reshape(g, y, timed ? 3 : 2, timed ? back : back + 1);
    remat_value w = remat_reshape(g, param(n, 2, n->width, n->width), 1, flat);
    return remat_linear(g, y, remat_reshape(g, w, 2, square), REMAT_NONE);
}

/* Time-independent values of deep layers, read tile by tile. */
static remat_value made_before(net *n) {
    remat_graph *g = n->graph;
    int64_t c = n->width;
    char name[32];
    snprintf(name, sizeof name, "before.%d", g->n_values);
    remat_value y = remat_input(g, name, REMAT_F32, REMAT_STATIC, 3, (int64_t[]){n->steps, n->batch, c}), x = y;
    for (uint32_t i = draw(3); i; i--) y = remat_gelu(g, remat_linear(g, y, param(n, 2, c, c), REMAT_NONE));
    y = remat_as_sequence(g, draw(2) ? remat_add(g, x, y) : y);
    return draw(2) ? remat_reverse(g, remat_linear(g, remat_reverse(g, y), param(n, 2, c, c), REMAT_NONE)) : y;
}

/* Linear recurrences, and the layers around them. */
static remat_value scanned(net *n) {
    remat_graph *g = n->graph;
    int64_t c = n->width;
    remat_value reset = maybe_reset(n, false);
    switch (draw(4)) {
    case 0:
        return reset_at(n, reset, remat_min_gru(g, remat_linear(g, pick(n), param(n, 2, 2 * c, c), REMAT_NONE)));
    case 1:
        return reset_at(n, reset, remat_min_lstm(g, remat_linear(g, pick(n), param(n, 2, 3 * c, c), REMAT_NONE)));
    case 2:
        return remat_linear_scan(g, remat_sigmoid(g, pick(n)), pick(n), reset);
    default: {
        char name[32];
        snprintf(name, sizeof name, "filter%d", (int)n->graph->n_values);
        remat_value w = remat_param(g, name, 3, (int64_t[]){c, 1, 2 + draw(3)}, remat_init_uniform(0.5));
        remat_value y = remat_causal_conv(g, pick(n), w, draw(2) ? param(n, 1, c, 1) : REMAT_NONE);
        return remat_rms_norm(g, reset_at(n, reset, y), param(n, 1, c, 1), 1e-5);
    }
    }
}

/* Statistics over all timesteps, also of few elements: a larger epsilon keeps them from amplifying rounding errors. A
 * single element has no statistics. */
static remat_value batch_normalised(net *n, bool timed) {
    remat_graph *g = n->graph;
    if (n->batch * (timed ? n->steps : 1) == 1) return remat_tanh(g, pick(n));
    const int64_t dim[] = {n->width};
    char name[2][32];
    for (int i = 0; i < 2; i++) snprintf(name[i], sizeof name[i], "running%d.%d", i, g->n_values);
    remat_value mean = remat_buffer(g, name[0], 1, dim, remat_init_zero());
    remat_value var = remat_buffer(g, name[1], 1, dim, remat_init_constant(1));
    remat_value gain = draw(2) ? param(n, 1, n->width, 1) : REMAT_NONE;
    remat_value y =
        remat_batch_norm(g, pick(n), gain, draw(2) ? param(n, 1, n->width, 1) : REMAT_NONE, mean, var, 0.2, 0.1, false);
    return draw(2) ? y : remat_relu(g, y);
}

/* Reads the features as a signal, or as an image of one row. */
static remat_value filtered(net *n, bool timed) {
    remat_graph *g = n->graph;
    const int64_t signal[] = {n->steps, n->batch, 1, n->width}, image[] = {n->steps, n->batch, 1, 1, n->width};
    const int64_t back[] = {n->steps, n->batch, n->width};
    char name[32];
    remat_value x = pick(n);
    snprintf(name, sizeof name, "filter%d", g->n_values);
    if (draw(2)) {
        x = remat_reshape(g, x, timed ? 5 : 4, image + !timed);
        remat_value w = remat_param(g, name, 4, (int64_t[]){2, 1, 1, 3}, remat_init_uniform(0.5));
        x = remat_conv2d(g, x, w, param(n, 1, 2, 1), NULL, (int64_t[]){0, 1}, NULL, 1);
        snprintf(name, sizeof name, "filter%d", g->n_values);
        w = remat_param(g, name, 4, (int64_t[]){1, 2, 1, 1}, remat_init_uniform(0.5));
        x = remat_conv2d(g, remat_avg_pool2d(g, x, (int64_t[]){1, 3}, (int64_t[]){1, 1}, (int64_t[]){0, 1}), w,
                         REMAT_NONE, NULL, NULL, NULL, 1);
    } else {
        remat_value w = remat_param(g, name, 3, (int64_t[]){1, 1, 3}, remat_init_uniform(0.5));
        x = remat_conv1d(g, remat_reshape(g, x, timed ? 4 : 3, signal + !timed), w, REMAT_NONE, 1, 2, 2, 1);
    }
    return remat_tanh(g, remat_reshape(g, x, timed ? 3 : 2, back + !timed)); /* a reshape cannot be an output */
}

/* Reads the features as a plane of one row: normalised, upsampled or convolved, pooled and transposed. */
static remat_value enlarged(net *n, bool timed) {
    remat_graph *g = n->graph;
    const int64_t plane[] = {n->steps, n->batch, 1, 1, n->width}, back[] = {n->steps, n->batch, n->width};
    const int64_t scale[] = {2, 3}, none[] = {0, 1}, turn = draw(2), channels = turn ? n->width : 1;
    const int64_t filter[] = {channels, 1, 2, 3};
    char name[32];
    snprintf(name, sizeof name, "filter%d", g->n_values);
    remat_value x = remat_reshape(g, pick(n), timed ? 5 : 4, plane + !timed);
    if (draw(2)) x = remat_group_norm(g, x, 1, param(n, 1, 1, 1), param(n, 1, 1, 1), 0.1);
    if (turn)
        x = remat_transpose(g, x, timed ? 2 : 1, timed ? 4 : 3);
    else
        x = remat_pad2d(g, x, none, NULL), x = remat_avg_pool2d(g, x, (int64_t[]){1, 2}, (int64_t[]){1, 1}, NULL);
    if (draw(2))
        x = remat_upsample2d(g, x, scale, (remat_upsample)draw(3));
    else
        x = remat_conv_transpose2d(g, x, remat_param(g, name, 4, filter, remat_init_uniform(0.5)), REMAT_NONE, scale,
                                   NULL, NULL, channels, NULL);
    x = remat_avg_pool2d(g, x, scale, NULL, NULL);
    return remat_gelu(g, remat_reshape(g, x, timed ? 3 : 2, back + !timed)); /* a reshape cannot be an output */
}

/* Masks, and roots, logarithms and quotients of numbers that are at least 1, so that rounding errors do not grow. */
static remat_value divided(net *n) {
    remat_graph *g = n->graph;
    remat_value x = pick(n), above = remat_shift(g, remat_mul(g, x, x), 1);
    switch (draw(5)) {
    case 0:
        return remat_div(g, pick(n), remat_sqrt(g, above));
    case 1:
        return remat_mul(g, pick(n), remat_rsqrt(g, above));
    case 2:
        return remat_div(g, param(n, 1, n->width, 1), above);
    case 3:
        x = remat_add(g, remat_mul(g, remat_sin(g, x), remat_cos(g, x)),
                      remat_expm1(g, remat_erf(g, remat_log1p(g, above))));
        x = remat_add(g, x, remat_log(g, above));
        return remat_add(g, x, remat_norm_root(g, remat_mul(g, above, remat_reciprocal(g, above))));
    default:
        return remat_masked(g, pick(n), remat_stop_gradient(g, pick(n)));
    }
}

static remat_value random_layer(net *n, bool timed) {
    remat_graph *g = n->graph;
    int64_t c = n->width;
    remat_value reset = timed ? maybe_reset(n, false) : REMAT_NONE;
    switch (draw(timed ? 29 : 13)) {
    case 12:
    case 26:
        return batch_normalised(n, timed);
    case 0:
        return remat_linear(g, pick(n), param(n, 2, c, c), param(n, 1, c, 1));
    case 1:
        return remat_add(g, pick(n), pick(n));
    case 2:
        return draw(2) ? remat_mul(g, pick(n), pick(n)) : divided(n);
    case 3:
        return remat_scale(g, pick(n), 0.7);
    case 4:
        return remat_sigmoid(g, pick(n));
    case 5:
        return remat_tanh(g, pick(n));
    case 6:
        return remat_gelu(g, pick(n));
    case 7:
        return remat_layer_norm(g, pick(n), param(n, 1, c, 1), param(n, 1, c, 1), 1e-5);
    case 8:
        return remat_dropout(g, pick(n), 0.25);
    case 9:
        return remat_linear(g, pick(n), param(n, 2, c, c), REMAT_NONE);
    case 10:
        return remat_slice(g, remat_concat(g, (remat_value[]){pick(n), pick(n), pick(n)}, 3), c - 1, c);
    case 11:
        return reshaped(n, timed);
    case 28:
        return draw(2) ? remat_softmax(g, pick(n)) : remat_scale(g, remat_log_softmax(g, pick(n)), 0.3);
    case 27:
        return reset_at(n, reset,
                        remat_lstm(g, pick(n), param(n, 2, 4 * c, c), param(n, 2, 4 * c, c), param(n, 1, 4 * c, 1),
                                   param(n, 1, 4 * c, 1)));
    case 13:
        return reset_at(
            n, reset,
            remat_gru(g, pick(n), param(n, 2, 3 * c, c), param(n, 2, 3 * c, c), param(n, 1, 3 * c, 1), REMAT_NONE));
    case 14:
    case 21:
        return backwards(n);
    case 15:
        return attended(n);
    case 16:
        return known_at_the_end(n);
    case 17:
    case 18:
        return begun(n);
    case 19:
    case 20:
        return made_before(n);
    case 22:
    case 23:
    case 24:
        return scanned(n);
    default:
        return reset_at(n, reset,
                        (draw(3) ? remat_rnn_tanh : remat_rnn_relu)(g, pick(n), param(n, 2, c, c), param(n, 2, c, c),
                                                                    REMAT_NONE, param(n, 1, c, 1)));
    }
}

static void add_apart(net *n, remat_value value) {
    n->apart[n->n_apart++] = value;
    add_output(n, value);
}

/* Sometimes adds values that read the loss's inputs, or each other, and on which the loss does not depend. */
static void maybe_apart(net *n, bool timed) {
    if (draw(4)) return;
    n->picks_apart = true;
    uint32_t kind = draw(timed ? 7 : 5);
    if (kind == 4)
        add_output(n, remat_mse(n->graph, pick(n), pick(n)));
    else if (kind == 5)
        add_output(n, remat_gelu(n->graph, remat_mean_over_time(n->graph, pick(n))));
    else if (kind == 6)
        add_output(n, draw(2) ? step_somewhere(n, pick(n)) : remat_last_step(n->graph, pick(n)));
    else
        add_apart(n, random_layer(n, timed));
    n->picks_apart = false;
}

/* Outputs after the loss, and on the path to it. */
static void add_late_outputs(net *n, remat_value loss, bool timed) {
    for (int i = 0; i < 2; i++) maybe_apart(n, timed);
    if (draw(3) == 0) add_output(n, n->twice_the_loss = remat_scale(n->graph, loss, 2));
    if (draw(3) == 0) add_output(n, loss);
    if (draw(3) == 0) add_output(n, n->pool[1 + draw((uint32_t)n->n_pool - 1)]); /* the first value is an input */
}

/* The end of the network, with several kinds of heads. Every value of the pool takes part, so that nothing is dead. */
static remat_value random_loss(net *n, bool timed) {
    remat_graph *g = n->graph;
    remat_value sum = n->pool[0];
    for (int i = 1; i < n->n_pool; i++) sum = remat_add(g, sum, n->pool[i]);
    sum = remat_tanh(g, remat_linear(g, sum, param(n, 2, n->width, n->width), REMAT_NONE));
    uint32_t head = timed ? draw(5) : 0;
    if (head == 1) sum = remat_last_step(g, sum);
    if (head == 2) sum = remat_mean_over_time(g, sum);
    if (head == 4) sum = step_somewhere(n, sum);
    if (head == 3) sum = remat_add(g, remat_mean_over_time(g, sum), remat_last_step(g, n->pool[0]));
    bool whole = !timed || head;
    if (head) sum = remat_gelu(g, remat_linear(g, sum, param(n, 2, n->width, n->width), REMAT_NONE));
    n->target = remat_input(g, "target", REMAT_F32, whole ? REMAT_STATIC : REMAT_SEQUENCE, whole ? 2 : 3,
                            whole ? (int64_t[]){n->batch, n->width} : (int64_t[]){n->steps, n->batch, n->width});
    return n->loss = remat_mse(g, sum, n->target);
}

/* linear, gelu, linear: twice, with the same weights. */
static remat_value block_twice(net *n, remat_value x) {
    remat_value w = param(n, 2, n->width, n->width), v = param(n, 2, n->width, n->width), b = param(n, 1, n->width, 1);
    for (int i = 0; i < 2; i++) x = remat_linear(n->graph, remat_gelu(n->graph, remat_linear(n->graph, x, w, b)), v, b);
    return x;
}

/* An embedding that may be folded into its layer; its table is then computed once per step. */
static remat_value by_token(net *n) {
    remat_graph *g = n->graph;
    remat_value tokens = remat_input(g, "tokens", REMAT_I32, REMAT_SEQUENCE, 2, (int64_t[]){n->steps, n->batch});
    remat_value x = remat_embedding(g, tokens, param(n, 2, 3, n->width));
    return remat_rnn_tanh(g, x, param(n, 2, n->width, n->width), param(n, 2, n->width, n->width), REMAT_NONE,
                          REMAT_NONE);
}

static void add_to_pool(net *n, remat_value value) { n->pool[n->n_pool++] = value; }

static void add_odd_parts(net *n, bool timed) {
    remat_graph *g = n->graph;
    int64_t c = n->width;
    if (draw(2)) add_to_pool(n, block_twice(n, pick(n)));
    if (draw(2)) add_to_pool(n, remat_linear(g, pick(n), remat_tanh(g, param(n, 2, c, c)), REMAT_NONE));
    if (timed && draw(2)) add_to_pool(n, by_token(n));
    if (draw(2)) add_to_pool(n, filtered(n, timed));
    if (draw(2)) add_to_pool(n, enlarged(n, timed));
    if (draw(2)) remat_linear(g, pick(n), param(n, 2, c, c), param(n, 1, c, 1)); /* unread */
}

static int64_t random_net_wider; /* additional units, to reach kernels that small layers do not use */

static remat_value random_net_with(net *n, bool timed, bool odd) {
    *n = (net){.steps = 1 + draw(12), .batch = 1 + draw(3), .width = random_net_wider + 1 + draw(6), .odd = odd};
    ck_assert_int_eq(remat_graph_create(&n->graph), REMAT_OK);
    int64_t dim[] = {n->steps, n->batch, n->width};
    n->pool[n->n_pool++] = timed ? remat_input(n->graph, "x", REMAT_F32, REMAT_SEQUENCE, 3, dim)
                                 : remat_input(n->graph, "x", REMAT_F32, REMAT_STATIC, 2, dim + 1);
    int layers = 2 + (int)draw(8);
    for (int i = 0; i < layers; i++) {
        n->pool[n->n_pool] = random_layer(n, timed);
        n->n_pool++;
        maybe_apart(n, timed);
    }
    if (odd) add_odd_parts(n, timed);
    remat_value loss = random_loss(n, timed);
    add_late_outputs(n, loss, timed);
    ck_assert_msg(remat_graph_check(n->graph) == REMAT_OK, "%s", remat_last_error());
    return loss;
}

static inline remat_value random_net(net *n, bool timed) { return random_net_with(n, timed, false); }

/* Adds the network's outputs to the config. The network must outlive the sessions that are created with it. */
static inline void ask_for_outputs(remat_config *config, const net *n) {
    config->outputs = n->output;
    config->n_outputs = n->n_outputs;
    config->n_differentiated = n->n_differentiated;
}

static bool is_differentiable(const net *n, remat_value output) {
    for (int i = 0; i < n->n_differentiated; i++)
        if (n->output[i].id == output.id) return false; /* already asked for */
    const rm_value *value = &n->graph->value[output.id];
    return output.id != n->loss.id && output.id != n->twice_the_loss.id && value->needs_gradient;
}

/* Asks for gradients of inputs, and for outputs that get their gradient from the caller, besides the loss or instead of
 * it. Returns the loss. */
static inline remat_value differentiate_some(net *n) {
    if (draw(2)) remat_requires_grad(n->graph, n->pool[0]);
    if (draw(2)) remat_requires_grad(n->graph, n->target);
    for (int i = 0; i < n->n_outputs; i++) {
        remat_value output = n->output[i];
        if (!is_differentiable(n, output) || draw(3) == 0) continue;
        n->output[i] = n->output[n->n_differentiated];
        n->output[n->n_differentiated++] = output;
    }
    return n->n_differentiated && draw(2) ? REMAT_NONE : n->loss;
}

/* ---- Gradients ------------------------------------------------------------------------------------------------- */

/* The caller's loss: c y + y^2 / 20 for each element of the differentiated outputs. c is drawn from the element's
 * position. */
static inline double outside_constant(int output, int64_t k) {
    return (double)(rm_random(3, 5, (uint32_t)output, 0, (uint64_t)k) % 2001) / 1000 - 1;
}

static inline double outside_write(remat_session *s, int output) {
    remat_array info;
    double loss = 0;
    remat_array_info(s, REMAT_OUTPUT_GRADIENT, output, &info);
    float *y = malloc(info.bytes);
    ck_assert_int_eq(remat_read(s, REMAT_OUTPUT, output, y, info.bytes), REMAT_OK);
    for (int64_t k = 0; k < info.count; k++) {
        double c = outside_constant(output, k);
        loss += c * y[k] + 0.05 * y[k] * y[k];
        y[k] = (float)(c + 0.1 * y[k]);
    }
    ck_assert_int_eq(remat_write(s, REMAT_OUTPUT_GRADIENT, output, y, info.bytes), REMAT_OK);
    free(y);
    return loss;
}

/* Forward and backward, with the caller's loss if there are such outputs. The result's loss is the sum of all
 * losses. */
static inline remat_status outside_gradients(remat_session *s, remat_step_result *r) {
    double outside = 0;
    if (!remat_count(s, REMAT_OUTPUT_GRADIENT)) return remat_gradients(s, r);
    remat_status status = remat_forward(s);
    for (int i = 0; i < remat_count(s, REMAT_OUTPUT_GRADIENT) && !status; i++) outside += outside_write(s, i);
    if (!status) status = remat_backward(s, r);
    r->loss += outside;
    return status;
}

/* ---- Random plans --------------------------------------------------------------------------------------------- */

/* Differentiates stages a..b-1. Keeps the first one and continues after it, or recomputes from a random split, to any
 * depth. */
static void random_reverse(const rm_problem *problem, rm_plan *plan, int64_t a, int64_t b) {
    if (b - a == 1 || draw(3) == 0) {
        ck_assert_int_eq(rm_plan_run_forward(plan, a, (int)draw((uint32_t)problem->stage[a].n_options)), REMAT_OK);
        if (b - a > 1) random_reverse(problem, plan, a + 1, b);
        ck_assert_int_eq(rm_plan_run_backward(plan, a), REMAT_OK);
        return;
    }
    int64_t split = a + 1 + draw((uint32_t)(b - a - 1));
    ck_assert_int_eq(rm_plan_sweep(plan, a, split), REMAT_OK);
    random_reverse(problem, plan, split, b);
    random_reverse(problem, plan, a, split);
}

/* Adds superfluous runs: at any moment it runs stages 0..m again with `drop`. So all their live states were dropped
 * before. */
static void run_some_again(rm_plan *plan, int64_t n_stages) {
    rm_plan more = {0};
    int64_t ran = 0, next = n_stages - 1; /* stages that have run; the stage to be differentiated next */
    for (int64_t i = 0; i < plan->n_steps; i++) {
        int64_t most = ran < next + 1 ? ran : next + 1;
        if (most > 0 && draw((uint32_t)n_stages) == 0) {
            int64_t end = 1 + draw((uint32_t)most);
            ck_assert_int_eq(rm_plan_sweep(&more, 0, end), REMAT_OK);
        }
        rm_step step = plan->step[i];
        if (step.verb == RM_RUN_FORWARD && step.index == ran) ran++;
        if (step.verb == RM_RUN_BACKWARD) next--;
        ck_assert_int_eq(rm_plan_add(&more, step), REMAT_OK);
    }
    rm_plan_free(plan);
    *plan = more;
}

/* A plan for the session's own problem, as text. `again`: adds superfluous runs. */
static char *random_plan_of(const remat_session *session, bool again) {
    const rm_problem *problem = &session->chain.problem;
    rm_plan plan = {0};
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    random_reverse(problem, &plan, 0, problem->n_stages);
    if (again) run_some_again(&plan, problem->n_stages);
    ck_assert_int_eq(rm_plan_free_dead(problem, &plan), REMAT_OK);
    ck_assert_int_eq(rm_plan_write(problem, &plan, out), REMAT_OK);
    fclose(out);
    rm_plan_free(&plan);
    return text;
}

static inline char *random_plan(const remat_session *session) { return random_plan_of(session, draw(2)); }

static inline void fill_inputs(remat_session *s, uint64_t seed) {
    rng_state = seed;
    for (int64_t i = 0; i < remat_count(s, REMAT_INPUT); i++) {
        remat_array info;
        remat_array_info(s, REMAT_INPUT, i, &info);
        uint64_t count = 1; /* also of arrays that another rank holds, so that all ranks draw the same */
        for (int d = 0; d < info.rank; d++) count *= (uint64_t)info.dim[d];
        float *data = malloc(count * sizeof *data);
        int64_t bound = s->array[REMAT_INPUT][i].bound;
        for (uint64_t k = 0; k < count; k++)
            if (info.dtype == REMAT_I32)
                ((int32_t *)data)[k] = (int32_t)draw(bound ? (uint32_t)bound : 3);
            else
                data[k] = draw_real();
        ck_assert_int_eq(remat_write(s, REMAT_INPUT, i, data, count * sizeof *data), REMAT_OK);
        free(data);
    }
}

#endif

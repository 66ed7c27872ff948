/* minimal.c: the models mingru and minlstm: minLM of minGRU-pytorch, with its convolutions (enable_conv=True) or without
 * (--no-conv), parameters named, shaped and started as there, so that its state_dict is read and written.
 *
 *     token_emb ─ block 0 ─ ... ─ block L-1 ─ norm ─ [last step] ─ to_logits
 *
 *     block    x = x + convolution of x: of each feature over 3 timesteps, then of width 1
 *              x = x + to_out minGRU to_hidden_and_gate norm x, 3/2 as wide inside
 *              x = x + feed forward of norm x, 4 times as wide inside; dropout
 *
 * Numeric inputs pass through a linear layer, `input`, which minLM does not have.
 */
#include "train/models/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FILTER = 3, FEED_FORWARD = 4 };

static remat_status check(const rm_model_spec *spec) {
    REQUIRE(!spec->data.vocabulary || spec->embed == spec->hidden, INVALID,
            "--embed=%lld: the embedding of --model=%s is as wide as its layers, %lld: remove --embed",
            (long long)spec->embed, spec->name, (long long)spec->hidden);
    REQUIRE(!spec->bidirectional, INVALID, "--bidirectional is for lstm, gru and rnn; --model=%s reads forwards only",
            spec->name);
    REQUIRE(!spec->no_bias, INVALID,
            "--no-bias is for lstm, gru and rnn; --model=%s has biases where minGRU-pytorch has them", spec->name);
    return REMAT_OK;
}

/* A parameter of `layer`; -1: of no layer. */
static remat_value parameter(remat_graph *g, int64_t layer, const char *name, int rank, const int64_t *dim,
                             remat_init init) {
    char full[80];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "layers.%lld.%s", (long long)layer, name);
    return remat_param(g, full, rank, dim, init);
}

/* PyTorch initialises Linear and Conv1d, biases too, from U(-1/sqrt(n), 1/sqrt(n)) with fan-in n. */
static remat_init from(int64_t n) { return remat_init_uniform(1 / sqrt((double)n)); }

static remat_value linear(remat_graph *g, int64_t layer, const char *weight, const char *bias, remat_value x,
                          int64_t in, int64_t out) {
    remat_value w = parameter(g, layer, weight, 2, (int64_t[]){out, in}, from(in));
    return remat_linear(g, x, w, bias ? parameter(g, layer, bias, 1, &out, from(in)) : REMAT_NONE);
}

/* PyTorch's RMSNorm; its epsilon is the machine epsilon of float. */
static remat_value norm(remat_graph *g, int64_t layer, const char *weight, remat_value x, int64_t width) {
    return remat_rms_norm(g, x, parameter(g, layer, weight, 1, &width, remat_init_constant(1)), 0x1p-23);
}

static remat_value convolution(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    int64_t width = spec->hidden;
    remat_value w = parameter(g, layer, "0.net.0.weight", 3, (int64_t[]){width, 1, FILTER}, from(FILTER));
    x = rm_reset_at_begins(g, spec,
                           remat_causal_conv(g, x, w, parameter(g, layer, "0.net.0.bias", 1, &width, from(FILTER))));
    w = parameter(g, layer, "0.net.1.weight", 3, (int64_t[]){width, width, 1}, from(width));
    return remat_linear(g, x, w, parameter(g, layer, "0.net.1.bias", 1, &width, from(width)));
}

static remat_value recurrence(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    int64_t inner = spec->hidden + spec->hidden / 2;
    bool gru = !strcmp(spec->name, "mingru");
    x = gru ? remat_min_gru(g, linear(g, layer, "2.to_hidden_and_gate.weight", NULL, x, spec->hidden, 2 * inner))
            : remat_min_lstm(g, linear(g, layer, "2.to_hidden_and_f_i_gate.weight", NULL, x, spec->hidden, 3 * inner));
    return linear(g, layer, "2.to_out.weight", NULL, rm_reset_at_begins(g, spec, x), inner, spec->hidden);
}

static remat_value feed_forward(remat_graph *g, int64_t layer, remat_value x, int64_t width) {
    x = remat_gelu(g, linear(g, layer, "4.0.weight", "4.0.bias", x, width, FEED_FORWARD * width));
    return linear(g, layer, "4.2.weight", "4.2.bias", x, FEED_FORWARD * width, width);
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    int64_t width = spec->hidden;
    if (!spec->no_conv) x = remat_add(g, convolution(g, spec, layer, x), x);
    x = remat_add(g, recurrence(g, spec, layer, norm(g, layer, "1.weight", x, width)), x);
    x = remat_add(g, feed_forward(g, layer, norm(g, layer, "3.weight", x, width), width), x);
    return spec->dropout > 0 ? remat_dropout(g, x, spec->dropout) : x;
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_data_shape *data = &spec->data;
    int64_t width = spec->hidden, outputs = rm_data_outputs(data);
    if (data->vocabulary)
        x = remat_embedding(
            g, x, remat_param(g, "token_emb.weight", 2, (int64_t[]){data->vocabulary, width}, remat_init_normal(1)));
    else
        x = linear(g, -1, "input.weight", "input.bias", x, data->features, width);
    for (int64_t layer = 0; layer < spec->layers; layer++) x = block(g, spec, layer, x);
    if (!data->every_step)
        x = spec->field[RM_LAST].id ? remat_step_at(g, x, spec->field[RM_LAST]) : remat_last_step(g, x);
    return linear(g, -1, "to_logits.weight", NULL, norm(g, -1, "norm.weight", x, width), width, outputs);
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const char *inner = !strcmp(name, "mingru") ? ".2.to_hidden_and_gate.weight" : ".2.to_hidden_and_f_i_gate.weight";
    const rm_st_array *first, *head = rm_weights_named(file, "to_logits.weight");
    char full[80];
    snprintf(full, sizeof full, "layers.0%s", inner);
    first = rm_weights_named(file, full);
    if (!first || first->rank != 2) return false;
    out->symbols = rm_weights_named(file, "token_emb.weight") != NULL;
    if (head && head->rank == 2) out->outputs = head->dim[0];
    rm_found_number(out, "layers", rm_weights_layers(file, "layers.", inner));
    rm_found_number(out, "hidden", first->dim[1]);
    rm_found_switch(out, "no-conv", !rm_weights_named(file, "layers.0.0.net.0.weight"));
    return true;
}

const rm_model_family rm_minimal_family = {
    .check = check, .logits = logits, .head = "to_logits.", .recognise = recognise};

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
#include "train/models/language.h"

#include <string.h>

enum { FILTER = 3, FEED_FORWARD = 4 };

static remat_value linear(const rm_place *at, const char *weight, const char *bias, remat_value x, int64_t in,
                          int64_t out) {
    remat_value w = rm_place_param(at, weight, 2, out, in, 0, rm_init_from(in));
    return remat_linear(at->graph, x, w, bias ? rm_place_param(at, bias, 1, out, 0, 0, rm_init_from(in)) : REMAT_NONE);
}

/* PyTorch's RMSNorm; its epsilon is the machine epsilon of float. */
static remat_value norm(const rm_place *at, const char *weight, remat_value x, int64_t width) {
    return remat_rms_norm(at->graph, x, rm_place_param(at, weight, 1, width, 0, 0, remat_init_constant(1)), 0x1p-23);
}

static remat_value convolution(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    const int64_t D = spec->hidden;
    remat_value w = rm_place_param(at, "0.net.0.weight", 3, D, 1, FILTER, rm_init_from(FILTER));
    remat_value bias = rm_place_param(at, "0.net.0.bias", 1, D, 0, 0, rm_init_from(FILTER));
    x = rm_reset_at_begins(at->graph, spec, remat_causal_conv(at->graph, x, w, bias));
    w = rm_place_param(at, "0.net.1.weight", 3, D, D, 1, rm_init_from(D));
    return remat_linear(at->graph, x, w, rm_place_param(at, "0.net.1.bias", 1, D, 0, 0, rm_init_from(D)));
}

static remat_value recurrence(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    const int64_t D = spec->hidden, inner = D + D / 2;
    bool gru = !strcmp(spec->name, "mingru");
    x = gru ? remat_min_gru(at->graph, linear(at, "2.to_hidden_and_gate.weight", NULL, x, D, 2 * inner))
            : remat_min_lstm(at->graph, linear(at, "2.to_hidden_and_f_i_gate.weight", NULL, x, D, 3 * inner));
    return linear(at, "2.to_out.weight", NULL, rm_reset_at_begins(at->graph, spec, x), inner, D);
}

static remat_value feed_forward(const rm_place *at, remat_value x, int64_t D) {
    x = remat_gelu(at->graph, linear(at, "4.0.weight", "4.0.bias", x, D, FEED_FORWARD * D));
    return linear(at, "4.2.weight", "4.2.bias", x, FEED_FORWARD * D, D);
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const rm_place at = rm_place_of(g, "layers", layer);
    const int64_t D = spec->hidden;
    if (!spec->no_conv) x = remat_add(g, convolution(&at, spec, x), x);
    x = remat_add(g, recurrence(&at, spec, norm(&at, "1.weight", x, D)), x);
    x = remat_add(g, feed_forward(&at, norm(&at, "3.weight", x, D), D), x);
    return spec->dropout > 0 ? remat_dropout(g, x, spec->dropout) : x;
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_place at = {.graph = g};
    const int64_t D = spec->hidden;
    x = rm_language_input(g, spec, x, "token_emb.weight", remat_init_normal(1), NULL);
    for (int64_t layer = 0; layer < spec->layers; layer++) x = block(g, spec, layer, x);
    x = norm(&at, "norm.weight", rm_language_answer(g, spec, x), D);
    return linear(&at, "to_logits.weight", NULL, x, D, rm_data_outputs(&spec->data));
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const char *inner = !strcmp(name, "mingru") ? ".2.to_hidden_and_gate.weight" : ".2.to_hidden_and_f_i_gate.weight";
    char full[80];
    snprintf(full, sizeof full, "layers.0%s", inner);
    const rm_st_array *first = rm_weights_named(file, full);
    if (!first || first->rank != 2) return false;
    rm_found_ends(out, file, "token_emb.weight", "to_logits.weight");
    rm_found_number(out, "layers", rm_weights_layers(file, "layers.", inner));
    rm_found_number(out, "hidden", first->dim[1]);
    rm_found_switch(out, "no-conv", !rm_weights_named(file, "layers.0.0.net.0.weight"));
    return true;
}

const rm_model_family rm_minimal_family = {.logits = logits, .head = "to_logits.", .recognise = recognise};

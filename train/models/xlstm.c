/* xlstm.c: the model xlstm (Beck et al. 2024): xlstm's xLSTMLMModel with slstm_at="all" and the backend "vanilla", by its
 * names, shapes and starting distributions: --layers blocks of --hidden numbers in --heads heads.
 *
 *     token_embedding ─ block 0 ─ ... ─ block L-1 ─ post_blocks_norm ─ [last step] ─ lm_head
 *
 *     block    u = xlstm_norm(x);  c = silu(conv1d u)
 *              x += group_norm(slstm(fgate c, igate c, zgate u, ogate u))
 *              x += proj_down (gelu(gate) up),  gate, up = proj_up ffn_norm(x)
 *
 * xlstm swaps two names: fgate's numbers are the input gate's, igate's the forget gate's. All norms multiply by 1 + weight
 * and have no bias. */
#include "train/models/language.h"

enum { FILTER = 4, GATES = 4, ROUND = 64 };
#define EPSILON 1e-5

/* Of 1.3 D, rounded up. */
static int64_t feed_forward_width(int64_t hidden) { return (13 * hidden + 10 * ROUND - 1) / (10 * ROUND) * ROUND; }

static remat_init small(int64_t hidden) { return remat_init_normal(sqrt(2 / (5 * (double)hidden))); }

/* A weight w as gain 1 + w and bias 0. */
static remat_value norm(const rm_place *at, const char *name, remat_value x, int64_t width, int64_t heads) {
    remat_value w = rm_place_param(at, name, 1, width, 0, 0, remat_init_zero());
    remat_value gain = remat_shift(at->graph, w, 1), bias = remat_scale(at->graph, w, 0);
    return heads ? remat_group_norm(at->graph, x, heads, gain, bias, EPSILON)
                 : remat_layer_norm(at->graph, x, gain, bias, EPSILON);
}

static remat_value gate(const rm_place *at, const char *name, remat_value x, int64_t hidden, int64_t heads) {
    remat_value w = rm_place_param(at, name, 3, heads, hidden / heads, hidden / heads, small(hidden));
    return remat_headwise_linear(at->graph, x, w, REMAT_NONE);
}

static remat_value mixer(const rm_place *at, const rm_model_spec *spec, int64_t layer, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t H = spec->hidden, heads = rm_model_heads(spec), d = H / heads;
    const double depth = spec->layers > 1 ? (double)layer / (double)(spec->layers - 1) : 0;
    remat_value filter = rm_place_param(at, "xlstm.conv1d.conv.weight", 3, H, 1, FILTER, rm_init_from(FILTER));
    remat_value shift = rm_place_param(at, "xlstm.conv1d.conv.bias", 1, H, 0, 0, rm_init_from(FILTER));
    remat_value c = remat_silu(g, rm_reset_at_begins(g, spec, remat_causal_conv(g, x, filter, shift)));
    remat_value gates[] = {gate(at, "xlstm.fgate.weight", c, H, heads), gate(at, "xlstm.igate.weight", c, H, heads),
                           gate(at, "xlstm.zgate.weight", x, H, heads), gate(at, "xlstm.ogate.weight", x, H, heads)};
    remat_value r =
        rm_place_param(at, "xlstm.slstm_cell._recurrent_kernel_", 3, heads, GATES * d, d, remat_init_zero());
    remat_init forget = remat_init_of(REMAT_INIT_FORGET_GATES, (double)d + depth / 2);
    remat_value bias = rm_place_param(at, "xlstm.slstm_cell._bias_", 1, GATES * H, 0, 0, forget);
    remat_value y = rm_reset_at_begins(g, spec, remat_slstm(g, remat_concat(g, gates, GATES), r, bias));
    return norm(at, "xlstm.group_norm.weight", y, H, heads);
}

static remat_value feed_forward(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    const int64_t H = spec->hidden, inner = feed_forward_width(H);
    remat_value both = rm_place_linear(at, "ffn.proj_up.weight", x, H, 2 * inner, small(H));
    remat_value gated = remat_gelu(at->graph, remat_slice(at->graph, both, 0, inner));
    x = remat_mul(at->graph, gated, remat_slice(at->graph, both, inner, inner));
    return rm_place_linear(at, "ffn.proj_down.weight", x, inner, H,
                           remat_init_normal(2 / ((double)spec->layers * sqrt((double)H))));
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const rm_place at = rm_place_of(g, "xlstm_block_stack.blocks", layer);
    x = remat_add(g, mixer(&at, spec, layer, norm(&at, "xlstm_norm.weight", x, spec->hidden, 0)), x);
    return remat_add(g, feed_forward(&at, spec, norm(&at, "ffn_norm.weight", x, spec->hidden, 0)), x);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_place at = {.graph = g};
    x = rm_language_input(g, spec, x, "token_embedding.weight", small(spec->hidden), NULL);
    for (int64_t layer = 0; layer < spec->layers; layer++) x = block(g, spec, layer, x);
    x = norm(&at, "xlstm_block_stack.post_blocks_norm.weight", x, spec->hidden, 0);
    x = rm_language_answer(g, spec, x);
    return rm_place_linear(&at, "lm_head.weight", x, spec->hidden, rm_data_outputs(&spec->data), small(spec->hidden));
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    static const char kernel[] = ".xlstm.slstm_cell._recurrent_kernel_";
    char full[80];
    snprintf(full, sizeof full, "xlstm_block_stack.blocks.0%s", kernel);
    const rm_st_array *first = rm_weights_named(file, full);
    (void)name;
    if (!first || first->rank != 3) return false;
    rm_found_ends(out, file, "token_embedding.weight", "lm_head.weight");
    rm_found_number(out, "layers", rm_weights_layers(file, "xlstm_block_stack.blocks.", kernel));
    rm_found_number(out, "hidden", first->dim[0] * first->dim[2]);
    rm_found_number(out, "heads", first->dim[0]);
    return true;
}

const rm_model_family rm_xlstm_family = {.logits = logits, .head = "lm_head.", .recognise = recognise};

/* xlstm.c: the model xlstm (Beck et al. 2024): xlstm's xLSTMLMModel with sLSTM's backend "vanilla", by its names, shapes and
 * starting distributions: --layers blocks of --hidden numbers in --heads heads. --slstm-at lists the blocks of sLSTM; the
 * others are of mLSTM.
 *
 *     token_embedding ─ block 0 ─ ... ─ block L-1 ─ post_blocks_norm ─ [last step] ─ lm_head
 *
 *     sLSTM    u = xlstm_norm(x);  c = silu(conv1d u)
 *              x += group_norm(slstm(fgate c, igate c, zgate u, ogate u))
 *              x += proj_down (gelu(gate) up),  gate, up = proj_up ffn_norm(x)
 *     mLSTM    u, z = proj_up xlstm_norm(x);  c = silu(conv1d u);  q, k, v = q_proj c, k_proj c, v_proj u
 *              h = outnorm(mlstm(q, k, v, igate (q,k,v), fgate (q,k,v)))
 *              x += proj_down ((h + learnable_skip c) silu(z))
 *
 * xlstm swaps two names of sLSTM: fgate's numbers are the input gate's, igate's the forget gate's. All norms multiply by
 * 1 + weight and have no bias. */
#include "train/models/language.h"

#include <string.h>

enum { FILTER = 4, GATES = 4, ROUND = 64, EXPAND = 2, BLOCK = 4 /* q_proj, k_proj and v_proj are block-diagonal */ };
#define EPSILON 1e-5

/* Of 1.3 D, rounded up. */
static int64_t feed_forward_width(int64_t hidden) { return (13 * hidden + 10 * ROUND - 1) / (10 * ROUND) * ROUND; }

/* Of an mLSTM block: 2 D, rounded up. */
static int64_t inner_width(int64_t hidden) { return (EXPAND * hidden + ROUND - 1) / ROUND * ROUND; }

static bool is_slstm(const rm_model_spec *spec, int64_t layer) {
    return !spec->slstm_at || !strcmp(spec->slstm_at, "all") || rm_blocks_name(spec->slstm_at, layer);
}

static remat_status check(const rm_model_spec *spec) {
    const char *list = spec->slstm_at;
    int64_t heads = rm_model_heads(spec);
    REQUIRE(
        !list || !strcmp(list, "all") || inner_width(spec->hidden) % heads == 0, INVALID,
        "--hidden=%lld: the %lld channels of an mLSTM block are not divisible by %lld heads; give --heads=N with an N "
        "that divides them",
        (long long)spec->hidden, (long long)inner_width(spec->hidden), (long long)heads);
    return !list || !strcmp(list, "all") ? REMAT_OK : rm_blocks_check("slstm-at", list, "all", spec->layers);
}

static remat_init small(int64_t hidden) { return remat_init_normal(sqrt(2 / (5 * (double)hidden))); }

/* A weight w as gain 1 + w and bias 0. */
static remat_value norm(const rm_place *at, const char *name, remat_value x, int64_t width, int64_t heads) {
    remat_value w = rm_place_param(at, name, 1, width, 0, 0, remat_init_zero());
    remat_value gain = remat_shift(at->graph, w, 1), bias = remat_scale(at->graph, w, 0);
    return heads ? remat_group_norm(at->graph, x, heads, gain, bias, EPSILON)
                 : remat_layer_norm(at->graph, x, gain, bias, EPSILON);
}

/* Block-diagonal: `width` numbers in `heads` blocks. */
static remat_value headwise(const rm_place *at, const char *name, remat_value x, int64_t width, int64_t heads,
                            remat_init init) {
    remat_value w = rm_place_param(at, name, 3, heads, width / heads, width / heads, init);
    return remat_headwise_linear(at->graph, x, w, REMAT_NONE);
}

/* silu(conv1d x) */
static remat_value convolved(const rm_place *at, const rm_model_spec *spec, remat_value x, int64_t width) {
    remat_value filter = rm_place_param(at, "xlstm.conv1d.conv.weight", 3, width, 1, FILTER, rm_init_from(FILTER));
    remat_value shift = rm_place_param(at, "xlstm.conv1d.conv.bias", 1, width, 0, 0, rm_init_from(FILTER));
    x = remat_causal_conv(at->graph, x, filter, shift);
    return remat_silu(at->graph, rm_reset_at_begins(at->graph, spec, x));
}

static remat_value slstm(const rm_place *at, const rm_model_spec *spec, int64_t layer, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t H = spec->hidden, heads = rm_model_heads(spec), d = H / heads;
    const double depth = spec->layers > 1 ? (double)layer / (double)(spec->layers - 1) : 0;
    remat_value c = convolved(at, spec, x, H);
    remat_value gates[] = {headwise(at, "xlstm.fgate.weight", c, H, heads, small(H)),
                           headwise(at, "xlstm.igate.weight", c, H, heads, small(H)),
                           headwise(at, "xlstm.zgate.weight", x, H, heads, small(H)),
                           headwise(at, "xlstm.ogate.weight", x, H, heads, small(H))};
    remat_value r =
        rm_place_param(at, "xlstm.slstm_cell._recurrent_kernel_", 3, heads, GATES * d, d, remat_init_zero());
    remat_init forget = remat_init_of(REMAT_INIT_FORGET_GATES, (double)d + depth / 2);
    remat_value bias = rm_place_param(at, "xlstm.slstm_cell._bias_", 1, GATES * H, 0, 0, forget);
    remat_value y = rm_reset_at_begins(g, spec, remat_slstm(g, remat_concat(g, gates, GATES), r, bias));
    return norm(at, "xlstm.group_norm.weight", y, H, heads);
}

/* xlstm initialises matrices that end in the sum over all blocks from this. */
static remat_init last(const rm_model_spec *spec) {
    return remat_init_normal(2 / ((double)spec->layers * sqrt((double)spec->hidden)));
}

static remat_value mlstm_gate(const rm_place *at, const char *name, remat_value qkv, int64_t in, int64_t heads,
                              remat_init biases) {
    char weight[48], bias[48];
    snprintf(weight, sizeof weight, "xlstm.mlstm_cell.%s.weight", name);
    snprintf(bias, sizeof bias, "xlstm.mlstm_cell.%s.bias", name);
    remat_value w = rm_place_param(at, weight, 2, heads, in, 0, remat_init_zero());
    return remat_linear(at->graph, qkv, w, rm_place_param(at, bias, 1, heads, 0, 0, biases));
}

static remat_value mlstm(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t H = spec->hidden, E = inner_width(H), heads = rm_model_heads(spec);
    const remat_init even = remat_init_of(REMAT_INIT_EVENLY, 6);
    remat_value both = rm_place_linear(at, "xlstm.proj_up.weight", x, H, 2 * E, small(H));
    remat_value u = remat_slice(g, both, 0, E), c = convolved(at, spec, u, E);
    remat_value qkv[] = {headwise(at, "xlstm.q_proj.weight", c, E, E / BLOCK, small(H)),
                         headwise(at, "xlstm.k_proj.weight", c, E, E / BLOCK, small(H)),
                         headwise(at, "xlstm.v_proj.weight", u, E, E / BLOCK, small(H))};
    remat_value all = remat_concat(g, qkv, 3);
    remat_value y =
        remat_mlstm(g, qkv[0], qkv[1], qkv[2], mlstm_gate(at, "igate", all, 3 * E, heads, remat_init_normal(0.1)),
                    mlstm_gate(at, "fgate", all, 3 * E, heads, even));
    y = norm(at, "xlstm.mlstm_cell.outnorm.weight", rm_reset_at_begins(g, spec, y), E, heads);
    remat_value skip = rm_place_param(at, "xlstm.learnable_skip", 1, E, 0, 0, remat_init_constant(1));
    y = remat_mul(g, remat_add(g, y, remat_mul(g, c, skip)), remat_silu(g, remat_slice(g, both, E, E)));
    return rm_place_linear(at, "xlstm.proj_down.weight", y, E, H, last(spec));
}

static remat_value feed_forward(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    const int64_t H = spec->hidden, inner = feed_forward_width(H);
    remat_value both = rm_place_linear(at, "ffn.proj_up.weight", x, H, 2 * inner, small(H));
    remat_value gated = remat_gelu(at->graph, remat_slice(at->graph, both, 0, inner));
    x = remat_mul(at->graph, gated, remat_slice(at->graph, both, inner, inner));
    return rm_place_linear(at, "ffn.proj_down.weight", x, inner, H, last(spec));
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const rm_place at = rm_place_of(g, "xlstm_block_stack.blocks", layer);
    remat_value u = norm(&at, "xlstm_norm.weight", x, spec->hidden, 0);
    if (!is_slstm(spec, layer)) return remat_add(g, mlstm(&at, spec, u), x);
    x = remat_add(g, slstm(&at, spec, layer, u), x);
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
    static const char norms[] = ".xlstm_norm.weight", blocks[] = "xlstm_block_stack.blocks.";
    const rm_st_array *width = rm_weights_named(file, "xlstm_block_stack.blocks.0.xlstm_norm.weight");
    int64_t layers = rm_weights_layers(file, blocks, norms), heads = 0;
    char slstm[sizeof out->flag->value];
    (void)name;
    if (!width || width->rank != 1) return false;
    for (int64_t layer = 0; layer < layers && !heads; layer++) {
        char kernel[96], gate[96];
        snprintf(kernel, sizeof kernel, "%s%lld.xlstm.slstm_cell._recurrent_kernel_", blocks, (long long)layer);
        snprintf(gate, sizeof gate, "%s%lld.xlstm.mlstm_cell.igate.bias", blocks, (long long)layer);
        const rm_st_array *first = rm_weights_named(file, kernel);
        if (!first) first = rm_weights_named(file, gate);
        if (first && first->rank > 0) heads = first->dim[0];
    }
    if (!heads) return false;
    rm_found_ends(out, file, "token_embedding.weight", "lm_head.weight");
    rm_found_number(out, "layers", layers);
    rm_found_number(out, "hidden", width->dim[0]);
    rm_found_number(out, "heads", heads);
    int64_t count = rm_blocks_found(file, blocks, ".xlstm.slstm_cell._bias_", layers, slstm, sizeof slstm);
    if (count == layers) snprintf(slstm, sizeof slstm, "all");
    if (*slstm) rm_found_text(out, "slstm-at", slstm);
    return true;
}

const rm_model_family rm_xlstm_family = {.check = check, .logits = logits, .head = "lm_head.", .recognise = recognise};

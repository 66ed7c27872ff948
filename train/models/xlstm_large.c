/* xlstm_large.c: the model xlstm_large (Beck et al. 2025, xLSTM-7B), with the names, shapes and starting distributions of Hugging
 * Face's xLSTMForCausalLM (weight_mode "single"): --layers blocks of mLSTM of --hidden numbers in --heads heads.
 *
 *     embeddings ─ block 0 ─ ... ─ block L-1 ─ out_norm ─ [last step] ─ lm_head ─ 30 tanh(x / 30)
 *
 *     block    u = norm_mlstm(x);  i, f = 15 tanh(gate_preact u / 15)
 *              x += out_proj (multihead_norm(mlstm(q u, k u, v u, i, f)) sigmoid(ogate_preact u));  q, k half as wide
 *              x += proj_down (silu(proj_up_gate u) proj_up u),  u = norm_ffn(x)
 *
 * multihead_norm is a layer norm in each head, the others are RMS norms; none has a bias. Only the logits of tokens are capped.
 * As in transformers, every weight whose name has "gate" starts at 0, proj_up_gate included. */
#include "train/models/language.h"

enum { ROUND = 64 };
#define EPSILON 1e-6
#define GATE_CAP 15
#define CAP 30

/* 2.667 D, rounded up to a multiple of 64, but down from less than 1 above one, as in transformers. */
static int64_t feed_forward_width(int64_t hidden) { return (2667 * hidden / 1000 + ROUND - 1) / ROUND * ROUND; }

static remat_status check(const rm_model_spec *spec) {
    const int64_t heads = rm_model_heads(spec);
    REQUIRE(spec->hidden / 2 % heads == 0, INVALID,
            "--hidden=%lld: half of it, the width of q and k, is not divisible by %lld heads; give --heads=N with an N "
            "that "
            "divides it",
            (long long)spec->hidden, (long long)heads);
    return REMAT_OK;
}

static remat_init small(int64_t width) { return remat_init_normal(sqrt(2 / (5 * (double)width))); }

/* Of matrices that end in the sum over all blocks. */
static remat_init last(const rm_model_spec *spec, int64_t width) {
    return remat_init_normal(2 / ((double)spec->layers * sqrt((double)width)));
}

static remat_value gain_of(const rm_place *at, const char *name, int64_t width) {
    return rm_place_param(at, name, 1, width, 0, 0, remat_init_constant(1));
}
static remat_value norm(const rm_place *at, const char *name, remat_value x, int64_t width) {
    return remat_rms_norm(at->graph, x, gain_of(at, name, width), EPSILON);
}

static remat_value capped(remat_graph *g, remat_value x, double cap) {
    return remat_scale(g, remat_tanh(g, remat_scale(g, x, 1 / cap)), cap);
}

/* `name` ends before ".weight" and ".bias". */
static remat_value gate(const rm_place *at, const char *name, remat_value x, int64_t width, int64_t heads,
                        remat_init biases) {
    char weight[48], bias[48];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    remat_value w = rm_place_param(at, weight, 2, heads, width, 0, remat_init_zero());
    return capped(at->graph, remat_linear(at->graph, x, w, rm_place_param(at, bias, 1, heads, 0, 0, biases)), GATE_CAP);
}

static remat_value mlstm(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, heads = rm_model_heads(spec);
    remat_value q = rm_place_linear(at, "mlstm_layer.q.weight", x, D, D / 2, small(D));
    remat_value k = rm_place_linear(at, "mlstm_layer.k.weight", x, D, D / 2, small(D));
    remat_value v = rm_place_linear(at, "mlstm_layer.v.weight", x, D, D, small(D));
    remat_value open = rm_place_linear(at, "mlstm_layer.ogate_preact.weight", x, D, D, remat_init_zero());
    remat_value i = gate(at, "mlstm_layer.igate_preact", x, D, heads, remat_init_constant(-10));
    remat_value f = gate(at, "mlstm_layer.fgate_preact", x, D, heads, remat_init_of(REMAT_INIT_EVENLY, 6));
    remat_value y = rm_reset_at_begins(g, spec, remat_mlstm(g, q, k, v, i, f));
    remat_value gain = gain_of(at, "mlstm_layer.multihead_norm.weight", D);
    y = remat_group_norm(g, y, heads, gain, remat_scale(g, gain, 0), EPSILON);
    y = remat_mul(g, y, remat_sigmoid(g, open));
    return rm_place_linear(at, "mlstm_layer.out_proj.weight", y, D, D, last(spec, D));
}

static remat_value feed_forward(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, inner = feed_forward_width(D);
    remat_value open = remat_silu(g, rm_place_linear(at, "ffn.proj_up_gate.weight", x, D, inner, remat_init_zero()));
    x = remat_mul(g, open, rm_place_linear(at, "ffn.proj_up.weight", x, D, inner, small(D)));
    return rm_place_linear(at, "ffn.proj_down.weight", x, inner, D, last(spec, inner));
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_place whole = {.graph = g};
    const int64_t D = spec->hidden;
    x = rm_language_input(g, spec, x, "backbone.embeddings.weight", small(D), NULL);
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        const rm_place at = rm_place_of(g, "backbone.blocks", layer);
        x = remat_add(g, mlstm(&at, spec, norm(&at, "norm_mlstm.weight", x, D)), x);
        x = remat_add(g, feed_forward(&at, spec, norm(&at, "norm_ffn.weight", x, D)), x);
    }
    x = rm_language_answer(g, spec, norm(&whole, "backbone.out_norm.weight", x, D));
    x = rm_place_linear(&whole, "lm_head.weight", x, D, rm_data_outputs(&spec->data), small(D));
    return spec->data.vocabulary ? capped(g, x, CAP) : x;
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *gates = rm_weights_named(file, "backbone.blocks.0.mlstm_layer.igate_preact.weight");
    (void)name;
    if (!gates || gates->rank != 2) return false;
    rm_found_ends(out, file, "backbone.embeddings.weight", "lm_head.weight");
    rm_found_number(out, "layers", rm_weights_layers(file, "backbone.blocks.", ".norm_mlstm.weight"));
    rm_found_number(out, "hidden", gates->dim[1]);
    rm_found_number(out, "heads", gates->dim[0]);
    return true;
}

static const rm_hub_key hub_keys[] = {
    {"model_type", .value = "xlstm"}, {"gate_soft_cap", .value = "15"}, {"output_logit_soft_cap", .value = "30"},
    {"norm_eps", .value = "1e-06"},   {"eps", .value = "1e-06"},        {0}};

const rm_model_family rm_xlstm_large_family = {
    .check = check, .logits = logits, .head = "lm_head.", .recognise = recognise, .hub_keys = hub_keys};

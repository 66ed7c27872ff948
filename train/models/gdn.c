/* gdn.c: the model gdn: Gated DeltaNet (Yang et al. 2024), with the names, shapes and starting distributions of Hugging
 * Face's Qwen3NextForCausalLM whose layers are all "linear_attention" and whose MLPs are dense: --layers blocks of
 * --hidden numbers; --heads heads of keys, of hidden / heads numbers, and twice as many of values.
 *
 *     embed_tokens ─ block 0 ─ ... ─ block L-1 ─ norm ─ [last step] ─ lm_head
 *
 *     block    q, k, v, z = in_proj_qkvz norm(x);  b, a = in_proj_ba norm(x);  q, k, v = silu(conv1d of all three)
 *              x += out_proj (norm(delta_scan(q, k, v, a, b)) silu(z))
 *              x += down_proj (silu(gate_proj norm(x)) up_proj norm(x))
 *
 * The rows of in_proj_qkvz and in_proj_ba are interleaved: those of a head of keys lie together. The norms around the two
 * halves multiply by 1 + weight, the one inside by weight. --allow-neg-eigval is flash-linear-attention's: beta is at most
 * 2 instead of 1. */
#include "train/models/language.h"

enum { FILTER = 4, VALUES_PER_KEY = 2 /* heads of values for a head of keys */ };
#define EPSILON 1e-6
#define DEVIATION 0.02
#define LARGEST_RATE 16

static remat_value linear(const rm_place *at, const char *name, remat_value x, int64_t in, int64_t out) {
    return rm_place_linear(at, name, x, in, out, remat_init_normal(DEVIATION));
}

static remat_value norm(const rm_place *at, const char *name, remat_value x, int64_t width) {
    return rm_place_norm(at, name, x, width, EPSILON);
}

/* Numbers [first, first + count) of each of `heads` heads of x, side by side. */
static remat_value of_heads(remat_graph *g, const rm_model_spec *spec, remat_value x, int64_t heads, int64_t width,
                            int64_t first, int64_t count) {
    x = remat_slice(g, rm_language_view(g, spec, x, heads, width), first, count);
    return rm_language_view(g, spec, x, 0, heads * count);
}

static remat_value mixer(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, keys = rm_model_heads(spec), heads = VALUES_PER_KEY * keys, K = D / keys;
    const int64_t shared = VALUES_PER_KEY * K, each = 2 * K + 2 * shared, E = heads * K; /* of a head of keys; of v */
    remat_value all = linear(at, "linear_attn.in_proj_qkvz.weight", x, D, keys * each);
    remat_value gates = linear(at, "linear_attn.in_proj_ba.weight", x, D, 2 * heads);
    remat_value z = of_heads(g, spec, all, keys, each, 2 * K + shared, shared);
    remat_value b = of_heads(g, spec, gates, keys, 2 * VALUES_PER_KEY, 0, VALUES_PER_KEY);
    remat_value a = of_heads(g, spec, gates, keys, 2 * VALUES_PER_KEY, VALUES_PER_KEY, VALUES_PER_KEY);
    remat_value qkv[] = {of_heads(g, spec, all, keys, each, 0, K), of_heads(g, spec, all, keys, each, K, K),
                         of_heads(g, spec, all, keys, each, 2 * K, shared)};
    remat_value filter =
        rm_place_param(at, "linear_attn.conv1d.weight", 3, 2 * D + E, 1, FILTER, remat_init_normal(DEVIATION));
    remat_value u = remat_causal_conv(g, remat_concat(g, qkv, 3), filter, REMAT_NONE);
    u = remat_silu(g, rm_reset_at_begins(g, spec, u));
    remat_init rates = remat_init_of(REMAT_INIT_LOG_UNIFORM, LARGEST_RATE);
    remat_value a_log = rm_place_param(at, "linear_attn.A_log", 1, heads, 0, 0, rates);
    remat_value dt_bias = rm_place_param(at, "linear_attn.dt_bias", 1, heads, 0, 0, remat_init_constant(1));
    remat_value y = remat_delta_scan(g, remat_slice(g, u, 0, D), remat_slice(g, u, D, D), remat_slice(g, u, 2 * D, E),
                                     a, b, a_log, dt_bias, keys, spec->allow_neg_eigval);
    y = rm_language_view(g, spec, rm_reset_at_begins(g, spec, y), heads, K);
    y = remat_rms_norm(g, y, rm_place_param(at, "linear_attn.norm.weight", 1, K, 0, 0, remat_init_constant(1)),
                       EPSILON);
    y = remat_mul(g, rm_language_view(g, spec, y, 0, E), remat_silu(g, z));
    return linear(at, "linear_attn.out_proj.weight", y, E, D);
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const rm_place at = rm_place_of(g, "model.layers", layer);
    x = remat_add(g, mixer(&at, spec, norm(&at, "input_layernorm.weight", x, spec->hidden)), x);
    remat_value y = norm(&at, "post_attention_layernorm.weight", x, spec->hidden);
    const int64_t inner = 11 * spec->hidden / 4; /* Qwen3-Next's: 5632 for 2048 */
    return remat_add(g, rm_place_gated_mlp(&at, y, spec->hidden, inner, remat_init_normal(DEVIATION)), x);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_place at = {.graph = g};
    x = rm_language_input(g, spec, x, "model.embed_tokens.weight", remat_init_normal(DEVIATION), NULL);
    for (int64_t layer = 0; layer < spec->layers; layer++) x = block(g, spec, layer, x);
    x = rm_language_answer(g, spec, norm(&at, "model.norm.weight", x, spec->hidden));
    return linear(&at, "lm_head.weight", x, spec->hidden, rm_data_outputs(&spec->data));
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *gate = rm_weights_named(file, "model.layers.0.linear_attn.in_proj_ba.weight");
    (void)name;
    if (!gate || gate->rank != 2) return false;
    rm_found_ends(out, file, "model.embed_tokens.weight", "lm_head.weight");
    rm_found_number(out, "layers", rm_weights_layers(file, "model.layers.", ".linear_attn.in_proj_ba.weight"));
    rm_found_number(out, "hidden", gate->dim[1]);
    rm_found_number(out, "heads", gate->dim[0] / (2 * VALUES_PER_KEY));
    return true;
}

/* Shapes alone do not tell how many heads share a head of values. */
static const rm_hub_key hub_keys[] = {
    {"linear_num_key_heads", .flag = "heads"}, {"allow_neg_eigval", .flag = "allow-neg-eigval"},
    {"model_type", .value = "qwen3_next"},     {"hidden_act", .value = "silu"},
    {"rms_norm_eps", .value = "1e-06"},        {0}};

const rm_model_family rm_gdn_family = {
    .logits = logits, .head = "lm_head.", .recognise = recognise, .hub_keys = hub_keys};

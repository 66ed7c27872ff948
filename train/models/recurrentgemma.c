/* recurrentgemma.c: the model recurrentgemma (De et al. 2024, Botev et al. 2024), with the names, shapes and starting
 * distributions of Hugging Face's RecurrentGemmaForCausalLM: --layers blocks of --hidden numbers in --heads heads.
 * --attention-at lists the blocks of local attention (Griffin); the others are of RG-LRU (without attention: Hawk).
 *
 *     embed_tokens sqrt(hidden) ─ block 0 ─ ... ─ block L-1 ─ final_norm ─ [last step] ─ head ─ 30 tanh(x / 30)
 *
 *     RG-LRU     u = temporal_pre_norm(x);  c = conv_1d linear_x u
 *                x += linear_out (rg_lru(c, input gate of c, recurrent gate of c) gelu(linear_y u))
 *     attention  x += o_proj (local attention of q_proj u, k_proj u, v_proj u; half of each head is rotated)
 *     both       x += down_proj (gelu(gate_proj u) up_proj u),  u = channel_pre_norm(x)
 *
 * If the model predicts tokens, the head is tied to the embeddings. The embeddings' factor is rounded to bf16, and only the
 * logits of tokens are capped. The norms multiply by 1 + weight. */
#include "train/models/language.h"

#include <string.h>

enum { FILTER = 4, MLP_HALVES = 3 /* the MLP is 3/2 as wide as the model */, WINDOW = 2048 };
#define ROTARY_BASE 10000
#define EPSILON 1e-6
#define CAP 30
#define VARIANCE 0.01
#define EMBEDDINGS "model.embed_tokens.weight"

static bool is_attention(const rm_model_spec *spec, int64_t layer) {
    if (!spec->attention_at || !strcmp(spec->attention_at, "third")) return layer % 3 == 2;
    return rm_blocks_name(spec->attention_at, layer);
}

static int64_t kv_heads(const rm_model_spec *spec) { return spec->kv_heads ? spec->kv_heads : 1; }

static remat_status check(const rm_model_spec *spec) {
    const int64_t heads = rm_model_heads(spec), width = spec->hidden / heads;
    const char *list = spec->attention_at;
    bool any = false;
    if (list && strcmp(list, "third")) TRY(rm_blocks_check("attention-at", list, "third", spec->layers));
    for (int64_t layer = 0; layer < spec->layers; layer++) any |= is_attention(spec, layer);
    REQUIRE(!any || heads % kv_heads(spec) == 0, INVALID,
            "--kv-heads=%lld does not divide the %lld heads; give a number that does", (long long)kv_heads(spec),
            (long long)heads);
    REQUIRE(
        !any || width % 4 == 0, INVALID,
        "--hidden=%lld: %lld heads have %lld numbers each, and attention rotates pairs of half of them; give --hidden "
        "and --heads for a multiple of 4, or --attention-at=none",
        (long long)spec->hidden, (long long)heads, (long long)width);
    return REMAT_OK;
}

static remat_init scaled(double variance, int64_t n) { return remat_init_normal(sqrt(variance / (double)n)); }

static remat_value norm(const rm_place *at, const char *name, remat_value x, int64_t width) {
    return rm_place_norm(at, name, x, width, EPSILON);
}

/* `name` ends before ".weight" and ".bias". */
static remat_value linear(const rm_place *at, const char *name, remat_value x, int64_t in, int64_t out,
                          remat_init init) {
    char weight[48], bias[48];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    remat_value w = rm_place_param(at, weight, 2, out, in, 0, init);
    return remat_linear(at->graph, x, w, rm_place_param(at, bias, 1, out, 0, 0, remat_init_zero()));
}

/* The weights of a head are (in,out), those of remat_headwise_linear (out,in). */
static remat_value gate(const rm_place *at, const char *name, remat_value x, int64_t heads, int64_t width) {
    remat_graph *g = at->graph;
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "temporal_block.rg_lru.%s_weight", name);
    snprintf(bias, sizeof bias, "temporal_block.rg_lru.%s_bias", name);
    remat_value w = rm_place_param(at, weight, 3, heads, width, width, scaled(VARIANCE, width));
    remat_value b = rm_place_param(at, bias, 2, heads, width, 0, remat_init_zero());
    b = remat_reshape(g, b, 1, (int64_t[]){heads * width});
    return remat_headwise_linear(g, x, remat_transpose(g, w, 1, 2), b);
}

static remat_value attention(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    const int64_t D = spec->hidden, heads = rm_model_heads(spec), width = D / heads, kv = kv_heads(spec) * width;
    const int64_t window = spec->attention_window ? spec->attention_window : WINDOW;
    remat_value q = rm_place_linear(at, "temporal_block.q_proj.weight", x, D, D, scaled(1, D));
    remat_value k = rm_place_linear(at, "temporal_block.k_proj.weight", x, D, kv, scaled(1, D));
    remat_value v = rm_place_linear(at, "temporal_block.v_proj.weight", x, D, kv, scaled(1, D));
    remat_value y = remat_local_attention(at->graph, q, k, v, heads, window, width / 2, ROTARY_BASE);
    y = rm_reset_at_begins(at->graph, spec, y);
    return linear(at, "temporal_block.o_proj", y, D, D, scaled(2 / (double)spec->layers, D));
}

static remat_value recurrence(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, heads = rm_model_heads(spec);
    remat_value y = remat_gelu_tanh(g, linear(at, "temporal_block.linear_y", x, D, D, scaled(1, D)));
    remat_value c = linear(at, "temporal_block.linear_x", x, D, D, scaled(1, D));
    remat_value filter = rm_place_param(at, "temporal_block.conv_1d.weight", 3, D, 1, FILTER, scaled(VARIANCE, FILTER));
    remat_value shift = rm_place_param(at, "temporal_block.conv_1d.bias", 1, D, 0, 0, remat_init_zero());
    c = rm_reset_at_begins(g, spec, remat_causal_conv(g, c, filter, shift));
    remat_value in = gate(at, "input_gate", c, heads, D / heads),
                keep = gate(at, "recurrent_gate", c, heads, D / heads);
    remat_init ring = remat_init_of(REMAT_INIT_RING, 0);
    remat_value a = rm_place_param(at, "temporal_block.rg_lru.recurrent_param", 1, D, 0, 0, ring);
    remat_value h = remat_rg_lru(g, c, in, keep, a, spec->field[RM_BEGINS]);
    return linear(at, "temporal_block.linear_out", remat_mul(g, h, y), D, D, scaled(2 / (double)spec->layers, D));
}

static remat_value mlp(const rm_place *at, remat_value x, int64_t D) {
    const int64_t inner = MLP_HALVES * D / 2;
    const remat_init init = scaled(VARIANCE, FILTER); /* sic */
    remat_value open = remat_gelu_tanh(at->graph, linear(at, "mlp_block.gate_proj", x, D, inner, init));
    x = remat_mul(at->graph, open, linear(at, "mlp_block.up_proj", x, D, inner, init));
    return linear(at, "mlp_block.down_proj", x, inner, D, init);
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const rm_place at = rm_place_of(g, "model.layers", layer);
    remat_value u = norm(&at, "temporal_pre_norm.weight", x, spec->hidden);
    x = remat_add(g, is_attention(spec, layer) ? attention(&at, spec, u) : recurrence(&at, spec, u), x);
    return remat_add(g, mlp(&at, norm(&at, "channel_pre_norm.weight", x, spec->hidden), spec->hidden), x);
}

/* sqrt(n) as a bf16 number: 8 bits of significand, rounded to the nearest. */
static double embedding_factor(int64_t n) {
    int exponent;
    double fraction = frexp(sqrt((double)n), &exponent);
    return ldexp(nearbyint(fraction * 256), exponent - 8);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_place at = {.graph = g};
    const int64_t D = spec->hidden;
    remat_value table;
    x = rm_language_input(g, spec, x, EMBEDDINGS, scaled(VARIANCE, FILTER), &table);
    if (spec->data.vocabulary) x = remat_scale(g, x, embedding_factor(D));
    for (int64_t layer = 0; layer < spec->layers; layer++) x = block(g, spec, layer, x);
    x = rm_language_answer(g, spec, norm(&at, "model.final_norm.weight", x, D));
    if (!rm_model_is_tied(spec)) {
        remat_init init = scaled(1, D);
        return rm_place_linear(&at, "lm_head.weight", x, D, rm_data_outputs(&spec->data), init);
    }
    x = remat_linear(g, x, table, REMAT_NONE);
    return remat_scale(g, remat_tanh(g, remat_scale(g, x, 1.0 / CAP)), CAP);
}

/* A file without any block of RG-LRU does not tell how many heads there are. */
static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    static const char blocks[] = "model.layers.", key[] = ".temporal_block.k_proj.weight";
    const int64_t layers = rm_weights_layers(file, blocks, ".mlp_block.up_proj.weight");
    const rm_st_array *gates = NULL, *keys = NULL;
    char full[80], at[sizeof out->flag->value];
    (void)name;
    for (int64_t layer = 0; layer < layers; layer++) {
        snprintf(full, sizeof full, "%s%lld.temporal_block.rg_lru.input_gate_weight", blocks, (long long)layer);
        if (!gates) gates = rm_weights_named(file, full);
        snprintf(full, sizeof full, "%s%lld%s", blocks, (long long)layer, key);
        if (!keys) keys = rm_weights_named(file, full);
    }
    if (!gates || gates->rank != 3) return false;
    const rm_st_array *gain = rm_weights_named(file, "model.final_norm.weight");
    const int64_t hidden = gain && gain->rank == 1 ? gain->dim[0] : gates->dim[0] * gates->dim[1];
    rm_found_ends(out, file, EMBEDDINGS, "lm_head.weight");
    rm_found_number(out, "layers", layers);
    rm_found_number(out, "hidden", hidden);
    rm_found_number(out, "heads", gates->dim[0]);
    int64_t count = rm_blocks_found(file, blocks, key, layers, at, sizeof at);
    bool thirds = count == layers / 3;
    for (int64_t layer = 2; layer < layers; layer += 3) thirds &= rm_blocks_name(at, layer);
    if (*at) rm_found_text(out, "attention-at", thirds && count ? "third" : at);
    const int64_t width = hidden / gates->dim[0];
    if (keys && keys->rank == 2 && width && keys->dim[0] >= width)
        rm_found_number(out, "kv-heads", keys->dim[0] / width);
    return true;
}

static const rm_hub_key hub_keys[] = {{"attention_window_size", .flag = "attention-window"},
                                      {"model_type", .value = "recurrent_gemma"},
                                      {"hidden_activation", .value = "gelu_pytorch_tanh"},
                                      {"rms_norm_eps", .value = "1e-06"},
                                      {"logits_soft_cap", .value = "30"},
                                      {"partial_rotary_factor", .value = "0.5"},
                                      {"rope_theta", .value = "10000"},
                                      {"rope_parameters.rope_type", .value = "default"},
                                      {"rope_parameters.partial_rotary_factor", .value = "0.5"},
                                      {"rope_parameters.rope_theta", .value = "10000"},
                                      {0}};

const rm_model_family rm_recurrentgemma_family = {.check = check,
                                                  .logits = logits,
                                                  .head = "lm_head.",
                                                  .tied = "model.embed_tokens.",
                                                  .recognise = recognise,
                                                  .hub_keys = hub_keys};

/* m2rnn.c: the model m2rnn (M2RNN, 2026): a language model of blocks whose mixer has the names and shapes of lm-engine's M2RNN with
 * a kernel of 4 and SiLU: --layers blocks of --hidden numbers in --heads heads of hidden / heads keys and values. There is no
 * whole model of this kind in public; embedding, norms and MLP have the names of gdn's.
 *
 *     embed_tokens ─ block 0 ─ ... ─ block L-1 ─ norm ─ [last step] ─ lm_head
 *
 *     block    qkv, f, g = input_projection norm(x);  q, k, v = silu(conv1d qkv)
 *              h = m2rnn(q, k, v, exp(-exp(A_log) softplus(f + dt_bias)), state_weight) + D v
 *              x += output_projection g_norm(h silu(g))
 *              x += down_proj (silu(gate_proj norm(x)) up_proj norm(x)) */
#include "train/models/language.h"

enum { FILTER = 4 };
#define EPSILON 1e-6
#define DEVIATION 0.02
#define LARGEST_STEP 0.1
#define LARGEST_RATE 16

static remat_value linear(const rm_place *at, const char *name, remat_value x, int64_t in, int64_t out) {
    return rm_place_linear(at, name, x, in, out, remat_init_normal(DEVIATION));
}

static remat_value norm(const rm_place *at, const char *name, remat_value x, int64_t width) {
    return remat_rms_norm(at->graph, x, rm_place_param(at, name, 1, width, 0, 0, remat_init_constant(1)), EPSILON);
}

/* lm-engine's SoftplusDecayGate of f (T,B,heads). */
static remat_value decay(const rm_place *at, remat_value f, int64_t heads) {
    remat_graph *g = at->graph;
    remat_init rates = remat_init_of(REMAT_INIT_LOG_UNIFORM, LARGEST_RATE);
    remat_init steps = remat_init_of(REMAT_INIT_TIME_STEP, LARGEST_STEP);
    remat_value rate = remat_exp(g, rm_place_param(at, "m2rnn.decay_gate.A_log", 1, heads, 0, 0, rates));
    remat_value bias = rm_place_param(at, "m2rnn.decay_gate.dt_bias", 1, heads, 0, 0, steps);
    remat_value step = remat_softplus(g, remat_add(g, f, bias));
    return remat_exp(g, remat_mul(g, step, remat_scale(g, rate, -1)));
}

static remat_value mixer(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, heads = rm_model_heads(spec), V = D / heads;
    remat_value all = linear(at, "m2rnn.input_projection.weight", x, D, 4 * D + heads);
    remat_value filter = rm_place_param(at, "m2rnn.conv1d.weight", 3, 3 * D, 1, FILTER, rm_init_from(FILTER));
    remat_value u = remat_causal_conv(g, remat_slice(g, all, 0, 3 * D), filter, REMAT_NONE);
    u = remat_silu(g, rm_reset_at_begins(g, spec, u));
    remat_value v = remat_slice(g, u, 2 * D, D), f = decay(at, remat_slice(g, all, 3 * D, heads), heads);
    remat_value w = rm_place_param(at, "m2rnn.state_weight", 3, heads, V, V, remat_init_of(REMAT_INIT_IDENTITY, 0));
    remat_value h = remat_m2rnn(g, remat_slice(g, u, 0, D), remat_slice(g, u, D, D), v, f, w);
    remat_value skip = rm_place_param(at, "m2rnn.D", 2, heads, V, 0, remat_init_constant(1));
    skip = remat_mul(g, v, remat_reshape(g, skip, 1, (int64_t[]){D}));
    h = remat_add(g, rm_reset_at_begins(g, spec, h), skip);
    h = remat_mul(g, h, remat_silu(g, remat_slice(g, all, 3 * D + heads, D)));
    return linear(at, "m2rnn.output_projection.weight", norm(at, "m2rnn.g_norm.weight", h, D), D, D);
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const rm_place at = rm_place_of(g, "model.layers", layer);
    const int64_t D = spec->hidden;
    x = remat_add(g, mixer(&at, spec, norm(&at, "input_layernorm.weight", x, D)), x);
    remat_value y = norm(&at, "post_attention_layernorm.weight", x, D);
    return remat_add(g, rm_place_gated_mlp(&at, y, D, 11 * D / 4, remat_init_normal(DEVIATION)), x);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_place at = {.graph = g};
    x = rm_language_input(g, spec, x, "model.embed_tokens.weight", remat_init_normal(DEVIATION), NULL);
    for (int64_t layer = 0; layer < spec->layers; layer++) x = block(g, spec, layer, x);
    x = rm_language_answer(g, spec, norm(&at, "model.norm.weight", x, spec->hidden));
    return linear(&at, "lm_head.weight", x, spec->hidden, rm_data_outputs(&spec->data));
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    static const char kernel[] = ".m2rnn.state_weight";
    const rm_st_array *first = rm_weights_named(file, "model.layers.0.m2rnn.state_weight");
    (void)name;
    if (!first || first->rank != 3) return false;
    rm_found_ends(out, file, "model.embed_tokens.weight", "lm_head.weight");
    rm_found_number(out, "layers", rm_weights_layers(file, "model.layers.", kernel));
    rm_found_number(out, "hidden", first->dim[0] * first->dim[1]);
    rm_found_number(out, "heads", first->dim[0]);
    return true;
}

const rm_model_family rm_m2rnn_family = {.logits = logits, .head = "lm_head.", .recognise = recognise};

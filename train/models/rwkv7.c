/* rwkv7.c: the model rwkv7 (Peng et al. 2025), with the names and shapes of RWKV-LM's v7 (train_temp): --layers blocks of
 * --hidden numbers in --heads heads.
 *
 *     emb ─ ln0 ─ block 0 ─ ... ─ block L-1 ─ ln_out ─ [last step] ─ head
 *
 *     block    u = ln1(x);  each of r, w, k, v, a, g reads u mixed with the previous timestep's by its own x_..
 *              a = a0 + a1 a2;  kappa = k k_k;  k = k (1 + (sigmoid(a) - 1) k_a);  v from the second block on: a share of
 *              the first block's, sigmoid(v0 + v1 v2)
 *              y = ln_x(rwkv7(r, w0 + tanh(w1) w2, k, v, kappa, a)) + (r . k r_k) v
 *              x += output (y (sigmoid(g1) g2));  x += value relu(key of ln2(x), mixed)^2
 *
 * Starting values are RWKV-LM's, but for the head: its orthogonal matrix is a normal one of the same size. */
#include "train/models/language.h"

enum { LORA = 32, FORWARD = 4 /* the MLP is 4 times as wide */ };
#define EPSILON 1e-5
#define EPSILON_HEADS 64e-5

/* RWKV-LM's width of a pair of small matrices: a multiple of 32. */
static int64_t lora_width(int64_t hidden, double factor) {
    int64_t width = LORA * (int64_t)nearbyint(factor * sqrt((double)hidden) / LORA);
    return width > LORA ? width : LORA;
}

/* A parameter (1,1,C), as (C). */
static remat_value vector(const rm_place *at, const char *name, int64_t width, remat_init init) {
    remat_value p = rm_place_param(at, name, 3, 1, 1, width, init);
    return remat_reshape(at->graph, p, 1, &width);
}

/* `first`: the starting value of its weights. */
static remat_value norm(const rm_place *at, const char *name, remat_value x, int64_t width, int64_t heads,
                        double first) {
    char weight[32], bias[32];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    remat_value gain = rm_place_param(at, weight, 1, width, 0, 0, remat_init_constant(first));
    remat_value shift = rm_place_param(at, bias, 1, width, 0, 0, remat_init_zero());
    return heads ? remat_group_norm(at->graph, x, heads, gain, shift, EPSILON_HEADS)
                 : remat_layer_norm(at->graph, x, gain, shift, EPSILON);
}

/* x + (x of the previous timestep - x) m: a convolution over time. `power`: channel c of m starts at 1 - (c/C)^power. */
static remat_value mixed(const rm_place *at, const rm_model_spec *spec, const char *name, remat_value x, double power) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden;
    remat_value m = rm_place_param(at, name, 3, 1, 1, D, remat_init_of(REMAT_INIT_RWKV7_MIX, power));
    m = remat_reshape(g, m, 3, (int64_t[]){D, 1, 1});
    remat_value taps[] = {m, remat_shift(g, remat_scale(g, m, -1), 1)};
    return rm_reset_at_begins(g, spec, remat_causal_conv(g, x, remat_concat_axis(g, taps, 2, 2), REMAT_NONE));
}

static remat_value linear(const rm_place *at, const char *name, remat_value x, int64_t in, int64_t out, double bound) {
    return rm_place_linear(at, name, x, in, out, remat_init_uniform(bound / sqrt((double)in)));
}

/* Multiplies by an (in,out) matrix. */
static remat_value multiply(const rm_place *at, const char *name, remat_value x, int64_t in, int64_t out,
                            remat_init init) {
    return remat_matmul(at->graph, x, rm_place_param(at, name, 2, in, out, 0, init), REMAT_NONE);
}
static remat_init out_of_lora(void) { return remat_init_of(REMAT_INIT_ORTHOGONAL, 0.1); }

/* For each head r . k r_k times v. */
static remat_value bonus(const rm_place *at, const rm_model_spec *spec, remat_value r, remat_value k, remat_value v) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, heads = rm_model_heads(spec), each = D / heads;
    const int64_t T = spec->window ? spec->window : spec->data.timesteps;
    remat_value r_k = rm_place_param(at, "att.r_k", 2, heads, each, 0, remat_init_constant(-0.04));
    remat_value parts = remat_mul(g, remat_mul(g, r, k), remat_reshape(g, r_k, 1, &D));
    remat_value sum = remat_mean(g, rm_language_view(g, spec, parts, heads, each), 1);
    sum = remat_reshape(g, remat_scale(g, sum, (double)each), 4, (int64_t[]){T, -1, heads, 1});
    return rm_language_view(g, spec, remat_mul(g, rm_language_view(g, spec, v, heads, each), sum), 0, D);
}

/* *first: the first block's v. */
static remat_value attention(const rm_place *at, const rm_model_spec *spec, int64_t layer, remat_value x,
                             remat_value *first) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, wide = lora_width(D, 2.5), heads = rm_model_heads(spec);
    const double rest = 1 - (double)layer / (double)spec->layers; /* of depth */
    const double depth = spec->layers > 1 ? (double)layer / (double)(spec->layers - 1) : 0, each = (double)(D / heads);
    const remat_init decay = remat_init_of(REMAT_INIT_RWKV7_DECAY, each + depth / 2);
    remat_value r = linear(at, "att.receptance.weight", mixed(at, spec, "att.x_r", x, 0.2 * rest), D, D, 0.5);
    remat_value w = mixed(at, spec, "att.x_w", x, 0.9 * rest), k = mixed(at, spec, "att.x_k", x, 0.7 * rest);
    remat_value v_in = mixed(at, spec, "att.x_v", x, 0.7 * rest), a = mixed(at, spec, "att.x_a", x, 0.9 * rest);
    w = remat_tanh(g, multiply(at, "att.w1", w, D, wide, remat_init_zero()));
    w = remat_add(g, multiply(at, "att.w2", w, wide, D, out_of_lora()), vector(at, "att.w0", D, decay));
    k = linear(at, "att.key.weight", k, D, D, 0.05);
    remat_value v = linear(at, "att.value.weight", v_in, D, D, 0.5);
    if (layer) {
        int64_t narrow = lora_width(D, 1.7);
        remat_value share = multiply(at, "att.v1", v_in, D, narrow, remat_init_zero());
        share = remat_add(g, multiply(at, "att.v2", share, narrow, D, out_of_lora()),
                          vector(at, "att.v0", D, remat_init_of(REMAT_INIT_RWKV7_VALUE, 0)));
        v = remat_add(g, v, remat_mul(g, remat_sub(g, *first, v), remat_sigmoid(g, share)));
    } else {
        *first = v;
    }
    a = multiply(at, "att.a2", multiply(at, "att.a1", a, D, wide, remat_init_zero()), wide, D, out_of_lora());
    a = remat_add(g, a, vector(at, "att.a0", D, remat_init_of(REMAT_INIT_RWKV7_RATE, each)));
    int64_t open = lora_width(D, 5);
    remat_value gate = multiply(at, "att.g1", mixed(at, spec, "att.x_g", x, 0.2 * rest), D, open, remat_init_zero());
    gate = multiply(at, "att.g2", remat_sigmoid(g, gate), open, D, out_of_lora());
    remat_value kappa = remat_mul(g, k, vector(at, "att.k_k", D, remat_init_of(REMAT_INIT_RWKV7_KEY, 0)));
    remat_value less =
        remat_mul(g, remat_shift(g, remat_sigmoid(g, a), -1), vector(at, "att.k_a", D, remat_init_constant(1.02)));
    k = remat_mul(g, k, remat_shift(g, less, 1));
    remat_value y = rm_reset_at_begins(g, spec, remat_rwkv7(g, r, w, k, v, kappa, a, heads));
    y = remat_add(g, norm(at, "att.ln_x", y, D, heads, pow((double)(layer + 1) / (double)spec->layers, 0.7)),
                  bonus(at, spec, r, k, v));
    return linear(at, "att.output.weight", remat_mul(g, y, gate), D, D, 0);
}

static remat_value feed_forward(const rm_place *at, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const int64_t D = spec->hidden;
    const double rest = 1 - (double)layer / (double)spec->layers;
    x = mixed(at, spec, "ffn.x_k", x, rest * rest * rest * rest);
    x = remat_relu(at->graph, linear(at, "ffn.key.weight", x, D, FORWARD * D, 0.5));
    return linear(at, "ffn.value.weight", remat_mul(at->graph, x, x), FORWARD * D, D, 0);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_place whole = {.graph = g};
    const int64_t D = spec->hidden;
    remat_value first = REMAT_NONE;
    x = rm_language_input(g, spec, x, "emb.weight", remat_init_uniform(1e-4), NULL);
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        const rm_place at = rm_place_of(g, "blocks", layer);
        if (!layer) x = norm(&at, "ln0", x, D, 0, 1);
        x = remat_add(g, attention(&at, spec, layer, norm(&at, "ln1", x, D, 0, 1), &first), x);
        x = remat_add(g, feed_forward(&at, spec, layer, norm(&at, "ln2", x, D, 0, 1)), x);
    }
    x = rm_language_answer(g, spec, norm(&whole, "ln_out", x, D, 0, 1));
    return rm_place_linear(&whole, "head.weight", x, D, rm_data_outputs(&spec->data),
                           remat_init_normal(0.5 / sqrt((double)D)));
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *first = rm_weights_named(file, "blocks.0.att.r_k");
    (void)name;
    if (!first || first->rank != 2) return false;
    rm_found_ends(out, file, "emb.weight", "head.weight");
    rm_found_number(out, "layers", rm_weights_layers(file, "blocks.", ".att.r_k"));
    rm_found_number(out, "hidden", first->dim[0] * first->dim[1]);
    rm_found_number(out, "heads", first->dim[0]);
    return true;
}

const rm_model_family rm_rwkv7_family = {.logits = logits, .head = "head.", .recognise = recognise};

/* gpt2.c: the model gpt2 (Radford et al. 2019), with the names, shapes and starting distributions of Hugging Face's GPT2LMHeadModel:
 * --layers blocks of width --hidden with --heads attention heads; the output head is tied to the embedding.
 *
 *     x = wte[token] + wpe[timestep];  each block:  x += c_proj(attention(c_attn(ln_1 x)));  x += c_proj(gelu(c_fc(ln_2 x)))
 *
 * --no-bias leaves out all biases, nanoGPT's bias=False. --dropout is embd_pdrop, resid_pdrop and attn_pdrop. */
#include "train/models/family.h"

#include <math.h>
#include <stdio.h>

#define DEVIATION 0.02
#define EPSILON 1e-5

typedef struct {
    remat_graph *graph;
    const rm_model_spec *spec;
    char prefix[32]; /* "h.0.", of the current block */
} builder;

static int64_t timesteps(const rm_model_spec *spec) { return spec->window ? spec->window : spec->data.timesteps; }
static int64_t positions(const rm_model_spec *spec) { return spec->positions ? spec->positions : timesteps(spec); }

static remat_status check(const rm_model_spec *spec) {
    const rm_data_shape *data = &spec->data;
    REQUIRE(data->every_step && data->vocabulary && data->vocabulary == data->classes, INVALID,
            "--model=gpt2 predicts the next token: use --task=lm");
    REQUIRE(positions(spec) >= timesteps(spec), INVALID,
            "--positions=%lld is less than the %lld timesteps of a sample: increase --positions or reduce "
            "--seq-len",
            (long long)positions(spec), (long long)timesteps(spec));
    return REMAT_OK;
}

static remat_value parameter(builder *b, const char *name, int rank, int64_t d0, int64_t d1, remat_init init) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    return remat_param(b->graph, full, rank, (int64_t[]){d0, d1}, init);
}

static remat_value bias_of(builder *b, const char *name, int64_t width) {
    return b->spec->no_bias ? REMAT_NONE : parameter(b, name, 1, width, 0, remat_init_zero());
}

static remat_value norm(builder *b, const char *weight, const char *bias, remat_value x) {
    remat_value gain = parameter(b, weight, 1, b->spec->hidden, 0, remat_init_constant(1));
    return remat_layer_norm(b->graph, x, gain, bias_of(b, bias, b->spec->hidden), EPSILON);
}

/* GPT-2's Conv1D: weights (in,out). */
static remat_value dense(builder *b, const char *weight, const char *bias, remat_value x, int64_t in, int64_t out,
                         double deviation) {
    remat_value w = parameter(b, weight, 2, in, out, remat_init_normal(deviation));
    return remat_matmul(b->graph, x, w, bias_of(b, bias, out));
}

static remat_value dropout(builder *b, remat_value x) {
    return b->spec->dropout > 0 ? remat_dropout(b->graph, x, b->spec->dropout) : x;
}

static remat_value attention(builder *b, remat_value x, double into_the_sum) {
    int64_t C = b->spec->hidden;
    remat_value part[3], all = dense(b, "attn.c_attn.weight", "attn.c_attn.bias", x, C, 3 * C, DEVIATION);
    for (int i = 0; i < 3; i++) part[i] = remat_slice(b->graph, all, i * C, C);
    x = remat_attention_dropout(b->graph, part[0], part[1], part[2], rm_model_heads(b->spec), true, REMAT_NONE,
                                b->spec->dropout);
    return dropout(b, dense(b, "attn.c_proj.weight", "attn.c_proj.bias", x, C, C, into_the_sum));
}

static remat_value feed_forward(builder *b, remat_value x, double into_the_sum) {
    int64_t C = b->spec->hidden;
    x = remat_gelu_tanh(b->graph, dense(b, "mlp.c_fc.weight", "mlp.c_fc.bias", x, C, 4 * C, DEVIATION));
    return dropout(b, dense(b, "mlp.c_proj.weight", "mlp.c_proj.bias", x, 4 * C, C, into_the_sum));
}

static remat_value head(builder *b) {
    return parameter(b, "lm_head.weight", 2, b->spec->data.classes, b->spec->hidden, remat_init_normal(DEVIATION));
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    builder b = {.graph = g, .spec = spec};
    const double into_the_sum = DEVIATION / sqrt(2 * (double)spec->layers); /* each block adds 2 terms */
    remat_value wte = parameter(&b, "wte.weight", 2, spec->data.vocabulary, spec->hidden, remat_init_normal(DEVIATION));
    remat_value wpe = parameter(&b, "wpe.weight", 2, positions(spec), spec->hidden, remat_init_normal(DEVIATION));
    x = dropout(&b, remat_positions(g, remat_embedding(g, x, wte), wpe));
    for (int64_t block = 0; block < spec->layers; block++) {
        snprintf(b.prefix, sizeof b.prefix, "h.%lld.", (long long)block);
        x = remat_add(g, x, attention(&b, norm(&b, "ln_1.weight", "ln_1.bias", x), into_the_sum));
        x = remat_add(g, x, feed_forward(&b, norm(&b, "ln_2.weight", "ln_2.bias", x), into_the_sum));
    }
    *b.prefix = 0;
    x = norm(&b, "ln_f.weight", "ln_f.bias", x);
    return remat_linear(g, x, spec->no_tie ? head(&b) : wte, REMAT_NONE);
}

static void name_head(const rm_model_spec *spec, char *out, size_t bytes) {
    snprintf(out, bytes, "%s", spec->no_tie ? "lm_head." : "wte.");
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *wpe = rm_weights_named(file, "wpe.weight"), *wte = rm_weights_named(file, "wte.weight");
    const rm_st_array *head = rm_weights_named(file, "lm_head.weight");
    int64_t layers = rm_weights_layers(file, "h.", ".attn.c_attn.weight");
    (void)name;
    if (!wpe || wpe->rank != 2) return false;
    rm_found_ends(out, file, "wte.weight", "lm_head.weight");
    rm_found_switch(out, "no-bias", !rm_weights_named(file, "ln_f.bias"));
    rm_found_number(out, "positions", wpe->dim[0]);
    if (head && wte && !rm_weights_same(file, head, wte)) rm_found_switch(out, "no-tie", true);
    if (layers) rm_found_number(out, "layers", layers);
    rm_found_number(out, "hidden", wpe->dim[1]);
    return true;
}

static const rm_hub_key hub_keys[] = {{"n_head", .flag = "heads"},
                                      {"model_type", .value = "gpt2"},
                                      {"activation_function", .value = "gelu_new gelu_pytorch_tanh"},
                                      {"layer_norm_epsilon", .value = "1e-05"},
                                      {"scale_attn_weights", .value = "true"},
                                      {"scale_attn_by_inverse_layer_idx", .value = "false"},
                                      {0}};

const rm_model_family rm_gpt2_family = {
    .check = check, .logits = logits, .name_head = name_head, .recognise = recognise, .hub_keys = hub_keys};

/* mamba2.c: the model mamba2 (Dao and Gu 2024), with the names and shapes of Hugging Face's Mamba2ForCausalLM and
 * the starting distributions of mamba_ssm: --layers blocks of --hidden numbers, twice as wide inside, --heads heads of
 * --state-size states, whose B and C are shared by the heads of each of --n-groups groups.
 *
 *     embeddings ─ block 0 ─ ... ─ block L-1 ─ norm_f ─ [last step] ─ head
 *
 *     block    z, xBC, dt = in_proj norm(residual);  x, B, C = silu(conv1d xBC)
 *              residual += out_proj norm(ssd(x, dt, A_log, B, C, D, dt_bias) silu(z))
 *
 * The inner norm divides the channels of each group by their own root mean square.
 * If the model predicts tokens, the head is tied to the embeddings, unless --no-tie is given. */
#include "train/models/language.h"

enum { STATES = 128 /* without --state-size */, EXPAND = 2, FILTER = 4 };
#define EPSILON 1e-5
#define LARGEST_STEP 0.1
#define EMBEDDINGS "backbone.embeddings.weight"

/* --heads, or one for every 64 channels. */
static int64_t heads_of(const rm_model_spec *spec) { return spec->heads ? spec->heads : EXPAND * rm_model_heads(spec); }

static int64_t groups_of(const rm_model_spec *spec) { return spec->n_groups ? spec->n_groups : 1; }

static remat_status check(const rm_model_spec *spec) {
    int64_t heads = heads_of(spec), groups = groups_of(spec), width = EXPAND * spec->hidden;
    REQUIRE(heads % groups == 0 && width % groups == 0, INVALID,
            "--n-groups=%lld must divide %lld heads and %lld channels; give a divisor of both", (long long)groups,
            (long long)heads, (long long)width);
    return REMAT_OK;
}

static remat_value norm(const rm_place *at, const char *name, remat_value x, int64_t width) {
    return remat_rms_norm(at->graph, x, rm_place_param(at, name, 1, width, 0, 0, remat_init_constant(1)), EPSILON);
}

/* One weight for all channels, and a mean square for each group of them. */
static remat_value norm_groups(const rm_place *at, const rm_model_spec *spec, remat_value x, int64_t width) {
    remat_graph *g = at->graph;
    const int64_t groups = groups_of(spec), each = width / groups;
    if (groups == 1) return norm(at, "mixer.norm.weight", x, width);
    remat_value weight = rm_place_param(at, "mixer.norm.weight", 1, width, 0, 0, remat_init_constant(1));
    remat_value ones = remat_shift(g, remat_scale(g, remat_slice(g, weight, 0, each), 0), 1);
    x = remat_rms_norm(g, rm_language_view(g, spec, x, groups, each), ones, EPSILON);
    return remat_mul(g, rm_language_view(g, spec, x, 0, width), weight);
}

static remat_value mixer(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, E = EXPAND * D, groups = groups_of(spec), heads = heads_of(spec);
    const int64_t GN = groups * (spec->state_size ? spec->state_size : STATES), conv = E + 2 * GN;
    remat_value all = rm_place_linear(at, "mixer.in_proj.weight", x, D, E + conv + heads, rm_init_from(D));
    remat_value filter = rm_place_param(at, "mixer.conv1d.weight", 3, conv, 1, FILTER, rm_init_from(FILTER));
    remat_value shift = rm_place_param(at, "mixer.conv1d.bias", 1, conv, 0, 0, rm_init_from(FILTER));
    remat_value u = remat_causal_conv(g, remat_slice(g, all, E, conv), filter, shift);
    u = remat_silu(g, rm_reset_at_begins(g, spec, u));
    remat_value a_log = rm_place_param(at, "mixer.A_log", 1, heads, 0, 0, remat_init_of(REMAT_INIT_LOG_COUNT, 0));
    remat_value skip = rm_place_param(at, "mixer.D", 1, heads, 0, 0, remat_init_constant(1));
    remat_init steps = remat_init_of(REMAT_INIT_TIME_STEP, LARGEST_STEP);
    remat_value y = remat_ssd(g, remat_slice(g, u, 0, E), remat_slice(g, all, E + conv, heads), a_log,
                              remat_slice(g, u, E, GN), remat_slice(g, u, E + GN, GN), skip,
                              rm_place_param(at, "mixer.dt_bias", 1, heads, 0, 0, steps), groups);
    y = remat_mul(g, rm_reset_at_begins(g, spec, y), remat_silu(g, remat_slice(g, all, 0, E)));
    return rm_place_linear(
        at, "mixer.out_proj.weight", norm_groups(at, spec, y, E), E, D,
        remat_init_uniform(1 / sqrt((double)(E * spec->layers)))); /* a term of the sum over all layers */
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_place whole = {.graph = g};
    int64_t D = spec->hidden, outputs = rm_data_outputs(&spec->data);
    remat_value table;
    x = rm_language_input(g, spec, x, EMBEDDINGS, remat_init_normal(0.02), &table);
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        const rm_place at = rm_place_of(g, "backbone.layers", layer);
        x = remat_add(g, mixer(&at, spec, norm(&at, "norm.weight", x, D)), x);
    }
    x = rm_language_answer(g, spec, norm(&whole, "backbone.norm_f.weight", x, D));
    if (!rm_model_is_tied(spec)) return rm_place_linear(&whole, "lm_head.weight", x, D, outputs, rm_init_from(D));
    return remat_linear(g, x, table, REMAT_NONE);
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *first = rm_weights_named(file, "backbone.layers.0.mixer.dt_bias");
    const rm_st_array *gain = rm_weights_named(file, "backbone.norm_f.weight");
    const rm_st_array *table = rm_weights_named(file, EMBEDDINGS), *head = rm_weights_named(file, "lm_head.weight");
    (void)name;
    if (!first || !gain || first->rank != 1 || gain->rank != 1) return false;
    rm_found_ends(out, file, EMBEDDINGS, "lm_head.weight");
    if (head && table && !rm_weights_same(file, head, table)) rm_found_switch(out, "no-tie", true);
    rm_found_number(out, "layers", rm_weights_layers(file, "backbone.layers.", ".mixer.dt_bias"));
    rm_found_number(out, "hidden", gain->dim[0]);
    rm_found_number(out, "heads", first->dim[0]);
    return true;
}

static const rm_hub_key hub_keys[] = {{"state_size", .flag = "state-size"},       {"n_groups", .flag = "n-groups"},
                                      {"model_type", .value = "mamba2"},          {"hidden_act", .value = "silu"},
                                      {"layer_norm_epsilon", .value = "1e-05"},   {"time_step_limit.0", .value = "0"},
                                      {"time_step_limit.1", .value = "Infinity"}, {0}};

const rm_model_family rm_mamba2_family = {.check = check,
                                          .logits = logits,
                                          .head = "lm_head.",
                                          .tied = "backbone.embeddings.",
                                          .recognise = recognise,
                                          .hub_keys = hub_keys};

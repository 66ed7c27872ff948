/* mamba.c: the model mamba (Gu and Dao 2023), with the names and shapes of Hugging Face's MambaForCausalLM and the
 * starting distributions of mamba_ssm: --layers blocks of --hidden numbers, twice as wide inside, --state-size states a channel.
 *
 *     embeddings ─ block 0 ─ ... ─ block L-1 ─ norm_f ─ [last step] ─ head
 *
 *     block    x, z = in_proj norm(residual);  u = silu(conv1d x);  dt, B, C = x_proj u
 *              residual += out_proj selective_scan(u, dt_proj dt, A_log, B, C, D, z)
 *
 * If the model predicts tokens, the head is tied to the embeddings; otherwise it has its own weights. Numeric
 * inputs pass through a linear layer, `input`. */
#include "train/models/language.h"

enum { STATES = 16 /* without --state-size */, EXPAND = 2, FILTER = 4, RANK_PER = 16 };
#define EPSILON 1e-5
#define LARGEST_STEP 0.1
#define EMBEDDINGS "backbone.embeddings.weight"

static remat_value mixer(const rm_place *at, const rm_model_spec *spec, remat_value x) {
    remat_graph *g = at->graph;
    const int64_t D = spec->hidden, E = EXPAND * D, R = (D + RANK_PER - 1) / RANK_PER;
    const int64_t N = spec->state_size ? spec->state_size : STATES;
    remat_value xz = rm_place_linear(at, "mixer.in_proj.weight", x, D, 2 * E, rm_init_from(D));
    remat_value filter = rm_place_param(at, "mixer.conv1d.weight", 3, E, 1, FILTER, rm_init_from(FILTER));
    remat_value u = remat_causal_conv(g, remat_slice(g, xz, 0, E), filter,
                                      rm_place_param(at, "mixer.conv1d.bias", 1, E, 0, 0, rm_init_from(FILTER)));
    u = remat_silu(g, rm_reset_at_begins(g, spec, u));
    remat_value made = rm_place_linear(at, "mixer.x_proj.weight", u, E, R + 2 * N, rm_init_from(E));
    remat_value dt = rm_place_linear(at, "mixer.dt_proj.weight", remat_slice(g, made, 0, R), R, E, rm_init_from(R));
    remat_value a_log = rm_place_param(at, "mixer.A_log", 2, E, N, 0, remat_init_of(REMAT_INIT_LOG_COUNT, 0));
    remat_value skip = rm_place_param(at, "mixer.D", 1, E, 0, 0, remat_init_constant(1));
    remat_init steps = remat_init_of(REMAT_INIT_TIME_STEP, LARGEST_STEP);
    remat_value y =
        remat_selective_scan(g, u, dt, a_log, remat_slice(g, made, R, N), remat_slice(g, made, R + N, N), skip,
                             remat_slice(g, xz, E, E), rm_place_param(at, "mixer.dt_proj.bias", 1, E, 0, 0, steps));
    return rm_place_linear(
        at, "mixer.out_proj.weight", rm_reset_at_begins(g, spec, y), E, D,
        remat_init_uniform(1 / sqrt((double)(E * spec->layers)))); /* a term of the sum over all layers */
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const rm_place at = rm_place_of(g, "backbone.layers", layer);
    remat_value gain = rm_place_param(&at, "norm.weight", 1, spec->hidden, 0, 0, remat_init_constant(1));
    return remat_add(g, mixer(&at, spec, remat_rms_norm(g, x, gain, EPSILON)), x);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    int64_t D = spec->hidden, outputs = rm_data_outputs(&spec->data);
    remat_value table;
    x = rm_language_input(g, spec, x, EMBEDDINGS, remat_init_normal(0.02), &table);
    for (int64_t layer = 0; layer < spec->layers; layer++) x = block(g, spec, layer, x);
    x = remat_rms_norm(g, x, remat_param(g, "backbone.norm_f.weight", 1, &D, remat_init_constant(1)), EPSILON);
    x = rm_language_answer(g, spec, x);
    if (!rm_model_is_tied(spec)) table = remat_param(g, "lm_head.weight", 2, (int64_t[]){outputs, D}, rm_init_from(D));
    return remat_linear(g, x, table, REMAT_NONE);
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *first = rm_weights_named(file, "backbone.layers.0.mixer.x_proj.weight");
    const rm_st_array *gain = rm_weights_named(file, "backbone.norm_f.weight");
    const rm_st_array *rates = rm_weights_named(file, "backbone.layers.0.mixer.A_log");
    (void)name;
    if (!first || !gain || gain->rank != 1 || !rates || rates->rank != 2) return false;
    rm_found_ends(out, file, EMBEDDINGS, "lm_head.weight");
    rm_found_number(out, "layers", rm_weights_layers(file, "backbone.layers.", ".mixer.x_proj.weight"));
    rm_found_number(out, "hidden", gain->dim[0]);
    rm_found_number(out, "state-size", rates->dim[1]);
    return true;
}

/* FalconMamba's arrays have the same names. */
static const rm_hub_key hub_keys[] = {
    {"model_type", .value = "mamba"}, {"hidden_act", .value = "silu"}, {"layer_norm_epsilon", .value = "1e-05"}, {0}};

const rm_model_family rm_mamba_family = {
    .logits = logits, .head = "lm_head.", .tied = "backbone.embeddings.", .recognise = recognise, .hub_keys = hub_keys};

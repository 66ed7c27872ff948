/* mamba.c: the model mamba (Gu and Dao 2023), with the names and shapes of Hugging Face's MambaForCausalLM and the
 * starting distributions of mamba_ssm: --layers blocks of --hidden numbers, twice as wide inside, 16 states a channel.
 *
 *     embeddings ─ block 0 ─ ... ─ block L-1 ─ norm_f ─ [last step] ─ head
 *
 *     block    x, z = in_proj norm(residual);  u = silu(conv1d x);  dt, B, C = x_proj u
 *              residual += out_proj selective_scan(u, dt_proj dt, A_log, B, C, D, z)
 *
 * If the model predicts tokens, the head is tied to the embeddings; otherwise it has its own weights. Numeric
 * inputs pass through a linear layer, `input`. */
#include "train/models/family.h"

#include <math.h>
#include <stdio.h>

enum { STATES = 16, EXPAND = 2, FILTER = 4, RANK_PER = 16 };
#define EPSILON 1e-5
#define LARGEST_STEP 0.1
#define EMBEDDINGS "backbone.embeddings.weight"

static bool is_tied(const rm_data_shape *data) {
    return data->every_step && data->vocabulary && data->vocabulary == rm_data_outputs(data);
}

static remat_status check(const rm_model_spec *spec) {
    REQUIRE(!spec->data.vocabulary || spec->embed == spec->hidden, INVALID,
            "--embed=%lld: the embedding of --model=mamba is as wide as its layers, %lld: leave --embed out",
            (long long)spec->embed, (long long)spec->hidden);
    REQUIRE(!spec->bidirectional && !spec->no_bias, INVALID, "--%s is for lstm, gru and rnn; --model=mamba has %s",
            spec->bidirectional ? "bidirectional" : "no-bias",
            spec->bidirectional ? "one direction" : "biases where Mamba has them");
    return REMAT_OK;
}

typedef struct {
    remat_graph *graph;
    int64_t layer;
} place;

static remat_value parameter(place at, const char *name, int rank, int64_t d0, int64_t d1, int64_t d2,
                             remat_init init) {
    char full[80];
    snprintf(full, sizeof full, "backbone.layers.%lld.%s", (long long)at.layer, name);
    return remat_param(at.graph, full, rank, (int64_t[]){d0, d1, d2}, init);
}

/* PyTorch initialises Linear and Conv1d from U(-1/sqrt(n), 1/sqrt(n)) with fan-in n. */
static remat_init from(int64_t n) { return remat_init_uniform(1 / sqrt((double)n)); }

static remat_value linear(place at, const char *name, remat_value x, int64_t in, int64_t out, remat_init init) {
    return remat_linear(at.graph, x, parameter(at, name, 2, out, in, 0, init), REMAT_NONE);
}

static remat_value mixer(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    const place at = {g, layer};
    const int64_t D = spec->hidden, E = EXPAND * D, R = (D + RANK_PER - 1) / RANK_PER, N = STATES;
    remat_value xz = linear(at, "mixer.in_proj.weight", x, D, 2 * E, from(D));
    remat_value filter = parameter(at, "mixer.conv1d.weight", 3, E, 1, FILTER, from(FILTER));
    remat_value u = remat_causal_conv(g, remat_slice(g, xz, 0, E), filter,
                                      parameter(at, "mixer.conv1d.bias", 1, E, 0, 0, from(FILTER)));
    u = remat_silu(g, rm_reset_at_begins(g, spec, u));
    remat_value made = linear(at, "mixer.x_proj.weight", u, E, R + 2 * N, from(E));
    remat_value dt = linear(at, "mixer.dt_proj.weight", remat_slice(g, made, 0, R), R, E, from(R));
    remat_value a_log = parameter(at, "mixer.A_log", 2, E, N, 0, remat_init_of(REMAT_INIT_LOG_COUNT, 0));
    remat_value skip = parameter(at, "mixer.D", 1, E, 0, 0, remat_init_constant(1));
    remat_init steps = remat_init_of(REMAT_INIT_TIME_STEP, LARGEST_STEP);
    remat_value y =
        remat_selective_scan(g, u, dt, a_log, remat_slice(g, made, R, N), remat_slice(g, made, R + N, N), skip,
                             remat_slice(g, xz, E, E), parameter(at, "mixer.dt_proj.bias", 1, E, 0, 0, steps));
    return linear(at, "mixer.out_proj.weight", rm_reset_at_begins(g, spec, y), E, D,
                  remat_init_uniform(1 / sqrt((double)(E * spec->layers)))); /* a term of the sum over all layers */
}

static remat_value block(remat_graph *g, const rm_model_spec *spec, int64_t layer, remat_value x) {
    remat_value gain = parameter((place){g, layer}, "norm.weight", 1, spec->hidden, 0, 0, remat_init_constant(1));
    return remat_add(g, mixer(g, spec, layer, remat_rms_norm(g, x, gain, EPSILON)), x);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_data_shape *data = &spec->data;
    int64_t D = spec->hidden, outputs = rm_data_outputs(data);
    remat_value table = REMAT_NONE;
    if (data->vocabulary) {
        table = remat_param(g, EMBEDDINGS, 2, (int64_t[]){data->vocabulary, D}, remat_init_normal(0.02));
        x = remat_embedding(g, x, table);
    } else {
        remat_value w = remat_param(g, "input.weight", 2, (int64_t[]){D, data->features}, from(data->features));
        x = remat_linear(g, x, w, remat_param(g, "input.bias", 1, &D, from(data->features)));
    }
    for (int64_t layer = 0; layer < spec->layers; layer++) x = block(g, spec, layer, x);
    x = remat_rms_norm(g, x, remat_param(g, "backbone.norm_f.weight", 1, &D, remat_init_constant(1)), EPSILON);
    if (!data->every_step)
        x = spec->field[RM_LAST].id ? remat_step_at(g, x, spec->field[RM_LAST]) : remat_last_step(g, x);
    if (!is_tied(data)) table = remat_param(g, "lm_head.weight", 2, (int64_t[]){outputs, D}, from(D));
    return remat_linear(g, x, table, REMAT_NONE);
}

static void name_head(const rm_model_spec *spec, char *out, size_t bytes) {
    snprintf(out, bytes, "%s", is_tied(&spec->data) ? "backbone.embeddings." : "lm_head.");
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *first = rm_weights_named(file, "backbone.layers.0.mixer.x_proj.weight");
    const rm_st_array *gain = rm_weights_named(file, "backbone.norm_f.weight");
    const rm_st_array *table = rm_weights_named(file, EMBEDDINGS), *head = rm_weights_named(file, "lm_head.weight");
    (void)name;
    if (!first || !gain || gain->rank != 1) return false;
    if (!head) head = table;
    out->symbols = table != NULL;
    if (head && head->rank == 2) out->outputs = head->dim[0];
    rm_found_number(out, "layers", rm_weights_layers(file, "backbone.layers.", ".mixer.x_proj.weight"));
    rm_found_number(out, "hidden", gain->dim[0]);
    return true;
}

const rm_model_family rm_mamba_family = {
    .check = check, .logits = logits, .name_head = name_head, .recognise = recognise};

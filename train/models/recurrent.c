/* recurrent.c: see recurrent.h. */
#include "train/models/recurrent.h"

#include "train/models/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef remat_value recurrent_builder(remat_graph *, remat_value x, remat_value w_ih, remat_value w_hh,
                                      remat_value b_ih, remat_value b_hh);
static const struct {
    const char *name;
    recurrent_builder *build;
    int64_t gates, states;
} cells[] = {{"lstm", remat_lstm, 4, 2},
           {"gru", remat_gru, 3, 1},
           {"rnn", remat_rnn_tanh, 1, 1},
           {"rnn_relu", remat_rnn_relu, 1, 1}};
enum { CELLS = sizeof cells / sizeof cells[0] };

static int find_cell(const char *name) {
    for (int i = 0; i < CELLS; i++)
        if (!strcmp(name, cells[i].name)) return i;
    return -1;
}

/* The width of h. */
int64_t rm_recurrent_width(const rm_model_spec *spec) { return spec->projection ? spec->projection : spec->hidden; }

int64_t rm_recurrent_states(const rm_model_spec *spec) { return cells[find_cell(spec->name)].states; }

static remat_status check_projection(const rm_model_spec *spec) {
    REQUIRE(spec->projection < spec->hidden, INVALID,
            "--proj-size=%lld must be less than --hidden=%lld, as in PyTorch: a projection makes h smaller",
            (long long)spec->projection, (long long)spec->hidden);
    return REMAT_OK;
}

/* The head and the embedding must have the same shape. */
static remat_status check_tie(const rm_model_spec *spec) {
    const rm_data_shape *data = &spec->data;
    REQUIRE(data->every_step && data->vocabulary && data->vocabulary == data->classes && !spec->bidirectional, INVALID,
            "--tie-embeddings is for models that predict the next token: use --task=lm");
    REQUIRE(spec->embed == rm_recurrent_width(spec), INVALID,
            "--tie-embeddings uses the embedding as the head, and --embed=%lld is not %s=%lld: use --embed=%lld",
            (long long)spec->embed, spec->projection ? "--proj-size" : "--hidden", (long long)rm_recurrent_width(spec),
            (long long)rm_recurrent_width(spec));
    return REMAT_OK;
}

static remat_status check(const rm_model_spec *spec) {
    if (spec->projection) TRY(check_projection(spec));
    return spec->tie_embeddings ? check_tie(spec) : REMAT_OK;
}

/* PREFIX.weight_ih_l0, PREFIX.weight_ih_l0_reverse */
typedef struct {
    const char *prefix;
    int64_t layer;
    bool reverse;
} place;

static remat_value weight(remat_graph *g, place at, const char *name, int rank, int64_t rows, int64_t width,
                          remat_init init) {
    char full[64];
    snprintf(full, sizeof full, "%s.%s_l%lld%s", at.prefix, name, (long long)at.layer, at.reverse ? "_reverse" : "");
    return remat_param(g, full, rank, (int64_t[]){rows, width}, init);
}

/* All parameters, biases too, are initialised from U(-1/sqrt(H), 1/sqrt(H)), as in PyTorch. */
remat_value rm_recurrent_layer(remat_graph *g, const rm_model_spec *spec, const char *prefix, int64_t layer,
                               remat_value x, int64_t width, bool reverse) {
    const place at = {prefix, layer, reverse};
    int cell = find_cell(spec->name);
    int64_t H = spec->hidden, rows = cells[cell].gates * H;
    remat_init init = remat_init_uniform(1 / sqrt((double)H));
    remat_value w_ih = weight(g, at, "weight_ih", 2, rows, width, init);
    remat_value w_hh = weight(g, at, "weight_hh", 2, rows, rm_recurrent_width(spec), init);
    remat_value b_ih = spec->no_bias ? REMAT_NONE : weight(g, at, "bias_ih", 1, rows, 0, init);
    remat_value b_hh = spec->no_bias ? REMAT_NONE : weight(g, at, "bias_hh", 1, rows, 0, init);
    remat_value reset = reverse ? spec->field[RM_ENDS] : spec->field[RM_BEGINS];
    if (reset.id && reverse) reset = remat_reverse(g, reset);
    remat_value w_hr = spec->projection ? weight(g, at, "weight_hr", 2, spec->projection, H, init) : REMAT_NONE;
    remat_value y = spec->projection ? remat_lstm_projected(g, x, w_ih, w_hh, b_ih, b_hh, w_hr)
                                     : cells[cell].build(g, x, w_ih, w_hh, b_ih, b_hh);
    return reset.id ? remat_reset_states(g, y, reset) : y;
}

/* The last layer's output, in one direction of time or two. */
typedef struct {
    remat_value forwards, backwards; /* backwards: in reversed time; REMAT_NONE if unidirectional */
} result;

static remat_value joined(remat_graph *g, remat_value one, remat_value other) {
    return other.id ? remat_concat(g, (remat_value[]){one, other}, 2) : one;
}

static remat_value every_step(remat_graph *g, result y) {
    return joined(g, y.forwards, y.backwards.id ? remat_reverse(g, y.backwards) : REMAT_NONE);
}

static remat_value last_step(remat_graph *g, const rm_model_spec *spec, result y) {
    remat_value last =
        spec->field[RM_LAST].id ? remat_step_at(g, y.forwards, spec->field[RM_LAST]) : remat_last_step(g, y.forwards);
    return joined(g, last, y.backwards.id ? remat_last_step(g, y.backwards) : REMAT_NONE);
}

static result layers(remat_graph *g, const rm_model_spec *spec, remat_value x, int64_t width) {
    result y = {REMAT_NONE, REMAT_NONE};
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        if (layer) x = every_step(g, y);
        if (layer && spec->dropout > 0) x = remat_dropout(g, x, spec->dropout);
        if (layer) width = rm_recurrent_width(spec) * (spec->bidirectional ? 2 : 1);
        y.forwards = rm_recurrent_layer(g, spec, "rnn", layer, x, width, false);
        if (spec->bidirectional)
            y.backwards = rm_recurrent_layer(g, spec, "rnn", layer, remat_reverse(g, x), width, true);
    }
    return y;
}

static remat_value dropped(remat_graph *g, remat_value x, double probability) {
    return probability > 0 ? remat_dropout(g, x, probability) : x;
}

/* word_language_model's init_weights: initialises only the embedding and the head. */
static remat_init init_of_ends(const rm_model_spec *spec, remat_init usual) {
    return spec->init_range > 0 ? remat_init_uniform(spec->init_range) : usual;
}

static remat_value head(remat_graph *g, const rm_model_spec *spec, remat_value table, result y) {
    int64_t outputs = rm_data_outputs(&spec->data), width = rm_recurrent_width(spec) * (spec->bidirectional ? 2 : 1);
    remat_init init = remat_init_uniform(1 / sqrt((double)width)), zero = remat_init_zero();
    remat_value w = spec->tie_embeddings
                        ? table
                        : remat_param(g, "head.weight", 2, (int64_t[]){outputs, width}, init_of_ends(spec, init));
    remat_value b =
        spec->no_bias ? REMAT_NONE : remat_param(g, "head.bias", 1, &outputs, spec->init_range > 0 ? zero : init);
    remat_value x = spec->data.every_step ? every_step(g, y) : last_step(g, spec, y);
    return remat_linear(g, dropped(g, x, spec->dropout_out), w, b);
}

static remat_value logits(remat_graph *g, const rm_model_spec *spec, remat_value x) {
    const rm_data_shape *data = &spec->data;
    int64_t width = data->vocabulary ? spec->embed : data->features;
    remat_value table = REMAT_NONE;
    if (data->vocabulary) {
        remat_init init = init_of_ends(spec, remat_init_normal(1));
        table = remat_param(g, "embedding.weight", 2, (int64_t[]){data->vocabulary, width}, init);
        x = remat_embedding(g, x, table);
    }
    return head(g, spec, table, layers(g, spec, dropped(g, x, spec->dropout_in), width));
}

/* ---- Its files of weights ------------------------------------------------------------------------------------------- */

static bool has_biases(const rm_safetensors *file) {
    for (int64_t j = 0; j < file->count; j++)
        if (strstr(file->array[j].name, "bias")) return true;
    return false;
}

/* A head with only a bias uses the embedding's weight. */
static void note_ends(const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *embedding = rm_weights_named(file, "embedding.weight"),
                      *head = rm_weights_named(file, "head.weight");
    bool bias = rm_weights_named(file, "head.bias") != NULL;
    rm_found_ends(out, file, "embedding.weight", "head.weight");
    if (embedding && embedding->rank == 2) rm_found_number(out, "embed", embedding->dim[1]);
    if (embedding && bias && !head) rm_found_switch(out, "tie-embeddings", true);
}

static bool recognise(const char *name, const rm_safetensors *file, rm_model_found *out) {
    const rm_st_array *first = rm_weights_named(file, "rnn.weight_hh_l0");
    const rm_st_array *projection = rm_weights_named(file, "rnn.weight_hr_l0");
    if (!first || first->rank != 2 || (projection && projection->rank != 2)) return false;
    int64_t hidden = projection ? projection->dim[1] : first->dim[1];
    if (!hidden || first->dim[0] / hidden != cells[find_cell(name)].gates) return false;
    out->both_ways = rm_weights_named(file, "rnn.weight_hh_l0_reverse") != NULL;
    out->seq2seq = rm_weights_named(file, "decoder_rnn.weight_ih_l0") != NULL;
    rm_found_switch(out, "no-bias", !has_biases(file));
    rm_found_switch(out, "bidirectional", out->both_ways);
    rm_found_number(out, "proj-size", projection ? projection->dim[0] : 0);
    rm_found_number(out, "layers", rm_weights_layers(file, "rnn.weight_hh_l", ""));
    rm_found_number(out, "hidden", hidden);
    note_ends(file, out);
    return true;
}

const rm_model_family rm_recurrent_family = {.check = check, .logits = logits, .head = "head.", .recognise = recognise};

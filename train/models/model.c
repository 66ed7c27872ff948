/* model.c: the table of models, and their common parts: inputs and losses. See model.h. */
#include "train/models/model.h"

#include "memory/words.h"
#include "train/models/family.h"
#include "train/models/seq2seq.h"
#include "train/run/transcript.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- The models --------------------------------------------------------------------------------------------------- */

#define MODEL(NAME, FAMILY, TRAITS) extern const rm_model_family rm_##FAMILY##_family;
#include "train/models/models.def"
#undef MODEL

typedef struct {
    const char *name;
    const rm_model_family *family;
    const char *traits;
} model;

static const model models[] = {
#define MODEL(NAME, FAMILY, TRAITS) {#NAME, &rm_##FAMILY##_family, TRAITS},
#include "train/models/models.def"
#undef MODEL
};
enum { MODELS = sizeof models / sizeof models[0] };

static const model *find_model(const char *name) {
    for (int i = 0; i < MODELS; i++)
        if (!strcmp(name, models[i].name)) return &models[i];
    return NULL;
}

static remat_status no_such_model(const char *name) {
    char list[256];
    size_t at = 0;
    for (int i = 0; i < MODELS && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", models[i].name);
    FAIL(INVALID, "there is no model '%s': %s", name, list);
}

bool rm_model_is(const char *name, const char *trait) {
    const model *m = find_model(name);
    return m && rm_has_word(m->traits, trait);
}

void rm_model_list(const char *trait, char *out, size_t bytes) {
    size_t n = 0;
    *out = 0;
    for (int i = 0; i < MODELS && n < bytes; i++)
        if (rm_has_word(models[i].traits, trait))
            n += (size_t)snprintf(out + n, bytes - n, "%s%s", n ? "|" : "", models[i].name);
}

void rm_model_head(const rm_model_spec *spec, char *out, size_t bytes) {
    const rm_model_family *family = find_model(spec->name)->family;
    if (family->name_head)
        family->name_head(spec, out, bytes);
    else
        snprintf(out, bytes, "%s", family->tied && rm_model_is_tied(&spec->data) ? family->tied : family->head);
}

remat_status rm_model_recognise(const char *path, rm_model_found *out) {
    rm_safetensors file;
    *out = (rm_model_found){0};
    remat_status status = rm_safetensors_open(path, &file);
    for (int i = 0; i < MODELS && !status && !out->model; i++) {
        *out = (rm_model_found){0};
        if (models[i].family->recognise(models[i].name, &file, out)) out->model = models[i].name;
    }
    rm_safetensors_free(&file);
    return status;
}

/* A flag that the model's line in models.def does not list. */
static remat_status refuse_flag(const model *m, const char *flag) {
    char models_with[120];
    rm_model_list(flag, models_with, sizeof models_with);
    FAIL(INVALID, "--%s is for %s; remove it, because --model=%s has none", flag, models_with, m->name);
}

static remat_status check_flags(const rm_model_spec *spec, const model *m) {
    const struct {
        const char *flag;
        bool given;
    } of_some[] = {{"bidirectional", spec->bidirectional}, {"no-bias", spec->no_bias}, {"proj-size", spec->projection}};
    for (size_t i = 0; i < sizeof of_some / sizeof *of_some; i++)
        if (of_some[i].given && !rm_has_word(m->traits, of_some[i].flag)) return refuse_flag(m, of_some[i].flag);
    REQUIRE(!spec->data.vocabulary || spec->embed == spec->hidden || rm_has_word(m->traits, "embed"), INVALID,
            "--embed=%lld: the embedding of --model=%s is as wide as its layers, %lld: remove --embed",
            (long long)spec->embed, m->name, (long long)spec->hidden);
    REQUIRE(!rm_has_word(m->traits, "heads") || spec->hidden % rm_model_heads(spec) == 0, INVALID,
            "--hidden=%lld cannot be divided among %lld heads: give --heads=N with an N that divides it",
            (long long)spec->hidden, (long long)rm_model_heads(spec));
    return REMAT_OK;
}

static remat_status check_data(const rm_model_spec *spec, const model *m) {
    bool images = rm_has_word(m->traits, "images");
    REQUIRE(images || !spec->data.channels, INVALID, "--model=%s reads sequences, and the data are images", m->name);
    REQUIRE(!images || spec->data.channels, INVALID, "--model=%s reads images, and the data are sequences", m->name);
    TRY(check_flags(spec, m));
    if (spec->data.answer_steps) TRY(rm_seq2seq_check(spec));
    return m->family->check ? m->family->check(spec) : REMAT_OK;
}

/* ---- The graph ---------------------------------------------------------------------------------------------------- */

static remat_value input(remat_graph *g, const rm_field *field) {
    return remat_input(g, field->name, field->dtype, field->axis, field->rank, field->dim);
}

/* Huber's delta is PyTorch's default. */
enum { DELTA = 1 };
static remat_value loss_of_padded(remat_graph *g, const char *name, remat_value x, remat_value target,
                                  remat_value padding) {
    if (name && !strcmp(name, "mae")) return remat_mae_padded(g, x, target, padding);
    if (name && !strcmp(name, "huber")) return remat_huber_padded(g, x, target, padding, DELTA);
    if (name && !strcmp(name, "bce")) return remat_bce_with_logits_padded(g, x, target, padding);
    return remat_mse_padded(g, x, target, padding);
}

static remat_value loss_of_reals(remat_graph *g, const rm_model_spec *spec, remat_value x, remat_value target) {
    const char *name = spec->loss;
    if (spec->field[RM_PADDING].id) return loss_of_padded(g, name, x, target, spec->field[RM_PADDING]);
    if (name && !strcmp(name, "mae")) return remat_mae(g, x, target);
    if (name && !strcmp(name, "huber")) return remat_huber(g, x, target, DELTA);
    if (name && !strcmp(name, "bce")) return remat_bce_with_logits(g, x, target);
    return remat_mse(g, x, target);
}

static remat_value loss_by_weight(remat_graph *g, const rm_model_spec *spec, remat_value logits, remat_value target) {
    return remat_softmax_cross_entropy_weighted(g, logits, target, spec->field[RM_CLASS_WEIGHTS], -1,
                                                spec->label_smoothing);
}

/* Targets are -1 past the end of a sequence. */
static bool has_ends(const rm_data_shape *data) { return data->answer_steps || (data->every_step && data->lengths); }

bool rm_model_counts(const rm_model_spec *spec) {
    if (spec->data.labels || !spec->data.classes) return rm_data_pads(&spec->data);
    return spec->ignores || spec->data.weighted || has_ends(&spec->data);
}

static remat_value loss_of_classes(remat_graph *g, const rm_model_spec *spec, remat_value logits, remat_value target) {
    if (rm_model_counts(spec)) return loss_by_weight(g, spec, logits, target);
    if (spec->label_smoothing == 0) return remat_softmax_cross_entropy(g, logits, target);
    return remat_softmax_cross_entropy_smoothed(g, logits, target, spec->label_smoothing);
}

/* Beside the cross entropy, of pixels. */
static remat_value with_dice(remat_graph *g, const rm_model_spec *spec, remat_value loss, remat_value logits,
                             remat_value target) {
    bool dice = spec->loss && !strcmp(spec->loss, "dice"), joint = spec->loss && !strcmp(spec->loss, "joint-dice");
    return dice || joint ? remat_add(g, loss, remat_dice(g, logits, target, -1, joint)) : loss;
}

static remat_value loss(remat_graph *g, const rm_model_spec *spec, remat_value logits, remat_value target) {
    if (spec->data.labels) return remat_ctc(g, logits, target, spec->field[RM_LENGTH], REMAT_NONE, RM_BLANK, false);
    if (!spec->data.classes) return loss_of_reals(g, spec, logits, target);
    return with_dice(g, spec, loss_of_classes(g, spec, logits, target), logits, target);
}

/* For fields after the first two. */
static bool reads(const rm_model_spec *spec, rm_field_name name) {
    if (name == RM_LAST) return !spec->data.every_step;
    if (name == RM_LENGTH) return spec->data.labels;
    return name != RM_ENDS || spec->bidirectional;
}

static void add_fields(remat_graph *g, rm_model_spec *spec, const rm_field field[RM_FIELDS]) {
    for (int i = RM_LAST; i < RM_FIELDS; i++)
        if (field[i].name && reads(spec, i)) spec->field[i] = input(g, &field[i]);
}

remat_status rm_model_build(const rm_model_spec *spec, int64_t batch, bool with_loss, rm_model *out) {
    *out = (rm_model){0};
    const model *m = find_model(spec->name);
    if (!m) return no_such_model(spec->name);
    TRY(check_data(spec, m));
    REQUIRE(spec->label_smoothing == 0 || spec->data.classes, INVALID,
            "--label-smoothing needs a task with classes, and the targets of this one are numbers: remove it");
    TRY(remat_graph_create(&out->graph));
    remat_graph *g = out->graph;
    const rm_data_shape *data = &spec->data;
    rm_field field[RM_FIELDS];
    rm_data_fields(data, spec->window ? spec->window : data->timesteps, batch, field);
    remat_value x = input(g, &field[RM_INPUT]), y = with_loss ? input(g, &field[RM_TARGET]) : REMAT_NONE;
    rm_model_spec marked = *spec;
    for (int i = 0; i < RM_FIELDS; i++) marked.field[i] = REMAT_NONE;
    if (with_loss || data->answer_steps) add_fields(g, &marked, field);
    out->logits = data->answer_steps ? rm_seq2seq_logits(g, &marked, batch, x) : m->family->logits(g, &marked, x);
    if (with_loss) out->loss = loss(g, &marked, out->logits, y);
    out->classes = data->every_step ? 0 : data->classes;
    return remat_graph_check(g);
}

void rm_model_free(rm_model *model) {
    remat_graph_free(model->graph);
    model->graph = NULL;
}

int64_t rm_count_exact(const float *logits, const int32_t *target, int64_t T, int64_t B, int64_t classes) {
    int64_t exact = 0;
    for (int64_t b = 0; b < B; b++) {
        bool all = true;
        for (int64_t i = b; i < T * B && all; i += B)
            all = target[i] < 0 || remat_correct(logits + i * classes, target + i, 1, classes, 1);
        exact += all;
    }
    return exact;
}

double rm_dice(const float *logits, const int32_t *target, int64_t pixels, int64_t classes, int64_t *count) {
    int64_t *both = count, *either = count + classes; /* |A and B|, |A| + |B| */
    double sum = 0;
    memset(count, 0, 2 * (size_t)classes * sizeof *count);
    for (int64_t i = 0; i < pixels; i++) {
        if (target[i] < 0) continue;
        int64_t found = rm_likeliest(logits + i * classes, classes);
        either[found]++;
        either[target[i]]++;
        both[found] += found == target[i];
    }
    for (int64_t k = 1; k < classes; k++) sum += either[k] ? 2 * (double)both[k] / (double)either[k] : 1;
    return sum / (double)(classes - 1);
}

int64_t rm_count_targets(const int32_t *target, int64_t n) {
    int64_t targets = 0;
    for (int64_t i = 0; i < n; i++) targets += target[i] >= 0;
    return targets;
}

int64_t rm_likeliest(const float *logits, int64_t classes) {
    int64_t best = 0;
    for (int64_t k = 1; k < classes; k++)
        if (logits[k] > logits[best]) best = k;
    return best;
}

double rm_softmax_sum(const float *logits, int64_t classes, double *largest) {
    double sum = 0;
    *largest = -INFINITY;
    for (int64_t k = 0; k < classes; k++) *largest = fmax(*largest, (double)logits[k]);
    for (int64_t k = 0; k < classes; k++) sum += exp((double)logits[k] - *largest);
    return sum;
}

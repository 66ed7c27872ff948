/* model.c: the table of models, and their common parts: inputs and flags. See model.h. */
#include "train/models/model.h"

#include "memory/words.h"
#include "train/models/family.h"
#include "train/models/loss.h"
#include "train/models/seq2seq.h"

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
        snprintf(out, bytes, "%s", family->tied && rm_model_is_tied(spec) ? family->tied : family->head);
}

remat_status rm_model_recognise(const char *path, const char *wanted, rm_model_found *out) {
    rm_safetensors file;
    const model *first = wanted ? find_model(wanted) : NULL;
    *out = (rm_model_found){0};
    remat_status status = rm_safetensors_open(path, &file);
    for (int i = first ? -1 : 0; i < MODELS && !status && !out->model; i++) {
        const model *m = i < 0 ? first : &models[i];
        *out = (rm_model_found){0};
        if (!m->family->recognise(m->name, &file, out)) continue;
        out->model = m->name;
        status = rm_found_by_hub_config(out, m->family->hub_keys, path);
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
    if (with_loss) out->loss = rm_model_loss(g, &marked, out->logits, y);
    out->classes = data->every_step ? 0 : data->classes;
    return remat_graph_check(g);
}

void rm_model_free(rm_model *model) {
    remat_graph_free(model->graph);
    model->graph = NULL;
}

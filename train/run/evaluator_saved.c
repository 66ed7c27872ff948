/* evaluator_saved.c: an evaluator with the weights of a training state or of --init, for commands that do not train.
 * See evaluator.h. */
#include "train/run/evaluator.h"

#include "train/state/safetensors.h"
#include "train/state/state_directory.h"
#include "train/state/weights.h"
#include "train/tasks/task.h"

#include <stdio.h>
#include <string.h>

static remat_status check_predictable(const rm_options *o) {
    REQUIRE(rm_task_find(o->task)->row, INVALID,
            "`remat predict` writes one row per sample, but --task=%s has a target at each timestep: use `remat eval` "
            "for its loss, or `remat sample` to generate text",
            o->task);
    REQUIRE(strcmp(o->session.device, "null"), INVALID,
            "--device=null does not compute anything, so it cannot predict: use --device=cpu");
    return REMAT_OK;
}

static remat_status open_data(const rm_options *o, rm_command command, rm_dataset **out) {
    bool generated = rm_setup_generates(o),
         labels = command == RM_EVAL && rm_task_uses(rm_task_find(o->task), "labels");
    REQUIRE(generated || o->data.data, INVALID, "no data was given: give --data=FILE%s%s",
            labels ? " and --labels=FILE" : "", o->resume ? "; the training state's own data is not used" : "");
    rm_data_source source = rm_setup_source(o, generated);
    source.unlabelled = command == RM_PREDICT;
    source.vocabulary = (rm_vocabulary_texts){0}; /* is that of other data */
    source.whole = !rm_options_said(o, "seq-len");
    return rm_task_open(o->task, &source, out);
}

/* Features per timestep according to the first layer's weights; 0: unknown. Errors are reported when weights are
 * loaded. */
static int64_t features_of_weights(const char *path) {
    rm_safetensors file;
    int64_t features = 0;
    remat_status status = rm_safetensors_open(path, &file);
    for (int64_t i = 0; !status && i < file.count; i++) {
        char name[64];
        rm_weights_our_name(file.array[i].name, name, sizeof name);
        if ((!strcmp(name, "rnn.weight_ih_l0") || !strcmp(name, "input.weight")) && file.array[i].rank == 2)
            features = file.array[i].dim[1];
    }
    rm_safetensors_free(&file);
    return features;
}

static remat_status check_width(const rm_options *o, const char *state, const rm_dataset *dataset) {
    char path[RM_PATH_BYTES] = "";
    if (*state) TRY(rm_path_join(path, sizeof path, state, "model.safetensors"));
    if (!dataset->shape.features || (!*path && !o->init)) return REMAT_OK;
    int64_t ours = dataset->shape.features, theirs = features_of_weights(*path ? path : o->init);
    REQUIRE(!theirs || ours == theirs, INVALID,
            "%s has %lld features per timestep, but the model was trained on %lld: give data with as many features",
            o->data.data ? o->data.data : o->task, (long long)ours, (long long)theirs);
    return REMAT_OK;
}

/* Without --lengths, padding would be read as data. */
static remat_status check_lengths(const rm_options *o, const rm_state_point *run) {
    REQUIRE(!run->lengths || o->data.lengths, INVALID,
            "the model was trained with --lengths, but --data has no lengths: add --lengths=FILE");
    return REMAT_OK;
}

/* The batch of the run's own evaluations: the rows of a shard, if it had shards; 0: --batch. */
static int64_t batch_of_run(const rm_options *o, const rm_state_point *run) {
    return run->shards ? o->order.batch * (run->world_size / run->pipeline) / run->shards : 0;
}

/* Finds the class names of the training state that contains the weights, whether --resume or --init names them. */
static remat_status find_named(const rm_options *o, rm_saved_evaluator *e) {
    char path[RM_PATH_BYTES];
    snprintf(e->named, sizeof e->named, "%s", e->state);
    if (*e->state || !o->init) return REMAT_OK;
    const char *slash = strrchr(o->init, '/'), *file = slash ? slash + 1 : o->init;
    if (strcmp(file, RM_STATE_MODEL) && strcmp(file, RM_STATE_EMA)) return REMAT_OK;
    snprintf(e->named, sizeof e->named, "%.*s", slash ? (int)(file - o->init) : 1, slash ? o->init : ".");
    TRY(rm_path_join(path, sizeof path, e->named, RM_STATE_JSON));
    if (!rm_path_exists(path)) *e->named = 0;
    return REMAT_OK;
}

remat_status rm_saved_evaluator_open(rm_options *o, rm_command command, rm_saved_evaluator *out) {
    const bool said = rm_options_given(o, "batch");
    rm_model_spec spec;
    *out = (rm_saved_evaluator){0};
    TRY(rm_setup_need_weights(o));
    if (o->resume) TRY(rm_setup_resume(o, command, out->state, &out->point));
    if (command == RM_PREDICT) TRY(check_predictable(o));
    TRY(check_lengths(o, &out->point));
    TRY(open_data(o, command, &out->dataset));
    TRY(find_named(o, out));
    bool labels = command == RM_EVAL && *out->named; /* `predict` does not read folders as classes */
    if (labels) TRY(rm_setup_check_classes(out->named, out->dataset, o->data.data));
    TRY(rm_setup_spec(o, out->dataset, &spec));
    TRY(check_width(o, out->state, out->dataset));
    int64_t batch = said ? 0 : batch_of_run(o, &out->point);
    TRY(rm_evaluator_create(o, &spec, out->dataset, batch, false, &out->evaluator));
    return rm_setup_weights(o, out->state, &out->point, rm_evaluator_session(&out->evaluator));
}

void rm_saved_evaluator_free(rm_saved_evaluator *saved) {
    rm_evaluator_free(&saved->evaluator);
    rm_dataset_close(saved->dataset);
    saved->dataset = NULL;
}

/* setup.c: see setup.h. */
#include "train/run/setup.h"

#include "memory/host.h"
#include "train/data/part.h"
#include "train/flags/usual.h"
#include "train/models/family.h"
#include "train/models/loss.h"
#include "train/ranks/ranks.h"
#include "train/run/budget.h"
#include "train/state/state_directory.h"
#include "train/state/weights.h"
#include "train/tasks/task.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

remat_status rm_setup_resume(rm_options *options, rm_command command, char state[RM_PATH_BYTES],
                             rm_state_point *point) {
    bool found;
    TRY(rm_state_find(options->resume, state, &found));
    REQUIRE(found, IO, "%s holds no training state: give the directory of --save", options->resume);
    TRY(rm_state_advise(options->resume, state, rm_state_read(state, command, options, point)));
    TRY(rm_options_check(options, command));
    return rm_state_spare_files(state, command, options);
}

remat_status rm_setup_check_classes(const char *state, const rm_dataset *dataset, const char *data) {
    rm_class_names names;
    if (!dataset->class_names) return REMAT_OK;
    remat_status status = rm_state_class_names(state, &names);
    if (!status) status = rm_class_names_agree(dataset->class_names, data, &names, state);
    rm_class_names_free(&names);
    return status;
}

/* Chooses the task by the weights. If they cannot belong to the default task, it says so, because otherwise later
 * messages would be about a task that the user did not choose. */
static remat_status learn_task(rm_options *o, const rm_model_found *found) {
    bool given = rm_options_given(o, "task");
    bool vectors = rm_model_is(found->model, "vectors") && rm_task_uses(rm_task_find(o->task), "values");
    if (vectors) return REMAT_OK; /* said: it is not the default */
    if (rm_model_is(found->model, "images")) return rm_options_learn(o, "task", rm_task_of_images()->name, o->init);
    if (found->seq2seq) return rm_options_learn(o, "task", rm_task_of_pairs()->name, o->init);
    if (given || !rm_model_is(found->model, "states") || !rm_task_find(o->task)->next_token) return REMAT_OK;
    REQUIRE(found->symbols, INVALID,
            "%s has no embedding, so it does not fit --task=lm: give --task=classify, regress, transcribe or adding",
            o->init);
    REQUIRE(!found->both_ways, INVALID, "%s is bidirectional, so it does not fit --task=lm: give --task=copy or s5",
            o->init);
    return REMAT_OK;
}

/* Adopts the number of classes or values. With labels, they determine the number of values. */
static remat_status learn_answers(rm_options *o, int64_t outputs) {
    char text[32];
    const rm_task *task = rm_task_find(o->task);
    bool classes = rm_task_uses(task, "classes") && !o->data.classes;
    bool values = rm_task_uses(task, "values") && !o->data.values && !o->data.labels;
    snprintf(text, sizeof text, "%lld", (long long)outputs);
    if (!outputs || !strcmp(o->init_head, "new") || !(classes || values)) return REMAT_OK;
    return rm_options_learn(o, classes ? "classes" : "values", text, o->init);
}

static bool is_found(const rm_model_found *found, const char *flag) {
    for (int i = 0; i < found->n; i++)
        if (!strcmp(found->flag[i].flag, flag)) return true;
    return false;
}

/* Lists what a config.json beside the file would tell: with other values, arrays of the same shapes make another network. Training states
 * are Remat's own, so only flags are open there. */
static void note_assumed(rm_options *o, const rm_model_found *found) {
    const rm_hub_key *keys = found->untold;
    char text[64], beside[RM_PATH_BYTES];
    const char *slash = strrchr(o->init, '/');
    snprintf(beside, sizeof beside, "%.*s" RM_STATE_JSON, slash ? (int)(slash - o->init) + 1 : 0, o->init);
    bool ours = rm_path_is_file(beside);
    size_t at = 0;
    for (; keys && keys->key && at < sizeof o->assumed; keys++) {
        bool guessed = !keys->flag || is_found(found, keys->flag); /* shapes tell it, of Remat's own weights */
        if ((keys->flag && rm_options_given(o, keys->flag)) || (guessed && ours) || strchr(keys->key, '.') ||
            !strcmp(keys->key, "model_type"))
            continue;
        const char *name = keys->flag ? keys->flag : keys->key;
        const char *value = keys->flag ? rm_options_text_of(o, keys->flag, text, sizeof text) : keys->value;
        if (!strcmp(value, "0")) value = "default";
        at += (size_t)snprintf(o->assumed + at, sizeof o->assumed - at, "%s%s%s %.*s", at ? ", " : "",
                               keys->flag ? "--" : "", name, (int)strcspn(value, " "), value);
    }
}

void rm_setup_say_assumed(const rm_options *o) {
    if (*o->assumed)
        fprintf(stderr, "remat: note: %s has no config.json beside it, so this is assumed: %s\n", o->init, o->assumed);
}

/* Other mismatches between the file and the model are found when its arrays are matched with the session's. */
remat_status rm_setup_init(rm_options *o) {
    rm_model_found found;
    if (!o->init) return REMAT_OK;
    TRY(rm_model_recognise(o->init, rm_options_given(o, "model") ? o->model.name : NULL, &found));
    if (!found.model) return REMAT_OK;
    TRY(rm_options_learn(o, "model", found.model, o->init));
    TRY(learn_task(o, &found));
    for (int i = 0; i < found.n; i++) TRY(rm_options_learn(o, found.flag[i].flag, found.flag[i].value, o->init));
    note_assumed(o, &found);
    bool as_hidden = o->model.embed == o->model.hidden && !rm_options_said(o, "embed");
    if (as_hidden) TRY(rm_options_reset(o, "embed")); /* the default is --hidden */
    return learn_answers(o, found.outputs);
}

/* Data is read even if it exceeds a small budget: its size must be known to suggest a budget. */
static uint64_t readable_bytes(const rm_options *o) {
    uint64_t budget = rm_budget_given(o);
    return budget > RM_UNPACKED_BYTES ? budget : 0;
}

bool rm_setup_splits(const rm_options *o) { return strcmp(o->held_out.split, "none") != 0; }

static void hold_out(const rm_options *o, rm_data_source *source) {
    if (!rm_setup_splits(o)) {
        source->data = o->held_out.data;
        source->labels = o->held_out.labels;
        source->lengths = o->held_out.lengths;
    }
    source->augment = NULL;
    if (source->samples > 1000) source->samples = 1000;
    source->held_out = source->steps_known = true;
    source->whole = !o->resume && !rm_options_said(o, "seq-len");
}

rm_data_source rm_setup_source(const rm_options *o, bool held_out) {
    rm_data_source source = o->data;
    source.images = rm_model_is(o->model.name, "images");
    source.vectors = rm_model_is(o->model.name, "vectors");
    source.model_unsaid = !rm_options_given(o, "model");
    source.pixels = rm_model_is(o->model.name, "pixels");
    source.document_end = o->data.document_end + 1;
    source.yes_or_no = rm_loss_is(o->model.loss, "shares");
    source.ignores = rm_options_given(o, "ignore-index");
    source.steps_known = rm_options_given(o, "every-step");
    source.budget = readable_bytes(o);
    source.vocabulary = (rm_vocabulary_texts){{o->data.data, o->data.labels}, source.budget};
    if (held_out) hold_out(o, &source);
    return source;
}

bool rm_setup_generates(const rm_options *o) { return rm_task_generates(rm_task_find(o->task), &o->data); }

/* A stateful row continues from sample to sample, so its samples cannot be in random order. */
static remat_status take_part(const rm_options *o, bool held_out, rm_dataset **data) {
    rm_split split = {.seed = o->data.seed};
    TRY(rm_split_parse(o->held_out.split, &split));
    REQUIRE(!split.random || !o->order.stateful, INVALID,
            "--eval-split=%s draws random samples, but --stateful needs consecutive ones: give --eval-split=%g",
            o->held_out.split, split.share);
    REQUIRE(!split.random || !o->data.random_windows, INVALID,
            "--sampler=random reads windows at any position, so they would overlap the samples that --eval-split=%s "
            "draws: give --eval-split=%g",
            o->held_out.split, split.share);
    rm_dataset *whole = *data;
    *data = NULL;
    return rm_part_open(whole, &split, held_out, data);
}

remat_status rm_setup_dataset(const rm_options *o, rm_dataset **out) {
    rm_data_source source = rm_setup_source(o, false);
    TRY(rm_task_open(o->task, &source, out));
    return rm_setup_splits(o) ? take_part(o, false, out) : REMAT_OK;
}

remat_status rm_setup_held_out(const rm_options *o, const rm_dataset *training, rm_dataset **out) {
    rm_data_source source = rm_setup_source(o, true);
    if (!rm_setup_splits(o)) return rm_task_open(o->task, &source, out);
    TRY(rm_dataset_view(training->whole, out));
    return take_part(o, true, out);
}

bool rm_setup_windows_fit(const rm_options *o) {
    rm_windows w = o->tbptt;
    return !w.length || (w.length % w.step == 0 && w.length <= o->data.timesteps && o->data.timesteps % w.step == 0);
}

/* --tbptt divides a sample into windows of equal length. */
static remat_status check_windows(const rm_options *o) {
    const rm_task *task = rm_task_find(o->task);
    bool as_labels = rm_task_uses(task, "every-step");
    REQUIRE(!o->tbptt.length || o->data.every_step || !as_labels, INVALID,
            "--tbptt=%lld cuts samples into windows, so it needs labels for each timestep: give labels %s, or remove "
            "--tbptt",
            (long long)o->tbptt.length, rm_task_uses(task, "values") ? "[N,T,V]" : "[N,T]");
    REQUIRE(o->tbptt.step < o->tbptt.length || rm_setup_windows_fit(o), INVALID,
            "--tbptt=%lld: samples of %lld timesteps cannot be cut into windows of this length: make --seq-len a "
            "multiple of it",
            (long long)o->tbptt.length, (long long)o->data.timesteps);
    REQUIRE(
        rm_setup_windows_fit(o), INVALID,
        "--tbptt=%lld:%lld: samples of %lld timesteps cannot be cut into such windows: make --seq-len a multiple of "
        "%lld and at least %lld",
        (long long)o->tbptt.length, (long long)o->tbptt.step, (long long)o->data.timesteps, (long long)o->tbptt.step,
        (long long)o->tbptt.length);
    return REMAT_OK;
}

remat_status rm_setup_spec(rm_options *o, const rm_dataset *dataset, rm_model_spec *out) {
    const rm_task *task = rm_task_find(o->task);
    const rm_data_source source = rm_setup_source(o, false);
    rm_data_shape shape;
    if (dataset)
        shape = dataset->shape;
    else
        TRY(rm_task_shape(task, &source, &shape));
    if (rm_model_is(o->model.name, "positions") && !o->model.positions)
        o->model.positions = shape.timesteps; /* saved with the run, because later samples may be longer or shorter */
    *out = o->model;
    if (!out->embed) out->embed = out->hidden;
    out->data = shape;
    out->ignores = rm_options_given(o, "ignore-index") || o->tbptt.step < o->tbptt.length;
    out->window = o->tbptt.length;
    out->data.weighted = o->class_weights != NULL;
    if (!shape.answer_steps) o->data.timesteps = shape.timesteps; /* for pairs --seq-len is a limit */
    if (rm_task_uses(task, "classes")) o->data.classes = shape.classes;
    if (o->data.tokenizer) o->data.vocab = shape.answer_steps ? rm_pair_tokens(&shape) : shape.vocabulary;
    if (rm_task_uses(task, "values")) o->data.values = shape.values;
    if (rm_task_uses(task, "every-step")) o->data.every_step = shape.every_step;
    return check_windows(o);
}

/* ---- Calibration file ------------------------------------------------------------------------------------------- */

/* remat/calibration.txt in $XDG_CACHE_HOME or ~/.cache; "" (measure but do not save) without a home directory. Ignores
 * failures to create directories: then the file cannot be written, which is not an error either. */
static const char *own_calibration(void) {
    static char path[RM_PATH_BYTES];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (!(cache && *cache == '/') && !(home && *home)) return "";
    bool given = cache && *cache == '/';
    int n = snprintf(path, sizeof path, "%s%s", given ? cache : home, given ? "" : "/.cache");
    if (n < 0 || n >= (int)sizeof path - 32) return "";
    (void)mkdir(path, 0700);
    strcpy(path + n, "/remat");
    (void)mkdir(path, 0755);
    strcpy(path + n, "/remat/calibration.txt");
    return path;
}

const char *rm_setup_calibration_file(const rm_options *o) {
    if (o->session.calibration) return strcmp(o->session.calibration, "off") ? o->session.calibration : NULL;
    return own_calibration();
}

/* The first measurement takes seconds, so only --calibration and strategies that compare times measure. */
static const char *calibration_file(const rm_options *o, const char *strategy) {
    bool measures = !strcmp(strategy, "optimal") && strcmp(o->session.device, "null");
    return measures || o->session.calibration ? rm_setup_calibration_file(o) : NULL;
}

/* The directory that contains a path. */
static void directory_of(const char *path, char out[RM_PATH_BYTES]) {
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) + (slash == path) : 1;
    snprintf(out, RM_PATH_BYTES, "%.*s", length, slash ? path : ".");
}

void rm_setup_warn_of_calibration(const rm_options *o) {
    char directory[RM_PATH_BYTES];
    if (!o->session.calibration || !strcmp(o->session.calibration, "off") || !strcmp(o->session.device, "null")) return;
    directory_of(o->session.calibration, directory);
    if (access(directory, W_OK | X_OK))
        fprintf(stderr, "remat: --calibration=%s cannot be written (%s); measured times will not be saved\n",
                o->session.calibration, strerror(errno));
}

/* ---- Ranks and micro steps -------------------------------------------------------------------------------------- */

remat_status rm_setup_pipeline(const rm_options *o, remat_pipeline *out) {
    char *end = "";
    *out = (remat_pipeline){.struct_bytes = sizeof *out, .size = 1};
    long parts = o->pipeline ? strtol(o->pipeline, &end, 10) : 1;
    bool good = !o->pipeline || isdigit((unsigned char)*o->pipeline);
    REQUIRE(good && (!*end || (*end == ':' && end[1])), INVALID,
            "--pipeline=%s is neither a number of ranks such as 2 nor one with cuts such as 2:rnn.weight_ih_l1",
            o->pipeline);
    REQUIRE(parts >= 1 && parts <= 64, INVALID, "--pipeline=%s: the number of ranks must be from 1 to 64", o->pipeline);
    out->size = (int)parts;
    out->cut = *end ? end + 1 : NULL;
    return REMAT_OK;
}

int64_t rm_setup_parts(const rm_options *o) {
    remat_pipeline pipeline;
    return rm_setup_pipeline(o, &pipeline) ? 1 : pipeline.size;
}

int64_t rm_setup_ranks(const rm_options *o) {
    int64_t replicas = o->world_size / rm_setup_parts(o);
    return replicas > 1 ? replicas : 1;
}

static remat_config with_logits(const rm_model *model, const remat_config *config) {
    remat_config with = *config;
    if (model->classes) with.outputs = &model->logits, with.n_outputs = 1;
    return with;
}

remat_status rm_setup_cut(const rm_options *o, const rm_model_spec *spec, const remat_pipeline *pipeline,
                          const rm_dataset *dataset, uint64_t other_bytes, int lighter, rm_cut_choice *out) {
    rm_model model = {0};
    remat_ranks table;
    remat_config config = rm_setup_training_config(o);
    config.ranks = rm_ranks_imagined(o, &table);
    config.pipeline = pipeline;
    if (strcmp(o->autotune, "off")) config.calibration = rm_setup_calibration_file(o);
    if (rm_budget_apply(o, rm_budget_data_bytes(o, &spec->data, dataset) + other_bytes, &config))
        config.memory_budget = 1; /* no cut fits; the session's creation reports it */
    remat_status status = rm_model_build(spec, rm_setup_rows(o), true, &model);
    config = with_logits(&model, &config);
    if (!status)
        status = lighter < 0 ? rm_session_choose_cut(model.graph, model.loss.id, &config, out)
                             : rm_session_choose_lighter_cut(model.graph, model.loss.id, &config, lighter, out);
    rm_model_free(&model);
    return status;
}

remat_status rm_setup_world(const rm_options *o) {
    int64_t ranks = rm_setup_ranks(o), shards = o->order.shards;
    remat_pipeline pipeline;
    TRY(rm_setup_pipeline(o, &pipeline));
    REQUIRE(o->world_size <= 1 || o->world_size % pipeline.size == 0, INVALID,
            "--pipeline=%s cannot divide %lld ranks: start a multiple of %d", o->pipeline, (long long)o->world_size,
            pipeline.size);
    if (!shards) return REMAT_OK;
    REQUIRE(
        !(ranks & (ranks - 1)), INVALID,
        "--deterministic-world cannot be used on %lld ranks, because it adds shards as a binary tree: start 1, 2, 4 "
        "or another power of two",
        (long long)ranks);
    REQUIRE(shards % ranks == 0, INVALID,
            "--deterministic-world=%lld has too few shards for %lld ranks: use --deterministic-world=%lld",
            (long long)shards, (long long)ranks, (long long)ranks);
    REQUIRE(o->order.batch * ranks % shards == 0, INVALID,
            "--batch=%lld on %lld rank%s is %lld samples, which cannot be divided into the %lld shards of "
            "--deterministic-world: make --batch a multiple of %lld",
            (long long)o->order.batch, (long long)ranks, ranks == 1 ? "" : "s", (long long)(o->order.batch * ranks),
            (long long)shards, (long long)(shards / ranks));
    return REMAT_OK;
}

int64_t rm_setup_micro_steps(const rm_options *o) {
    return o->order.shards ? o->order.shards / rm_setup_ranks(o) : o->order.micro_steps;
}

int64_t rm_setup_rows(const rm_options *o) {
    return o->order.shards ? o->order.batch / rm_setup_micro_steps(o) : o->order.batch;
}

int64_t rm_setup_windows(const rm_options *o) { return o->tbptt.length ? o->data.timesteps / o->tbptt.step : 1; }

/* Each window counts the losses that no earlier window counted. The first windows all start with the sample, and extend
 * past their counted targets. */
rm_window rm_setup_window(const rm_options *o, int64_t k) {
    rm_windows w = o->tbptt;
    int64_t from = k * w.step, first = from + w.step > w.length ? from + w.step - w.length : 0;
    return (rm_window){first, w.length, from, w.step};
}

int64_t rm_setup_eval_batch(const rm_options *o) { return o->order.shards ? rm_setup_rows(o) : 0; }

/* ---- The session's config --------------------------------------------------------------------------------------- */

remat_config rm_setup_training_config(const rm_options *o) {
    remat_config c = o->session;
    bool limited = rm_budget_given(o) > 0, asked = rm_options_given(o, "checkpoint");
    int64_t calls = rm_setup_micro_steps(o) * rm_setup_windows(o);
    c.memory_budget = 0;
    c.seed = (uint64_t)o->data.seed;
    c.strategy = c.segments ? "segments" : limited && !asked ? "optimal" : c.strategy;
    c.calibration = calibration_file(o, c.strategy);
    if (!rm_options_given(o, "eps")) c.epsilon = rm_usual_of(o->session.optimizer)->epsilon;
    if (!rm_options_given(o, "alpha")) c.alpha = rm_usual_of(o->session.optimizer)->alpha;
    c.micro_steps = calls < INT_MAX ? (int)calls : INT_MAX; /* the engine checks the maximum */
    c.stateful = o->order.stateful || rm_setup_windows(o) > 1;
    c.carry_stride = o->tbptt.step < o->tbptt.length ? o->tbptt.step : 0;
    c.deterministic_world = o->order.shards > 0;
    return c;
}

remat_config rm_setup_inference_config(const rm_options *o) {
    remat_config c = REMAT_CONFIG_INIT;
    c.device = o->session.device;
    c.precision = o->session.precision;
    c.rnn_kernels = o->session.rnn_kernels;
    c.threads = o->session.threads;
    c.seed = (uint64_t)o->data.seed;
    c.tile = o->session.tile;
    c.fold_embedding = o->session.fold_embedding;
    c.pipeline = o->session.pipeline;
    c.inference = true;
    return c;
}

remat_status rm_setup_session(const rm_model *model, const remat_config *config, remat_session **out) {
    remat_config with = with_logits(model, config);
    return remat_session_create(model->graph, model->loss, &with, out);
}

remat_status rm_setup_need_weights(const rm_options *o) {
    REQUIRE(o->resume || o->init, INVALID,
            "there are no weights: give --resume=DIR (a training state) or --init=FILE.safetensors");
    return REMAT_OK;
}

remat_status rm_setup_weights(const rm_options *o, const char *state, const rm_state_point *point,
                              remat_session *session) {
    if (*state)
        return rm_state_advise(o->resume, state,
                               o->ema > 0 ? rm_state_restore_ema(state, session)
                                          : rm_state_restore(state, point, false, session));
    TRY(rm_setup_need_weights(o));
    TRY(rm_weights_import(session, o->init, NULL));
    rm_setup_say_assumed(o);
    return REMAT_OK;
}

/* state_resume.c: the reading half of state.h: finds training states and loads them into sessions. Files on disk are not trusted. */
#include "train/state/state.h"

#include "memory/host.h"
#include "train/data/tokenizer.h"
#include "train/data/vocabulary.h"
#include "train/state/carried.h"
#include "train/state/optimizer_shards.h"
#include "train/state/state_directory.h"
#include "train/state/state_json.h"
#include "train/state/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define REMEDY RM_STATE_REMEDY

/* ---- Finding ---------------------------------------------------------------------------------------------------- */

remat_status rm_state_find(const char *directory, char state[RM_PATH_BYTES], bool *found) {
    int64_t *steps, count;
    *found = rm_state_is_there(directory);
    if (*found) { /* the path of a state: if a file is missing, reading it will name it */
        REQUIRE(snprintf(state, RM_PATH_BYTES, "%s", directory) < RM_PATH_BYTES, INVALID,
                "the path %.60s... is too long", directory);
        return REMAT_OK;
    }
    TRY(rm_state_list_all(directory, &steps, &count));
    *found = count > 0;
    remat_status status = count ? rm_state_path(directory, "", steps[0], state) : REMAT_OK;
    rm_free(steps);
    return status;
}

/* ---- state.json: where the run was --------------------------------------------------------------------------------- */

#define LARGEST 1000000000000000 /* of any count: sums cannot overflow */
#define MOST_RANKS 32767
#define MOST_SHARDS 32768

static bool is_count(json_int_t n) { return n >= 0 && n <= LARGEST; }

static bool is_given(const rm_options *options, const char *flag) {
    for (int i = 0; i < rm_options_count(); i++)
        if (!strcmp(rm_options_name(i), flag)) return rm_options_given(options, flag);
    return false;
}

/* A value that the command line would refuse too. */
static remat_status refuse_flag(void) {
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s", remat_last_error());
    FAIL(IO, "%s" REMEDY, sentence);
}

static remat_status adopt_flags(const json_t *flags, const char *name, rm_command command, rm_options *options) {
    char bytes[RM_PATH_BYTES];
    const char *flag;
    json_t *value;
    REQUIRE(json_is_object(flags), IO, "%s is damaged: it has no flags" REMEDY, name);
    json_object_foreach((json_t *)flags, flag, value) {
        const char *text = rm_state_json_text_of(value, bytes);
        REQUIRE(text, IO, "%s is damaged at the flag %.40s" REMEDY, name, flag);
        bool said = is_given(options, flag);
        remat_status status = rm_options_adopt(options, command, flag, text, name);
        if (status == REMAT_INVALID && !said) status = refuse_flag();
        TRY(status);
    }
    return REMAT_OK;
}

/* Format 1 had one rank, and counted the batches of an epoch. */
static remat_status parse_format_1(const json_t *root, const char *name, rm_state_point *out) {
    json_int_t position;
    const char *text;
    int bad = json_unpack((json_t *)root, "{s:I, s:{s:s}}", "position", &position, "flags", "batch", &text);
    long long batch = bad ? 0 : strtoll(text, NULL, 10);
    REQUIRE(batch > 0 && is_count(position) &&
                !__builtin_mul_overflow((int64_t)position, (int64_t)batch, &out->consumed) && is_count(out->consumed),
            IO, "%s is damaged: it lacks the position in the data" REMEDY, name);
    out->world_size = out->pipeline = 1;
    out->last_lr = -1;
    return REMAT_OK;
}

static remat_status parse_pipeline(const json_t *root, const char *name, rm_state_point *out) {
    const json_t *pipeline = json_object_get(root, "pipeline");
    out->pipeline = pipeline ? json_integer_value(pipeline) : 1;
    REQUIRE(out->pipeline >= 1 && out->world_size % out->pipeline == 0, IO,
            "%s is damaged: a pipeline of %lld among %lld ranks is impossible" REMEDY, name, (long long)out->pipeline,
            (long long)out->world_size);
    return REMAT_OK;
}

static remat_status parse_format_2(const json_t *root, const char *name, rm_state_point *out) {
    json_int_t consumed, world_size, zero, shards;
    int bad = json_unpack((json_t *)root, "{s:I, s:F, s:I, s:I, s:I}", "consumed", &consumed, "last_lr", &out->last_lr,
                          "world_size", &world_size, "zero", &zero, "shards", &shards);
    REQUIRE(!bad, IO, "%s is damaged: it lacks the position in the data" REMEDY, name);
    REQUIRE(is_count(consumed) && shards >= 0 && shards <= MOST_SHARDS && zero >= 0 && zero <= 1 && world_size >= 1 &&
                world_size <= MOST_RANKS && (!zero || world_size > 1),
            IO, "%s is damaged: %lld samples of the epoch, %lld ranks, zero %lld and %lld shards are impossible" REMEDY,
            name, (long long)consumed, (long long)world_size, (long long)zero, (long long)shards);
    out->consumed = consumed;
    out->world_size = world_size;
    TRY(parse_pipeline(root, name, out));
    out->zero = (int)zero;
    out->shards = shards;
    return REMAT_OK;
}

/* adopt_flags refuses an unknown precision. */
static void parse_precision(const json_t *root, rm_state_point *out) {
    const char *text = json_string_value(json_object_get(json_object_get(root, "flags"), "precision"));
    snprintf(out->precision, sizeof out->precision, "%s", text ? text : "fp32");
}

/* The carried states of --stateful and the average of --ema have files of their own. */
static void parse_stateful(const json_t *root, rm_state_point *out) {
    const json_t *flags = json_object_get(root, "flags");
    const char *text = json_string_value(json_object_get(flags, "stateful"));
    const char *ema = json_string_value(json_object_get(flags, "ema"));
    out->ema = ema && strtod(ema, NULL) > 0;
    out->stateful = text && !strcmp(text, "true");
}

static bool parse_best(const json_t *watch, const char *name, double *out) {
    const json_t *best = json_object_get(watch, name);
    *out = best ? json_number_value(best) : NAN;
    return !best || json_is_number(best);
}

static bool parse_step(const json_t *watch, const char *name, int64_t *out) {
    const json_t *step = json_object_get(watch, name);
    *out = json_integer_value(step);
    return !step || (json_is_integer(step) && is_count(*out));
}

static bool parse_bests(const json_t *watch, rm_best by[RM_SCORES]) {
    bool sound = true;
    for (int i = 0; i < RM_SCORES && sound; i++) {
        char name[64], step[64];
        rm_state_best_names(i, name, step);
        sound = parse_best(watch, name, &by[i].best) && parse_step(watch, step, &by[i].step);
    }
    return sound;
}

/* Absent if the run had no evaluation. */
static remat_status parse_watch(const json_t *root, const char *name, rm_state_point *out) {
    const json_t *watch = json_object_get(root, "watch");
    rm_watch *w = &out->watch;
    json_int_t since, plateau_since, reductions;
    if (!watch) return REMAT_OK;
    int bad = json_unpack((json_t *)watch, "{s:I, s:I, s:I}", "since", &since, "plateau_since", &plateau_since,
                          "reductions", &reductions);
    bool sound = !bad && is_count(since) && is_count(plateau_since) && is_count(reductions) &&
                 parse_best(watch, "plateau_best", &w->plateau_best) && parse_bests(watch, w->by);
    REQUIRE(sound, IO, "%s is damaged: its values about evaluations are invalid" REMEDY, name);
    w->seen = true;
    w->since = since;
    w->plateau_since = plateau_since;
    w->reductions = reductions;
    return REMAT_OK;
}

static remat_status parse_due(const json_t *root, const char *name, rm_state_point *out) {
    const json_t *due = json_object_get(root, "evaluation_due");
    REQUIRE(!due || json_is_boolean(due), IO, "%s is damaged: its values about evaluations are invalid" REMEDY, name);
    out->evaluation_due = json_is_true(due);
    return REMAT_OK;
}

/* Absent in older states, and with generated data. */
static remat_status parse_data(const json_t *root, const char *name, rm_state_point *out) {
    const json_t *crc = json_object_get(root, "data_crc32");
    json_int_t value = json_integer_value(crc);
    REQUIRE(!crc || (json_is_integer(crc) && value > 0 && value <= UINT32_MAX), IO,
            "%s is damaged: the data's checksum is invalid" REMEDY, name);
    out->data_crc32 = (uint32_t)value;
    return REMAT_OK;
}

static remat_status parse_point(const json_t *root, const char *name, rm_state_point *out) {
    json_int_t format, step, epoch, samples;
    *out = (rm_state_point){0};
    int bad = json_unpack((json_t *)root, "{s:I, s:I, s:I, s:I}", "format", &format, "step", &step, "epoch", &epoch,
                          "samples", &samples);
    REQUIRE(!bad, IO, "%s is damaged: it lacks the position in the data" REMEDY, name);
    REQUIRE(format >= 1 && format <= RM_STATE_FORMAT, IO, "%s has format %lld; this version reads formats 1 to %d",
            name, (long long)format, RM_STATE_FORMAT);
    REQUIRE(is_count(step) && is_count(epoch) && is_count(samples), IO,
            "%s is damaged: step %lld, epoch %lld and %lld samples are impossible" REMEDY, name, (long long)step,
            (long long)epoch, (long long)samples);
    out->step = step;
    out->epoch = epoch;
    out->samples = samples;
    parse_precision(root, out);
    parse_stateful(root, out);
    out->lengths = json_object_get(json_object_get(root, "flags"), "lengths") != NULL;
    out->mean_unsaid = !json_object_get(json_object_get(root, "flags"), "loss-mean");
    const char *run = json_string_value(json_object_get(root, "run"));
    snprintf(out->run, sizeof out->run, "%s", run ? run : "");
    TRY(parse_data(root, name, out));
    TRY(parse_watch(root, name, out));
    TRY(parse_due(root, name, out));
    TRY((format == 1 ? parse_format_1 : parse_format_2)(root, name, out));
    REQUIRE(out->consumed <= samples, IO, "%s is damaged: %lld consumed samples exceed the epoch's %lld" REMEDY, name,
            (long long)out->consumed, (long long)samples);
    return REMAT_OK;
}

remat_status rm_state_parse(const char *text, size_t size, const char *name, rm_command command, rm_options *options,
                            rm_state_point *out) {
    json_t *root;
    TRY(rm_state_json_parse(text, size, name, &root));
    remat_status status = parse_point(root, name, out);
    if (!status) status = adopt_flags(json_object_get(root, "flags"), name, command, options);
    json_decref(root);
    return status;
}

/* ---- state.json: which files there are ------------------------------------------------------------------------------ */

typedef struct {
    char path[RM_PATH_BYTES]; /* of state.json */
    json_t *root;
    rm_state_point point;
    int64_t n_files;
    rm_saved_file *file; /* ordered as in file_name */
} saved_state;

static int64_t optimizer_files(const rm_state_point *point) {
    return point->zero ? point->world_size : point->pipeline;
}

/* The order of files: the model; the optimizer's, one or one per rank; then carried states, the tokenizer and the average, if any. */
static const char *file_name(const rm_state_point *point, int64_t i, char text[RM_STATE_SHARD_NAME]) {
    if (i == 0) return RM_STATE_MODEL;
    int64_t extra = i - optimizer_files(point); /* 1: the first optional file */
    if (point->stateful && extra == 1) return RM_STATE_CARRIED;
    if (extra > 0) return point->tokenizer && extra == 1 + point->stateful ? RM_STATE_TOKENIZER : RM_STATE_EMA;
    if (optimizer_files(point) == 1) return RM_STATE_OPTIMIZER;
    rm_state_shard_name(i - 1, optimizer_files(point), text);
    return text;
}

/* NULL: the state lists no file of that name. */
static const rm_saved_file *file_called(const saved_state *s, const char *name) {
    char text[RM_STATE_SHARD_NAME];
    for (int64_t i = 0; i < s->n_files; i++)
        if (!strcmp(file_name(&s->point, i, text), name)) return &s->file[i];
    return NULL;
}

/* Refuses other names, so that no path leads out of the state, and no shard belongs to a rank that did not save. */
static remat_status check_names(const saved_state *s, const json_t *listed) {
    const char *name;
    json_t *about;
    json_object_foreach((json_t *)listed, name, about) {
        const int64_t n = optimizer_files(&s->point);
        bool whole = !strcmp(name, RM_STATE_MODEL) || (n == 1 && !strcmp(name, RM_STATE_OPTIMIZER));
        whole = whole || (s->point.stateful && !strcmp(name, RM_STATE_CARRIED)) || !strcmp(name, RM_STATE_TOKENIZER);
        whole = whole || (s->point.ema && !strcmp(name, RM_STATE_EMA));
        bool shard = n > 1 && rm_state_ranks_of(name) == n;
        REQUIRE(whole || shard, IO,
                "%s is damaged: it lists '%.80s', which is not part of a training state of %lld rank%s%s" REMEDY,
                s->path, name, (long long)s->point.world_size, s->point.world_size == 1 ? "" : "s",
                s->point.zero ? " with --zero=1" : "");
    }
    return REMAT_OK;
}

static remat_status read_file(const saved_state *s, const char *state, const json_t *listed, int64_t i,
                              rm_saved_file *out) {
    json_int_t bytes, crc;
    char text[RM_STATE_SHARD_NAME];
    const char *name = file_name(&s->point, i, text);
    const json_t *about = json_object_get(listed, name);
    int bad = json_unpack((json_t *)about, "{s:I, s:I}", "bytes", &bytes, "crc32", &crc);
    REQUIRE(about && !bad && bytes >= 0 && crc >= 0 && crc <= UINT32_MAX, IO,
            "%s is damaged: it does not describe %s" REMEDY, s->path, name);
    out->bytes = (uint64_t)bytes;
    out->crc32 = (uint32_t)crc;
    return rm_path_join(out->path, sizeof out->path, state, name);
}

/* The step must match the directory's name, "DIR/step-00000100", so that a renamed state is not taken for another one. */
static remat_status check_step(const saved_state *s, const char *state) {
    char name[RM_PATH_BYTES];
    const char *last = strrchr(state, '/');
    long long step;
    last = last ? last + 1 : state;
    if (sscanf(last, "step-%18lld", &step) != 1) return REMAT_OK;
    TRY(rm_state_path("", "", step, name));
    REQUIRE(strcmp(last, name + 1) || step == s->point.step, IO,
            "%s is of step %lld, and its directory is named %s" REMEDY, s->path, (long long)s->point.step, last);
    return REMAT_OK;
}

static remat_status read_listing(saved_state *s, const char *state) {
    const json_t *listed = json_object_get(s->root, "files");
    TRY(parse_point(s->root, s->path, &s->point));
    TRY(check_step(s, state));
    TRY(check_names(s, listed));
    s->point.tokenizer = json_object_get(listed, RM_STATE_TOKENIZER) != NULL;
    int64_t n = 1 + optimizer_files(&s->point) + s->point.stateful + s->point.tokenizer + s->point.ema,
            there = (int64_t)json_object_size(listed);
    s->file = rm_calloc((size_t)(there < n ? there : n) + 1, sizeof *s->file); /* one spare entry */
    REQUIRE(s->file, MEMORY, "no memory to list the files of %s", state);
    for (; s->n_files < n; s->n_files++) TRY(read_file(s, state, listed, s->n_files, &s->file[s->n_files]));
    return REMAT_OK;
}

static void close_state(saved_state *s) {
    json_decref(s->root);
    rm_free(s->file);
}

/* Checks sizes first, which is cheap: a missing file is named before any is read. Close *out even on errors. */
static remat_status open_state(const char *state, saved_state *out) {
    *out = (saved_state){0};
    TRY(rm_state_json_read(state, out->path, &out->root));
    TRY(read_listing(out, state));
    for (int64_t i = 0; i < out->n_files; i++) TRY(rm_saved_file_check_size(&out->file[i]));
    return REMAT_OK;
}

/* ---- Reading ---------------------------------------------------------------------------------------------------------- */

/* A vocabulary that was made of the text is in the state, and is not made again. */
static remat_status was_cut_so(const rm_saved_file *saved, const char *said, bool *same) {
    rm_tokenizer *tokenizer;
    TRY(rm_tokenizer_read(saved->path, &tokenizer));
    *same = !strcmp(rm_tokenizer_cut(tokenizer), said);
    rm_tokenizer_free(tokenizer);
    return REMAT_OK;
}

static remat_status is_file(const rm_saved_file *saved, const char *said, bool *same) {
    uint8_t *text;
    size_t size;
    TRY(rm_vocabulary_json(said, NULL, &text, &size));
    *same = size == saved->bytes && (uint32_t)crc32_z(0, text, size) == saved->crc32;
    rm_free(text);
    return REMAT_OK;
}

/* A given tokenizer must equal the model's, gzip or not, because token numbers differ between tokenizers. */
static remat_status compare_tokenizers(const rm_saved_file *saved, const char *said) {
    bool same;
    TRY((rm_vocabulary_is_made(said) ? was_cut_so : is_file)(saved, said, &same));
    REQUIRE(same, INVALID, "--tokenizer=%s differs from that of the training state, %s: remove the flag", said,
            saved->path);
    return REMAT_OK;
}

static remat_status adopt_tokenizer(const saved_state *s, rm_options *o) {
    const rm_saved_file *file = file_called(s, RM_STATE_TOKENIZER);
    if (!file) {
        REQUIRE(!o->data.tokenizer || o->data.vocab, INVALID,
                "--tokenizer=%s does not agree with the training state in %s, whose tokens are bytes: remove the flag",
                o->data.tokenizer, s->path);
        return REMAT_OK;
    }
    TRY(rm_saved_file_check(file));
    if (o->data.tokenizer) TRY(compare_tokenizers(file, o->data.tokenizer));
    return rm_options_replace(&o->data.tokenizer, file->path);
}

remat_status rm_state_read(const char *state, rm_command command, rm_options *options, rm_state_point *out) {
    saved_state s;
    remat_status status = open_state(state, &s);
    if (!status) status = adopt_flags(json_object_get(s.root, "flags"), s.path, command, options);
    if (!status) status = adopt_tokenizer(&s, options);
    *out = s.point;
    close_state(&s);
    return status;
}

remat_status rm_state_spare_files(const char *state, rm_command command, const rm_options *options) {
    rm_options saved;
    rm_state_point point;
    TRY(rm_options_defaults(&saved));
    remat_status status = rm_state_read(state, RM_TRAIN, &saved, &point)
                              ? REMAT_OK
                              : rm_options_check_saved_files(options, command, &saved, state);
    rm_options_free(&saved);
    return status;
}

static remat_status read_class_names(const json_t *classes, const char *path, rm_class_names *out) {
    size_t i;
    json_t *value;
    REQUIRE(!classes || json_is_array(classes), IO, "%s is damaged: its classes are not a list" REMEDY, path);
    json_array_foreach((json_t *)classes, i, value) {
        char bytes[RM_PATH_BYTES];
        const char *name = rm_state_json_text_of(value, bytes);
        REQUIRE(name, IO, "%s is damaged: class %zu has no name" REMEDY, path, i);
        TRY(rm_class_names_add(out, name));
    }
    return REMAT_OK;
}

remat_status rm_state_class_names(const char *state, rm_class_names *out) {
    char path[RM_PATH_BYTES];
    json_t *root;
    *out = (rm_class_names){0};
    TRY(rm_state_json_read(state, path, &root));
    remat_status status = read_class_names(json_object_get(root, "classes"), path, out);
    json_decref(root);
    return status;
}

remat_status rm_state_check(const char *state) {
    saved_state s;
    remat_status status = open_state(state, &s);
    for (int64_t i = 0; i < s.n_files && !status; i++) status = rm_saved_file_check(&s.file[i]);
    close_state(&s);
    return status;
}

/* Checks everything before changing the session. */
static remat_status restore(const saved_state *s, bool with_optimizer, remat_session *session) {
    rm_optimizer_shards *shards = NULL;
    remat_status status = rm_saved_file_check(&s->file[0]);
    if (!status) status = rm_weights_check(session, REMAT_PARAM, s->file[0].path);
    if (!status && with_optimizer)
        status = rm_optimizer_shards_open(session, s->file + 1, optimizer_files(&s->point), &shards);
    if (!status) status = rm_weights_load(session, REMAT_PARAM, s->file[0].path);
    if (!status && with_optimizer) status = rm_optimizer_shards_fill(shards, session);
    rm_optimizer_shards_close(shards);
    return status;
}

remat_status rm_state_restore(const char *state, const rm_state_point *point, bool with_optimizer,
                              remat_session *session) {
    saved_state s;
    remat_status status = open_state(state, &s);
    if (!status) status = restore(&s, with_optimizer, session);
    close_state(&s);
    if (status || !with_optimizer) return status;
    remat_set_step_count(session, point->step);
    if (point->last_lr >= 0) remat_set_last_lr(session, point->last_lr);
    return REMAT_OK;
}

remat_status rm_state_restore_ema(const char *state, remat_session *session) {
    saved_state s;
    remat_status status = open_state(state, &s);
    const rm_saved_file *file = status ? NULL : file_called(&s, RM_STATE_EMA);
    if (!status && !file) status = rm_fail(REMAT_INVALID, "%s has no average of the weights: remove --ema", state);
    if (!status) status = rm_saved_file_check(file);
    if (!status) status = rm_weights_load(session, REMAT_PARAM, file->path);
    close_state(&s);
    return status;
}

remat_status rm_state_restore_carried(const char *state, int64_t rank, int64_t size, remat_session *session) {
    saved_state s;
    remat_status status = open_state(state, &s);
    const rm_saved_file *file = status ? NULL : file_called(&s, RM_STATE_CARRIED);
    if (file) status = rm_saved_file_check(file);
    if (!status) status = rm_carried_load(file->path, rank, size, session);
    close_state(&s);
    return status;
}

/* ---- Which other one there is ----------------------------------------------------------------------------------------- */

/* The newest state before `state` with a readable state.json and files of the right sizes; checksums are not verified. "": none. */
static void find_older(const char *directory, const char *state, char older[RM_PATH_BYTES]) {
    int64_t *steps = NULL, count = 0, i = 0;
    bool sound = false;
    if (rm_state_list_all(directory, &steps, &count)) count = 0;
    for (*older = 0; i < count && strcmp(older, state); i++)
        if (rm_state_path(directory, "", steps[i], older)) *older = 0;
    for (; i < count && !sound; i++) {
        saved_state s = {0};
        sound = !rm_state_path(directory, "", steps[i], older) && !open_state(older, &s);
        close_state(&s);
    }
    if (!sound) *older = 0;
    rm_free(steps);
}

remat_status rm_state_advise(const char *directory, const char *state, remat_status status) {
    char reason[1024], older[RM_PATH_BYTES];
    snprintf(reason, sizeof reason, "%s", remat_last_error());
    char *remedy = strstr(reason, RM_STATE_REMEDY);
    if (status != REMAT_IO || !remedy || !strcmp(directory, state)) return status;
    find_older(directory, state, older);
    if (!*older) return rm_fail(status, "%s", reason);
    *remedy = 0;
    return rm_fail(status, "%s; the one before it is %s: move %s away, and --resume=%s continues from there", reason,
                   older, state, directory);
}

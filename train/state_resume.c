/* state_resume.c: training states are found, read and put into sessions: the reading half of state.h, which trusts nothing
 * that lies on a disk. */
#include "train/state.h"

#include "memory/host.h"
#include "train/pieces.h"
#include "train/state_directory.h"
#include "train/weights.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MOST_JSON_BYTES (16u << 20)

/* ---- Finding ---------------------------------------------------------------------------------------------------- */

remat_status rm_state_find(const char *directory, char state[RM_PATH_BYTES], bool *found) {
    int64_t *steps, count;
    *found = rm_state_is_whole(directory);
    if (*found) {
        snprintf(state, RM_PATH_BYTES, "%s", directory);
        return REMAT_OK;
    }
    TRY(rm_state_list(directory, &steps, &count));
    *found = count > 0;
    remat_status status = count ? rm_state_path(directory, "", steps[0], state) : REMAT_OK;
    rm_free(steps);
    return status;
}

/* ---- state.json ------------------------------------------------------------------------------------------------- */

static remat_status adopt_flags(const json_t *flags, const char *name, rm_command command, rm_options *options) {
    const char *flag;
    json_t *value;
    REQUIRE(json_is_object(flags), IO, "%s is damaged: it has no flags", name);
    json_object_foreach((json_t *)flags, flag, value) {
        REQUIRE(json_is_string(value), IO, "%s is damaged at the flag %.40s", name, flag);
        TRY(rm_options_adopt(options, command, flag, json_string_value(value), name));
    }
    return REMAT_OK;
}

/* Format 1 was of one rank, and counted the batches of an epoch. */
static remat_status parse_format_1(const json_t *root, const char *name, rm_state_point *out) {
    json_int_t position;
    const char *text;
    int bad = json_unpack((json_t *)root, "{s:I, s:{s:s}}", "position", &position, "flags", "batch", &text);
    long long batch = bad ? 0 : strtoll(text, NULL, 10);
    REQUIRE(batch > 0 && position >= 0 && !__builtin_mul_overflow((int64_t)position, (int64_t)batch, &out->consumed),
            IO, "%s is damaged: it does not say where the run was", name);
    out->world_size = 1;
    out->last_lr = -1;
    return REMAT_OK;
}

static remat_status parse_format_2(const json_t *root, const char *name, rm_state_point *out) {
    json_int_t consumed, world_size, shards;
    int bad = json_unpack((json_t *)root, "{s:I, s:F, s:I, s:i, s:I}", "consumed", &consumed, "last_lr", &out->last_lr,
                          "world_size", &world_size, "zero", &out->zero, "shards", &shards);
    REQUIRE(!bad, IO, "%s is damaged: it does not say where the run was", name);
    REQUIRE(consumed >= 0 && shards >= 0 && out->zero >= 0 && out->zero <= 1 && world_size >= 1 &&
                world_size <= INT32_MAX,
            IO, "%s is damaged: it has impossible counts", name);
    out->consumed = consumed;
    out->world_size = world_size;
    out->shards = shards;
    return REMAT_OK;
}

#define LARGEST 1000000000000000 /* of any count: nothing that is computed from them overflows */

static remat_status parse_point(const json_t *root, const char *name, rm_state_point *out) {
    json_int_t format, step, epoch, samples;
    *out = (rm_state_point){0};
    int bad = json_unpack((json_t *)root, "{s:I, s:I, s:I, s:I}", "format", &format, "step", &step, "epoch", &epoch,
                          "samples", &samples);
    REQUIRE(!bad, IO, "%s is damaged: it does not say where the run was", name);
    REQUIRE(format >= 1 && format <= RM_STATE_FORMAT, IO, "%s has format %lld; this version reads formats 1 to %d",
            name, format, RM_STATE_FORMAT);
    REQUIRE(step >= 0 && epoch >= 0 && samples >= 0 && step <= LARGEST && epoch <= LARGEST && samples <= LARGEST, IO,
            "%s is damaged: it has impossible counts", name);
    out->step = step;
    out->epoch = epoch;
    out->samples = samples;
    return (format == 1 ? parse_format_1 : parse_format_2)(root, name, out);
}

static remat_status load_json(const char *text, size_t size, const char *name, json_t **out) {
    json_error_t error;
    *out = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    REQUIRE(*out, IO, "%s is damaged in line %d: %s", name, error.line, error.text);
    return REMAT_OK;
}

remat_status rm_state_parse(const char *text, size_t size, const char *name, rm_command command, rm_options *options,
                            rm_state_point *out) {
    json_t *root;
    TRY(load_json(text, size, name, &root));
    remat_status status = parse_point(root, name, out);
    if (!status) status = adopt_flags(json_object_get(root, "flags"), name, command, options);
    json_decref(root);
    return status;
}

static remat_status read_json_file(const char *state, char path[RM_PATH_BYTES], uint8_t **text, size_t *size) {
    TRY(rm_path_join(path, RM_PATH_BYTES, state, RM_STATE_JSON));
    return rm_file_read(path, MOST_JSON_BYTES, text, size);
}

remat_status rm_state_read(const char *state, rm_command command, rm_options *options, rm_state_point *out) {
    char path[RM_PATH_BYTES];
    uint8_t *text;
    size_t size;
    TRY(read_json_file(state, path, &text, &size));
    remat_status status = rm_state_parse((const char *)text, size, path, command, options, out);
    rm_free(text);
    return status;
}

static remat_status load_json_file(const char *state, json_t **out) {
    char path[RM_PATH_BYTES];
    uint8_t *text;
    size_t size;
    TRY(read_json_file(state, path, &text, &size));
    remat_status status = load_json((const char *)text, size, path, out);
    rm_free(text);
    return status;
}

/* ---- A job that was started again ------------------------------------------------------------------------------- */

static remat_status is_of_this_job(const char *state, bool *ours) {
    json_t *root;
    TRY(load_json_file(state, &root));
    const char *theirs = json_string_value(json_object_get(root, "job"));
    *ours = !strcmp(theirs ? theirs : "", rm_state_job());
    json_decref(root);
    return REMAT_OK;
}

/* By a launcher, or by Slurm, which puts jobs that lost a node back into its queue. */
static bool was_restarted(void) {
    static const char *const names[] = {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"};
    for (int i = 0; i < 2; i++) {
        const char *count = getenv(names[i]);
        if (count && strtol(count, NULL, 10) > 0) return true;
    }
    return false;
}

remat_status rm_state_after_restart(rm_options *options) {
    char state[RM_PATH_BYTES];
    bool found, ours = false;
    if (!was_restarted() || !options->save) return REMAT_OK;
    TRY(rm_state_find(options->save, state, &found));
    if (found) TRY(is_of_this_job(state, &ours));
    if (!ours) return REMAT_OK;
    rm_free(options->resume);
    options->resume = rm_strdup(options->save);
    REQUIRE(options->resume, MEMORY, "no memory for the name %s", options->save);
    return REMAT_OK;
}

/* ---- The arrays ------------------------------------------------------------------------------------------------- */

/* What state.json says of a file. Names are those that this file makes, so a path cannot lead elsewhere. */
static remat_status read_saved_file(const char *state, const char *name, const json_t *about, rm_saved_file *out) {
    json_int_t bytes, crc;
    bool known = !strcmp(name, RM_STATE_MODEL) || !strcmp(name, RM_STATE_OPTIMIZER) || rm_state_ranks_of(name);
    REQUIRE(known, IO, "%s/%s is damaged: it lists '%.80s', which is no part of a training state", state, RM_STATE_JSON,
            name);
    int bad = json_unpack((json_t *)about, "{s:I, s:I}", "bytes", &bytes, "crc32", &crc);
    REQUIRE(!bad, IO, "%s/%s is damaged: it does not describe %s", state, RM_STATE_JSON, name);
    out->bytes = (uint64_t)bytes;
    out->crc32 = (uint32_t)crc;
    return rm_path_join(out->path, sizeof out->path, state, name);
}

typedef struct {
    rm_saved_file model, *optimizer;
    int64_t n_optimizer;
} saved_files;

static remat_status read_saved_files(const char *state, const json_t *root, saved_files *out) {
    const char *name;
    json_t *about, *listed = json_object_get(root, "files");
    bool model = false;
    out->optimizer = rm_calloc(json_object_size(listed) + 1, sizeof *out->optimizer);
    REQUIRE(out->optimizer, MEMORY, "no memory to list the files of %s", state);
    json_object_foreach(listed, name, about) {
        bool is_model = !strcmp(name, RM_STATE_MODEL);
        model = model || is_model;
        TRY(read_saved_file(state, name, about, is_model ? &out->model : &out->optimizer[out->n_optimizer++]));
    }
    REQUIRE(model, IO, "%s/%s is damaged: it does not describe %s", state, RM_STATE_JSON, RM_STATE_MODEL);
    return REMAT_OK;
}

static remat_status list_saved_files(const char *state, saved_files *out) {
    json_t *root;
    TRY(load_json_file(state, &root));
    remat_status status = read_saved_files(state, root, out);
    json_decref(root);
    return status;
}

remat_status rm_state_restore(const char *state, const rm_state_point *point, bool with_optimizer,
                              remat_session *session) {
    saved_files files = {0};
    remat_status status = list_saved_files(state, &files);
    if (!status) status = rm_saved_file_check(&files.model);
    if (!status) status = rm_weights_load(session, REMAT_PARAM, files.model.path);
    if (!status && with_optimizer) status = rm_pieces_load(session, files.optimizer, files.n_optimizer);
    rm_free(files.optimizer);
    if (status || !with_optimizer) return status;
    remat_set_step_count(session, point->step);
    if (point->last_lr >= 0) remat_set_last_lr(session, point->last_lr);
    return REMAT_OK;
}

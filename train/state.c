/* state.c: see state.h. */
#include "train/state.h"

#include "memory/host.h"
#include "train/weights.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT 2
#define MODEL_FILE "model.safetensors"
#define OPTIMIZER_FILE "optimizer.safetensors"
#define STATE_FILE "state.json"
#define UNFINISHED ".tmp-"
static const char *const files[] = {STATE_FILE, MODEL_FILE, OPTIMIZER_FILE};
enum { FILES = sizeof files / sizeof files[0] };

/* ---- The directory ---------------------------------------------------------------------------------------------- */

/* "step-00000100" -> 100; -1 for any other name. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return *end || errno ? -1 : step;
}

static bool is_whole(const char *state) {
    char path[RM_PATH_BYTES];
    for (int i = 0; i < FILES; i++)
        if (rm_path_join(path, sizeof path, state, files[i]) || !rm_path_exists(path)) return false;
    return true;
}

static remat_status state_path(const char *directory, const char *prefix, int64_t step, char out[RM_PATH_BYTES]) {
    char name[64];
    snprintf(name, sizeof name, "%sstep-%08lld", prefix, (long long)step);
    return rm_path_join(out, RM_PATH_BYTES, directory, name);
}

/* The steps of the whole states in a directory, newest first. *steps is the caller's, freed with rm_free. */
static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static remat_status append(int64_t **steps, int64_t *count, int64_t step) {
    int64_t *moved = rm_realloc(*steps, (size_t)(*count + 1) * sizeof **steps);
    REQUIRE(moved, MEMORY, "no memory to list training states");
    *steps = moved;
    moved[(*count)++] = step;
    return REMAT_OK;
}

static remat_status list_states(const char *directory, int64_t **steps, int64_t *count) {
    remat_status status = REMAT_OK;
    struct dirent *entry;
    *steps = NULL;
    *count = 0;
    DIR *stream = opendir(directory);
    if (!stream && errno == ENOENT) return REMAT_OK;
    if (!stream) FAIL(IO, "cannot look into %s: %s", directory, strerror(errno));
    while (!status && (entry = readdir(stream))) {
        char path[RM_PATH_BYTES];
        int64_t step = step_of(entry->d_name);
        if (step >= 0 && !rm_path_join(path, sizeof path, directory, entry->d_name) && is_whole(path))
            status = append(steps, count, step);
    }
    closedir(stream);
    if (*count) qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    return status;
}

/* A state that is half removed lacks a file, so it is not whole and never resumed. */
static void remove_state(const char *state) {
    char path[RM_PATH_BYTES];
    for (int i = 0; i < FILES; i++)
        if (!rm_path_join(path, sizeof path, state, files[i])) unlink(path);
    rmdir(state);
}

static remat_status remove_unfinished(const char *directory) {
    struct dirent *entry;
    DIR *stream = opendir(directory);
    if (!stream) FAIL(IO, "cannot look into %s: %s", directory, strerror(errno));
    while ((entry = readdir(stream))) {
        char path[RM_PATH_BYTES];
        bool ours =
            !strncmp(entry->d_name, UNFINISHED, strlen(UNFINISHED)) && step_of(entry->d_name + strlen(UNFINISHED)) >= 0;
        if (ours && !rm_path_join(path, sizeof path, directory, entry->d_name)) remove_state(path);
    }
    closedir(stream);
    return REMAT_OK;
}

/* Also the directories above it. */
static remat_status make_directory(const char *path) {
    char partial[RM_PATH_BYTES];
    size_t length = strlen(path);
    REQUIRE(length > 0 && length < sizeof partial, INVALID, "the path %.60s... is too long", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] && path[i] != '/') continue;
        memcpy(partial, path, i);
        partial[i] = 0;
        if (mkdir(partial, 0777) && errno != EEXIST)
            FAIL(IO, "cannot create the directory %s: %s: choose another place for --save", partial, strerror(errno));
    }
    return REMAT_OK;
}

/* ---- The store -------------------------------------------------------------------------------------------------- */

static remat_status lock_directory(rm_state_store *store) {
    store->lock = open(store->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->lock < 0)
        FAIL(IO, "cannot save to %s: %s: choose another place for --save", store->directory, strerror(errno));
    bool taken = flock(store->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK; /* elsewhere: no locks, no check */
    REQUIRE(!taken, IO, "another run is saving to %s: choose another place for --save", store->directory);
    if (faccessat(store->lock, ".", W_OK | X_OK, AT_EACCESS))
        FAIL(IO, "cannot write to %s: %s: choose another place for --save", store->directory, strerror(errno));
    return REMAT_OK;
}

static remat_status refuse_later(const char *directory, int64_t step) {
    int64_t *steps, count;
    remat_status status = list_states(directory, &steps, &count);
    if (!status && count && steps[0] > step)
        status =
            rm_fail(REMAT_INVALID,
                    "%s already holds a training state of step %lld: continue it with --resume=%s, or choose another "
                    "place for --save",
                    directory, (long long)steps[0], directory);
    rm_free(steps);
    return status;
}

remat_status rm_state_store_open(const char *directory, int64_t keep, int64_t step, const rm_state_ranks *ranks,
                                 rm_state_store *out) {
    *out = (rm_state_store){.lock = -1, .keep = keep, .ranks.size = 1};
    if (ranks) out->ranks = *ranks;
    TRY(make_directory(directory));
    strcpy(out->directory, directory); /* make_directory has checked its length */
    TRY(lock_directory(out));
    TRY(refuse_later(directory, step));
    return remove_unfinished(directory);
}

void rm_state_store_close(rm_state_store *store) {
    if (store->lock >= 0) close(store->lock);
    store->lock = -1;
}

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

/* What later versions of Remat or another working directory could change is said; what is still at its default and may
 * be changed when resuming is not. */
static json_t *flags_json(const rm_options *options) {
    json_t *flags = json_object();
    for (int i = 0; i < rm_options_count(); i++) {
        char text[RM_PATH_BYTES];
        rm_option_memory memory = rm_options_memory(i);
        bool keep = memory == RM_OF_MODEL || memory == RM_OF_RUN || (memory == RM_REMEMBERED && options->given[i]);
        if (keep)
            json_object_set_new(flags, rm_options_name(i), json_string(rm_options_text(options, i, text, sizeof text)));
    }
    return flags;
}

static json_t *file_json(const rm_file_writer *writer) {
    return json_pack("{s:I, s:I}", "bytes", (json_int_t)writer->bytes, "crc32", (json_int_t)writer->crc32);
}

static json_t *point_json(const rm_state_point *p) {
    return json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:i, s:I}", "format", FORMAT, "remat", REMAT_VERSION,
                     "step", (json_int_t)p->step, "epoch", (json_int_t)p->epoch, "consumed", (json_int_t)p->consumed,
                     "samples", (json_int_t)p->samples, "last_lr", p->last_lr, "world_size", (json_int_t)p->world_size,
                     "zero", p->zero, "shards", (json_int_t)p->shards);
}

static remat_status write_json(const char *path, const json_t *root) {
    rm_file_writer writer;
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    REQUIRE(text, MEMORY, "no memory to write %s (or a flag that is not UTF-8)", path);
    remat_status status = rm_file_create(path, &writer);
    if (!status) status = rm_file_write(&writer, text, strlen(text));
    if (!status) status = rm_file_write(&writer, "\n", 1);
    if (!status) status = rm_file_finish(&writer);
    rm_file_abandon(&writer);
    json_free_t release;
    json_get_alloc_funcs(NULL, &release);
    release(text);
    return status;
}

static remat_status write_files(const char *state, remat_session *session, const rm_options *options,
                                rm_state_point point) {
    char model_path[RM_PATH_BYTES], optimizer_path[RM_PATH_BYTES], json_path[RM_PATH_BYTES];
    rm_file_writer model, optimizer;
    TRY(rm_path_join(model_path, sizeof model_path, state, MODEL_FILE));
    TRY(rm_path_join(optimizer_path, sizeof optimizer_path, state, OPTIMIZER_FILE));
    TRY(rm_path_join(json_path, sizeof json_path, state, STATE_FILE));
    TRY(rm_weights_save(session, REMAT_PARAM, model_path, &model));
    TRY(rm_weights_save(session, REMAT_OPTIMIZER, optimizer_path, &optimizer));
    json_t *root = point_json(&point);
    json_t *listed = json_pack("{s:o, s:o}", MODEL_FILE, file_json(&model), OPTIMIZER_FILE, file_json(&optimizer));
    if (root &&
        (json_object_set_new(root, "flags", flags_json(options)) || json_object_set_new(root, "files", listed))) {
        json_decref(root);
        root = NULL;
    }
    remat_status status = write_json(json_path, root);
    json_decref(root);
    return status;
}

static remat_status write_state(const char *unfinished, const char *final, rm_state_store *store,
                                remat_session *session, const rm_options *options, rm_state_point point) {
    if (mkdir(unfinished, 0777)) FAIL(IO, "cannot create %s: %s", unfinished, strerror(errno));
    TRY(write_files(unfinished, session, options, point));
    TRY(rm_directory_sync(unfinished));
    if (rename(unfinished, final)) FAIL(IO, "cannot rename %s to %s: %s", unfinished, final, strerror(errno));
    return rm_directory_sync(store->directory);
}

static remat_status prune(const rm_state_store *store) {
    int64_t *steps, count;
    remat_status status = list_states(store->directory, &steps, &count);
    for (int64_t i = store->keep; store->keep && i < count; i++) {
        char path[RM_PATH_BYTES];
        if (!state_path(store->directory, "", steps[i], path)) remove_state(path);
    }
    rm_free(steps);
    return status;
}

remat_status rm_state_save(rm_state_store *store, remat_session *session, const rm_options *options,
                           rm_state_point point) {
    char unfinished[RM_PATH_BYTES], final[RM_PATH_BYTES];
    point.world_size = store->ranks.size;
    TRY(state_path(store->directory, UNFINISHED, point.step, unfinished));
    TRY(state_path(store->directory, "", point.step, final));
    if (is_whole(final)) return prune(store);
    remove_state(final); /* what a machine that died while pruning left */
    remat_status status = write_state(unfinished, final, store, session, options, point);
    if (status) {
        remove_state(unfinished);
        return rm_fail_in(status, "the training state of step %lld was not saved", (long long)point.step);
    }
    return prune(store);
}

/* ---- Resuming --------------------------------------------------------------------------------------------------- */

remat_status rm_state_find(const char *directory, char state[RM_PATH_BYTES], bool *found) {
    int64_t *steps, count;
    *found = is_whole(directory);
    if (*found) {
        snprintf(state, RM_PATH_BYTES, "%s", directory);
        return REMAT_OK;
    }
    TRY(list_states(directory, &steps, &count));
    *found = count > 0;
    remat_status status = count ? state_path(directory, "", steps[0], state) : REMAT_OK;
    rm_free(steps);
    return status;
}

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
    REQUIRE(format >= 1 && format <= FORMAT, IO, "%s has format %lld; this version reads formats 1 to %d", name, format,
            FORMAT);
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
    TRY(rm_path_join(path, RM_PATH_BYTES, state, STATE_FILE));
    return rm_file_read(path, 1 << 20, text, size);
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

/* Whether a file is still what was written. */
static remat_status check_file(const json_t *root, const char *state, const char *file) {
    char path[RM_PATH_BYTES];
    json_int_t bytes, crc;
    uint32_t measured_crc;
    uint64_t measured_bytes;
    TRY(rm_path_join(path, sizeof path, state, file));
    int bad = json_unpack((json_t *)root, "{s:{s:{s:I, s:I}}}", "files", file, "bytes", &bytes, "crc32", &crc);
    REQUIRE(!bad, IO, "%s/%s is damaged: it does not describe %s", state, STATE_FILE, file);
    TRY(rm_file_checksum(path, &measured_bytes, &measured_crc));
    REQUIRE(
        measured_bytes == (uint64_t)bytes && measured_crc == (uint32_t)crc, IO,
        "%s is not as it was saved (%llu bytes, checksum %08x; saved were %lld and %08x): remove %s to resume from the "
        "state before it",
        path, (unsigned long long)measured_bytes, measured_crc, (long long)bytes, (uint32_t)crc, state);
    return REMAT_OK;
}

static remat_status check_files(const char *state, bool with_optimizer) {
    char path[RM_PATH_BYTES];
    uint8_t *text;
    size_t size;
    json_t *root;
    TRY(read_json_file(state, path, &text, &size));
    remat_status status = load_json((const char *)text, size, path, &root);
    rm_free(text);
    if (status) return status;
    status = check_file(root, state, MODEL_FILE);
    if (!status && with_optimizer) status = check_file(root, state, OPTIMIZER_FILE);
    json_decref(root);
    return status;
}

remat_status rm_state_after_restart(rm_options *options) {
    (void)options;
    return REMAT_OK;
}

remat_status rm_state_restore(const char *state, const rm_state_point *point, bool with_optimizer,
                              remat_session *session) {
    char path[RM_PATH_BYTES];
    TRY(check_files(state, with_optimizer));
    TRY(rm_path_join(path, sizeof path, state, MODEL_FILE));
    TRY(rm_weights_load(session, REMAT_PARAM, path));
    if (!with_optimizer) return REMAT_OK;
    TRY(rm_path_join(path, sizeof path, state, OPTIMIZER_FILE));
    TRY(rm_weights_load(session, REMAT_OPTIMIZER, path));
    remat_set_step_count(session, point->step);
    return REMAT_OK;
}

/* state.c: see state.h. Saves states; state_resume.c reads them. */
#include "train/state/state.h"

#include "memory/host.h"
#include "train/state/carried.h"
#include "train/state/optimizer_shards.h"
#include "train/state/state_directory.h"
#include "train/state/state_job.h"
#include "train/state/state_json.h"
#include "train/state/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The store -------------------------------------------------------------------------------------------------- */

static remat_status lock_directory(rm_state_store *store) {
    TRY(rm_state_directory_lock(store->directory, &store->lock));
    if (faccessat(store->lock, ".", W_OK | X_OK, AT_EACCESS))
        FAIL(IO, "cannot write to %s: %s: choose another place for --save", store->directory, strerror(errno));
    return REMAT_OK;
}

static remat_status refuse_later(const char *directory, int64_t step) {
    int64_t *steps, count;
    remat_status status = rm_state_list_all(directory, &steps, &count);
    if (!status && count && steps[0] > step)
        status =
            rm_fail(REMAT_INVALID,
                    "%s already holds a training state of step %lld: continue it with --resume=%s, or choose another "
                    "place for --save",
                    directory, (long long)steps[0], directory);
    rm_free(steps);
    return status;
}

/* The agreement of a run on one rank: its own status. */
static remat_status agree(const rm_state_store *store, remat_status status, double *values, int64_t count) {
    const rm_state_ranks *ranks = &store->ranks;
    return ranks->size > 1 ? ranks->agree(ranks->context, status, values, count) : status;
}

static remat_status take_directory(rm_state_store *store, int64_t step) {
    TRY(rm_directory_make(store->directory, "save"));
    TRY(lock_directory(store));
    TRY(refuse_later(store->directory, step));
    return rm_state_remove_unfinished(store->directory);
}

remat_status rm_state_store_open(const char *directory, int64_t keep, int64_t step, const rm_state_ranks *ranks,
                                 rm_state_store *out) {
    *out = (rm_state_store){.lock = -1, .keep = keep, .ranks = {.size = 1, .replicas = 1, .parts = 1}};
    if (ranks) out->ranks = *ranks;
    remat_status status = REMAT_OK;
    if (snprintf(out->directory, RM_PATH_BYTES, "%s", directory) >= RM_PATH_BYTES || !*directory)
        status = rm_fail(REMAT_INVALID, "the path %.60s... is too long", directory);
    else if (out->ranks.rank == 0)
        status = take_directory(out, step);
    return agree(out, status, NULL, 0);
}

void rm_state_store_close(rm_state_store *store) {
    if (store->lock >= 0) close(store->lock);
    store->lock = -1;
}

/* ---- What is in state.json -------------------------------------------------------------------------------------- */

/* Saves flags whose default or meaning could change with the version of Remat or the working directory; omits flags at their default
 * that may change when resuming. */
static json_t *flags_json(const rm_options *options) {
    json_t *flags = json_object();
    bool bad = !flags;
    for (int i = 0; i < rm_options_count(); i++) {
        char text[RM_PATH_BYTES];
        rm_option_memory memory = rm_options_memory(i);
        bool keep = memory == RM_OF_MODEL || (memory == RM_OF_RUN && rm_options_has_value(options, i)) ||
                    (memory == RM_REMEMBERED && options->given[i]);
        if (keep)
            bad |= json_object_set_new(flags, rm_options_name(i),
                                       rm_state_json_text(rm_options_text(options, i, text, sizeof text))) != 0;
    }
    if (!bad) return flags;
    json_decref(flags);
    return NULL;
}

/* Lists a file with its size and checksum; after a failure `files` is incomplete or NULL. */
static void list_file(json_t *files, const char *name, const double about[2]) {
    json_object_set_new(files, name,
                        json_pack("{s:I, s:I}", "bytes", (json_int_t)about[0], "crc32", (json_int_t)about[1]));
}

/* "best" and "best_step" for the loss; for another metric "best_accuracy" and "best_accuracy_step". */
static void add_best(json_t *json, rm_score_name metric, const rm_best *best) {
    char name[64], step[64];
    rm_state_best_names(metric, name, step);
    if (isfinite(best->best)) json_object_set_new(json, name, json_real(best->best));
    if (best->step) json_object_set_new(json, step, json_integer(best->step));
}

/* Without a best value if no evaluation had a finite metric. */
static json_t *watch_json(const rm_watch *w) {
    json_t *json = json_pack("{s:I, s:I, s:I}", "since", (json_int_t)w->since, "plateau_since",
                             (json_int_t)w->plateau_since, "reductions", (json_int_t)w->reductions);
    for (int i = 0; json && i < RM_SCORES; i++) add_best(json, i, &w->by[i]);
    if (json && isfinite(w->plateau_best)) json_object_set_new(json, "plateau_best", json_real(w->plateau_best));
    return json;
}

static json_t *point_json(const rm_state_point *p) {
    json_t *root = json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:i, s:I}", "format", RM_STATE_FORMAT, "remat",
                             REMAT_VERSION, "step", (json_int_t)p->step, "epoch", (json_int_t)p->epoch, "consumed",
                             (json_int_t)p->consumed, "samples", (json_int_t)p->samples, "last_lr", p->last_lr,
                             "world_size", (json_int_t)p->world_size, "zero", p->zero, "shards", (json_int_t)p->shards);
    if (root && p->pipeline > 1) json_object_set_new(root, "pipeline", json_integer((json_int_t)p->pipeline));
    if (root && *p->run) json_object_set_new(root, "run", json_string(p->run));
    if (root && p->watch.seen) json_object_set_new(root, "watch", watch_json(&p->watch));
    if (root && p->evaluation_due) json_object_set_new(root, "evaluation_due", json_true());
    if (root && p->data_crc32) json_object_set_new(root, "data_crc32", json_integer(p->data_crc32));
    return root;
}

/* ---- Who writes what. The sizes and checksums of all files, two numbers each: that of the model, then those of the
 * optimizer, one or one of each rank, then those of carried states, of the tokenizer and of the average; every rank fills in its
 * own, and their sum is what rank 0 lists. ---- */

/* One for each rank that keeps a part of the optimizer's state: with --zero=1 all, else those of the first pipeline. */
static int64_t optimizer_files(const rm_state_ranks *ranks) {
    return ranks->shard_optimizer ? ranks->size : ranks->parts;
}

static int64_t place_of_carried(const rm_state_ranks *ranks) { return 2 + 2 * optimizer_files(ranks); }

static int64_t place_of_tokenizer(const rm_state_ranks *ranks) { return place_of_carried(ranks) + 2; }

static int64_t place_of_ema(const rm_state_ranks *ranks) { return place_of_tokenizer(ranks) + 2; }

static void note(const rm_file_writer *writer, double about[2]) {
    about[0] = (double)writer->bytes;
    about[1] = (double)writer->crc32;
}

/* Collective over the first pipeline. */
static remat_status write_weights(const char *state, const char *name, const rm_state_ranks *ranks,
                                  remat_session *session, double *about) {
    char path[RM_PATH_BYTES];
    rm_file_writer writer;
    TRY(rm_path_join(path, sizeof path, state, name));
    TRY(rm_weights_save(session, REMAT_PARAM, ranks->rank ? NULL : path, &writer));
    if (ranks->rank == 0) note(&writer, about);
    return REMAT_OK;
}

static remat_status write_optimizer(const char *state, remat_session *session, double *about) {
    char path[RM_PATH_BYTES];
    rm_file_writer writer;
    TRY(rm_path_join(path, sizeof path, state, RM_STATE_OPTIMIZER));
    TRY(rm_weights_save(session, REMAT_OPTIMIZER, path, &writer));
    note(&writer, about + 2);
    return REMAT_OK;
}

static remat_status write_shards(const char *state, const rm_state_ranks *ranks, remat_session *session,
                                 double *about) {
    char name[RM_STATE_SHARD_NAME], path[RM_PATH_BYTES];
    rm_file_writer writer;
    const int64_t number = ranks->shard_optimizer ? ranks->rank : ranks->part;
    rm_state_shard_name(number, optimizer_files(ranks), name);
    TRY(rm_path_join(path, sizeof path, state, name));
    REQUIRE(rm_path_exists(state), IO,
            "rank 0 created %s, but rank %lld cannot see it: choose a --save directory that all hosts share", state,
            (long long)ranks->rank);
    TRY(rm_optimizer_shards_save(session, path, &writer));
    note(&writer, about + 2 + 2 * number);
    return REMAT_OK;
}

static remat_status write_tokenizer(const char *state, const rm_state_store *store, double *about) {
    char path[RM_PATH_BYTES];
    rm_file_writer writer;
    TRY(rm_path_join(path, sizeof path, state, RM_STATE_TOKENIZER));
    TRY(rm_file_create(path, &writer));
    remat_status status = rm_file_write(&writer, store->tokenizer, store->tokenizer_bytes);
    if (!status) status = rm_file_finish(&writer);
    rm_file_abandon(&writer);
    note(&writer, about + place_of_tokenizer(&store->ranks));
    return status;
}

/* Both files of weights, as the ranks of a pipeline wait for each other. */
static remat_status write_models(const char *state, const rm_state_store *store, remat_session *session,
                                 double *about) {
    const rm_state_ranks *ranks = &store->ranks;
    double *of_ema = about + place_of_ema(ranks);
    remat_status status = store->ema ? write_weights(state, RM_STATE_EMA, ranks, store->ema, of_ema) : REMAT_OK;
    remat_status model = write_weights(state, RM_STATE_MODEL, ranks, session, about);
    return status ? status : model;
}

/* Writes this rank's part of the state. */
static remat_status write_share(const char *state, const rm_state_store *store, remat_session *session, double *about) {
    const rm_state_ranks *ranks = &store->ranks;
    if (ranks->replica == 0) TRY(write_models(state, store, session, about));
    if (ranks->rank == 0 && store->tokenizer) TRY(write_tokenizer(state, store, about));
    if (optimizer_files(ranks) == 1) return ranks->rank == 0 ? write_optimizer(state, session, about) : REMAT_OK;
    return ranks->shard_optimizer || ranks->replica == 0 ? write_shards(state, ranks, session, about) : REMAT_OK;
}

/* Collective. */
static remat_status write_carried(const char *state, const rm_state_ranks *ranks, remat_session *session,
                                  remat_status mine, double *about) {
    char path[RM_PATH_BYTES];
    rm_file_writer writer;
    if (!mine) mine = rm_path_join(path, sizeof path, state, RM_STATE_CARRIED);
    TRY(rm_carried_save(session, ranks, path, mine, &writer));
    if (ranks->rank == 0) note(&writer, about + place_of_carried(ranks));
    return REMAT_OK;
}

static json_t *files_json(const rm_state_store *store, const rm_state_point *point, const double *about) {
    const rm_state_ranks *ranks = &store->ranks;
    json_t *files = json_object();
    list_file(files, RM_STATE_MODEL, about);
    const int64_t n = optimizer_files(ranks);
    if (n == 1) list_file(files, RM_STATE_OPTIMIZER, about + 2);
    for (int64_t r = 0; n > 1 && r < n; r++) {
        char name[RM_STATE_SHARD_NAME];
        rm_state_shard_name(r, n, name);
        list_file(files, name, about + 2 + 2 * r);
    }
    if (point->stateful) list_file(files, RM_STATE_CARRIED, about + place_of_carried(ranks));
    if (store->tokenizer) list_file(files, RM_STATE_TOKENIZER, about + place_of_tokenizer(ranks));
    if (point->ema) list_file(files, RM_STATE_EMA, about + place_of_ema(ranks));
    return files;
}

/* NULL: no memory. */
static json_t *classes_json(const rm_class_names *names) {
    json_t *list = json_array();
    for (int64_t i = 0; i < names->count; i++)
        if (json_array_append_new(list, rm_state_json_text(names->name[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static remat_status write_state_json(const char *state, const rm_state_store *store, const rm_options *options,
                                     const rm_state_point *point, const double *about) {
    char path[RM_PATH_BYTES];
    TRY(rm_path_join(path, sizeof path, state, RM_STATE_JSON));
    json_t *root = point_json(point);
    rm_state_job job;
    rm_state_job_find(&job);
    rm_state_job_write(&job, root);
    bool bad = json_object_set_new(root, "flags", flags_json(options)) != 0;
    bad = json_object_set_new(root, "files", files_json(store, point, about)) || bad;
    if (store->classes) bad = json_object_set_new(root, "classes", classes_json(store->classes)) || bad;
    remat_status status = rm_state_json_write(path, bad ? NULL : root);
    json_decref(root);
    return status;
}

/* ---- A state, from its beginning to its name -------------------------------------------------------------------- */

typedef struct {
    char unfinished[RM_PATH_BYTES], final[RM_PATH_BYTES];
    rm_state_store *store;
    const rm_options *options;
    rm_state_point point;
    double *about; /* of files, as above */
    int64_t n_about;
} saving;

/* Rank 0, for a state that exists: replaces state.json atomically, because an evaluation that was due has been made since. */
static remat_status settle(const saving *s) {
    char path[RM_PATH_BYTES], beside[RM_PATH_BYTES];
    json_t *root;
    if (s->point.evaluation_due) return REMAT_OK;
    TRY(rm_path_join(beside, sizeof beside, s->final, RM_STATE_JSON_BESIDE));
    TRY(rm_state_json_read(s->final, path, &root));
    bool was_due = json_object_del(root, "evaluation_due") == 0;
    bool bad = was_due && s->point.watch.seen && json_object_set_new(root, "watch", watch_json(&s->point.watch));
    remat_status status = was_due ? rm_state_json_write(beside, bad ? NULL : root) : REMAT_OK;
    json_decref(root);
    if (!status && was_due && rename(beside, path)) status = rm_file_failed("rename", beside);
    return status || !was_due ? status : rm_directory_sync(s->final);
}

/* Rank 0. *there: the state exists already. */
static remat_status begin(const saving *s, double *there) {
    *there = rm_state_is_whole(s->final);
    if (*there != 0) return settle(s);
    char aside[RM_PATH_BYTES];
    struct stat about;
    if (lstat(s->final, &about) == 0)
        TRY(rm_state_put_aside(s->store->directory, s->point.step, aside)); /* incomplete, or a link */
    rm_state_remove(s->unfinished);
    if (mkdir(s->unfinished, 0777)) return rm_file_failed("create", s->unfinished);
    return REMAT_OK;
}

/* Rank 0, once every file except state.json is written. */
static remat_status finish(const saving *s) {
    TRY(write_state_json(s->unfinished, s->store, s->options, &s->point, s->about));
    TRY(rm_directory_sync(s->unfinished));
    if (rename(s->unfinished, s->final)) return rm_file_failed("rename", s->unfinished);
    return rm_directory_sync(s->store->directory);
}

static remat_status prune(const rm_state_store *store) {
    int64_t *steps, count;
    if (store->best) TRY(rm_state_link_best(store->directory, store->best));
    remat_status status = rm_state_list(store->directory, &steps, &count);
    for (int64_t i = store->keep; store->keep && i < count; i++) {
        if (steps[i] != store->best && !status) status = rm_state_discard(store->directory, steps[i]);
    }
    rm_free(steps);
    return status;
}

/* The rank that failed reports why; the others learn that it failed. A full disk stays full, so a restarted job would fail the same
 * way: the job ends with the exit status of a request that cannot work. */
static remat_status agree_saved(const saving *s, remat_status mine, double *values, int64_t count) {
    if (mine == REMAT_IO && rm_file_had_no_room()) mine = REMAT_INVALID;
    if (mine) rm_fail_in(mine, "the training state of step %lld was not saved", (long long)s->point.step);
    return agree(s->store, mine, values, count);
}

/* Prepares each rank on its own. */
static remat_status prepare(saving *s) {
    const rm_state_ranks *ranks = &s->store->ranks;
    TRY(rm_state_path(s->store->directory, RM_STATE_UNFINISHED, s->point.step, s->unfinished));
    TRY(rm_state_path(s->store->directory, "", s->point.step, s->final));
    s->n_about = place_of_ema(ranks) + 2;
    s->about = rm_calloc((size_t)s->n_about, sizeof *s->about);
    REQUIRE(s->about, MEMORY, "no memory to list the files of a training state");
    return REMAT_OK;
}

static remat_status save(saving *s, remat_session *session) {
    const rm_state_ranks *ranks = &s->store->ranks;
    bool first = ranks->rank == 0;
    double there = 0;
    rm_file_forget_no_room(); /* an earlier full disk, such as while writing a plot, is not the cause of this failure */
    remat_status status = prepare(s);
    if (!status && first) status = begin(s, &there);
    TRY(agree_saved(s, status, &there, 1));
    if (there == 0) {
        status = write_share(s->unfinished, s->store, session, s->about);
        if (s->point.stateful) status = write_carried(s->unfinished, ranks, session, status, s->about);
        status = agree_saved(s, status, s->about, s->n_about);
        if (!status) status = agree_saved(s, first ? finish(s) : REMAT_OK, NULL, 0);
        if (status && first) rm_state_remove(s->unfinished);
        if (status) return status;
    }
    return agree(s->store, first ? prune(s->store) : REMAT_OK, NULL, 0);
}

remat_status rm_state_save(rm_state_store *store, remat_session *session, const rm_options *options,
                           rm_state_point point) {
    saving s = {.store = store, .options = options, .point = point};
    s.point.world_size = store->ranks.size;
    s.point.pipeline = store->ranks.parts;
    s.point.zero = store->ranks.shard_optimizer;
    s.point.stateful = options->order.stateful;
    s.point.ema = options->ema > 0;
    remat_status status = save(&s, session);
    rm_free(s.about);
    return status;
}

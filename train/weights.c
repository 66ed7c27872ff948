/* weights.c: see weights.h. */
#include "train/weights.h"

#include "memory/host.h"
#include "train/stream.h"

#include <stdio.h>
#include <string.h>

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

static remat_status write_header(remat_session *session, remat_kind kind, rm_file_writer *writer) {
    int64_t count = remat_count(session, kind);
    remat_array *array = rm_calloc((size_t)count + 1, sizeof *array);
    REQUIRE(array, MEMORY, "no memory to write %s", writer->path);
    remat_status status = REMAT_OK;
    for (int64_t i = 0; i < count && !status; i++) status = remat_array_info(session, kind, i, &array[i]);
    if (!status) status = rm_safetensors_begin(writer, array, count);
    rm_free(array);
    return status;
}

remat_status rm_weights_save(remat_session *session, remat_kind kind, const char *path, rm_file_writer *writer) {
    TRY(rm_file_create(path, writer));
    remat_status status = write_header(session, kind, writer);
    for (int64_t i = 0; i < remat_count(session, kind) && !status; i++)
        status = rm_stream_out(session, kind, i, writer);
    if (!status) status = rm_file_finish(writer);
    rm_file_abandon(writer);
    if (status) rm_file_remove(path);
    return status;
}

/* ---- Names ------------------------------------------------------------------------------------------------------ */

static const char *const prefixes[] = {"module.", "_orig_mod.", "model."};
static const char *const rooms[][2] = {
    {"lstm", "rnn"}, {"gru", "rnn"},     {"emb", "embedding"}, {"embed", "embedding"}, {"encoder", "embedding"},
    {"fc", "head"},  {"linear", "head"}, {"out", "head"},      {"output", "head"},     {"decoder", "head"}};

static const char *without_prefixes(const char *name) {
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0];) {
        size_t length = strlen(prefixes[i]);
        if (!strncmp(name, prefixes[i], length)) {
            name += length;
            i = 0;
        } else {
            i++;
        }
    }
    return name;
}

void rm_weights_our_name(const char *name, char *out, size_t out_bytes) {
    name = without_prefixes(name);
    size_t first = strcspn(name, ".");
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++)
        if (strlen(rooms[i][0]) == first && !strncmp(name, rooms[i][0], first)) {
            snprintf(out, out_bytes, "%s%s", rooms[i][1], name + first);
            return;
        }
    snprintf(out, out_bytes, "%s", name);
}

static void exact_name(const char *name, char *out, size_t out_bytes) { snprintf(out, out_bytes, "%s", name); }
typedef void renamer(const char *name, char *out, size_t out_bytes);

/* ---- Loading ---------------------------------------------------------------------------------------------------- */

static void shape_text(int rank, const int64_t *dim, char *out, size_t bytes) {
    size_t at = (size_t)snprintf(out, bytes, "(");
    for (int i = 0; i < rank && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, i ? ",%lld" : "%lld", (long long)dim[i]);
    if (at < bytes) snprintf(out + at, bytes - at, ")");
}

static remat_status must_match(const char *path, const remat_array *ours, const rm_st_array *theirs) {
    bool same = ours->rank == theirs->rank;
    for (int i = 0; same && i < ours->rank; i++) same = ours->dim[i] == theirs->dim[i];
    if (!same) {
        char a[120], b[120];
        shape_text(theirs->rank, theirs->dim, a, sizeof a);
        shape_text(ours->rank, ours->dim, b, sizeof b);
        FAIL(INVALID, "%s: '%s' is %s, but this model's %s is %s: give the flags of the model that was saved", path,
             theirs->name, a, ours->name, b);
    }
    REQUIRE(!strcmp(theirs->dtype, "F32"), INVALID, "%s: '%s' is %s; weights must be F32: save it with .float()", path,
            theirs->name, theirs->dtype);
    return REMAT_OK;
}

/* source[i] becomes the index in the file of the session's array i. */
static remat_status match_all(remat_session *session, remat_kind kind, const rm_safetensors *file, renamer *rename,
                              int64_t *source) {
    int64_t count = remat_count(session, kind);
    for (int64_t i = 0; i < count; i++) source[i] = -1;
    for (int64_t j = 0; j < file->count; j++) {
        char name[256];
        remat_array ours;
        rename(file->array[j].name, name, sizeof name);
        int64_t i = remat_find(session, kind, name);
        REQUIRE(i >= 0, INVALID, "%s has an array '%.80s' that this model does not have: is it another model's?",
                file->path, file->array[j].name);
        REQUIRE(source[i] < 0, INVALID, "%s: '%.80s' and '%.80s' both mean %s", file->path, file->array[source[i]].name,
                file->array[j].name, name);
        source[i] = j;
        TRY(remat_array_info(session, kind, i, &ours));
        TRY(must_match(file->path, &ours, &file->array[j]));
    }
    for (int64_t i = 0; i < count; i++) {
        remat_array ours;
        TRY(remat_array_info(session, kind, i, &ours));
        REQUIRE(source[i] >= 0, INVALID,
                "%s has no '%s', which this model needs: give the flags of the model that was "
                "saved",
                file->path, ours.name);
    }
    return REMAT_OK;
}

static remat_status copy_all(remat_session *session, remat_kind kind, const rm_safetensors *file,
                             const int64_t *source) {
    for (int64_t i = 0; i < remat_count(session, kind); i++) {
        const rm_st_array *theirs = &file->array[source[i]];
        TRY(rm_stream_in(session, kind, i, 0, theirs->end - theirs->begin, file->fd, file->path,
                         file->data_start + theirs->begin));
    }
    return REMAT_OK;
}

static remat_status load(remat_session *session, remat_kind kind, const char *path, renamer *rename, bool copy) {
    rm_safetensors file;
    int64_t *source = rm_calloc((size_t)remat_count(session, kind) + 1, sizeof *source);
    REQUIRE(source, MEMORY, "no memory to read %s", path);
    remat_status status = rm_safetensors_open(path, &file);
    if (!status) status = match_all(session, kind, &file, rename, source);
    if (!status && copy) status = copy_all(session, kind, &file, source);
    rm_safetensors_free(&file);
    rm_free(source);
    return status;
}

remat_status rm_weights_load(remat_session *session, remat_kind kind, const char *path) {
    return load(session, kind, path, exact_name, true);
}

remat_status rm_weights_check(remat_session *session, remat_kind kind, const char *path) {
    return load(session, kind, path, exact_name, false);
}

remat_status rm_weights_import(remat_session *session, const char *path) {
    return load(session, REMAT_PARAM, path, rm_weights_our_name, true);
}

remat_status rm_weights_copy(remat_session *from, remat_session *to) {
    for (int64_t i = 0; i < remat_count(from, REMAT_PARAM); i++) TRY(rm_stream_copy(from, to, REMAT_PARAM, i));
    return REMAT_OK;
}

/* optimizer_shards.c: see optimizer_shards.h. */
#include "train/state/optimizer_shards.h"

#include "memory/host.h"
#include "train/state/state_json.h"
#include "train/state/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 512 };

/* ---- The session's arrays --------------------------------------------------------------------------------------- */

static int64_t elements_of(const remat_array *array) {
    int64_t n = 1;
    for (int i = 0; i < array->rank; i++) n *= array->dim[i];
    return n;
}

/* Describes all arrays; the caller frees *array with rm_free. */
static remat_status list_arrays(remat_session *session, remat_array **array, int64_t *n) {
    *n = remat_count(session, REMAT_OPTIMIZER);
    *array = rm_calloc((size_t)*n + 1, sizeof **array);
    REQUIRE(*array, MEMORY, "no memory to list %lld arrays of the optimizer", (long long)*n);
    for (int64_t i = 0; i < *n; i++) TRY(remat_array_info(session, REMAT_OPTIMIZER, i, &(*array)[i]));
    return REMAT_OK;
}

/* ---- Saving ----------------------------------------------------------------------------------------------------- */

static remat_status write_header(const remat_array *array, int64_t n, rm_file_writer *writer) {
    int64_t shards = 0;
    char(*name)[NAME_BYTES] = rm_calloc((size_t)n + 1, sizeof *name);
    remat_array *shard = rm_calloc((size_t)n + 1, sizeof *shard);
    remat_status status = name && shard ? REMAT_OK : rm_fail(REMAT_MEMORY, "no memory to write %s", writer->path);
    for (int64_t i = 0; i < n && !status; i++) {
        const remat_array *a = &array[i];
        if (!a->count) continue;
        int length = snprintf(name[shards], NAME_BYTES, "%s[%lld:%lld]", a->name, (long long)a->first,
                              (long long)(a->first + a->count));
        if (length >= NAME_BYTES) status = rm_fail(REMAT_INVALID, "the name %.60s... is too long to be saved", a->name);
        shard[shards] = (remat_array){.name = name[shards], .rank = 1, .dim = {a->count}, .bytes = a->bytes};
        shards++;
    }
    if (!status) status = rm_safetensors_begin(writer, shard, shards);
    rm_free(name);
    rm_free(shard);
    return status;
}

remat_status rm_optimizer_shards_save(remat_session *session, const char *path, rm_file_writer *writer) {
    remat_array *array;
    int64_t n;
    TRY(rm_file_create(path, writer));
    remat_status status = list_arrays(session, &array, &n);
    if (!status) status = write_header(array, n, writer);
    for (int64_t i = 0; i < n && !status; i++) status = rm_stream_held(session, REMAT_OPTIMIZER, i, writer);
    if (!status) status = rm_file_finish(writer);
    rm_file_abandon(writer);
    rm_free(array);
    if (status) rm_file_remove(path);
    return status;
}

/* ---- Matching --------------------------------------------------------------------------------------------------- */

static bool parse_count(const char *text, char end, int64_t *out, const char **after) {
    char *stop;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoll(text, &stop, 10);
    *after = stop + 1;
    return !errno && *stop == end;
}

bool rm_shard_parse(char *name, int64_t *first, int64_t *count) {
    int64_t end;
    const char *at;
    char *bracket = strrchr(name, '[');
    *first = 0;
    *count = -1;
    if (!bracket) return true;
    if (!parse_count(bracket + 1, ':', first, &at) || !parse_count(at, ']', &end, &at) || *at) return false;
    *bracket = 0;
    *count = end - *first;
    return *count > 0;
}

static int64_t find(const remat_array *array, int64_t n, const char *name) {
    for (int64_t i = 0; i < n; i++)
        if (!strcmp(array[i].name, name)) return i;
    return -1;
}

/* A whole array must have our shape; a shard has one dimension and lies inside ours. */
static remat_status check_shape(const char *path, const remat_array *ours, const rm_st_array *theirs, rm_shard *shard) {
    int64_t all = elements_of(ours);
    bool whole = shard->count < 0, fits = theirs->rank == (whole ? ours->rank : 1);
    for (int i = 0; fits && i < theirs->rank; i++) fits = theirs->dim[i] == (whole ? ours->dim[i] : shard->count);
    if (whole) shard->count = all;
    REQUIRE(fits && shard->first <= all && shard->count <= all - shard->first, INVALID,
            "%s: '%.200s' does not fit this model's %s, which has %lld elements%s: give the flags of the model that "
            "was saved",
            path, theirs->name, ours->name, (long long)all, fits ? "" : ", or has another shape than its name says");
    REQUIRE(!strcmp(theirs->dtype, "F32"), INVALID, "%s: '%.200s' is %s; an optimizer's state is F32", path,
            theirs->name, theirs->dtype);
    return REMAT_OK;
}

static remat_status place(const remat_array *array, int64_t n_arrays, const char *path, const rm_st_array *theirs,
                          rm_shard *shard) {
    char name[NAME_BYTES];
    int length = snprintf(name, sizeof name, "%s", theirs->name);
    REQUIRE(length < NAME_BYTES && rm_shard_parse(name, &shard->first, &shard->count), IO,
            "%s is damaged: '%.80s' is not a shard of an array", path, theirs->name);
    shard->array = find(array, n_arrays, name);
    REQUIRE(
        shard->array >= 0, INVALID,
        "%s has an array '%.80s' that this model does not have: give the flags of the run that was saved, including "
        "--optimizer and --train-only",
        path, theirs->name);
    return check_shape(path, &array[shard->array], theirs, shard);
}

static int by_place(const void *a, const void *b) {
    const rm_shard *x = a, *y = b;
    if (x->array != y->array) return x->array < y->array ? -1 : 1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->count > y->count) - (x->count < y->count);
}

static remat_status missing(const remat_array *ours, int64_t first, int64_t end) {
    if (first == 0 && end == elements_of(ours))
        FAIL(INVALID,
             "the optimizer's state has no '%s', which this model needs: give the flags of the run that was saved, "
             "including --train-only",
             ours->name);
    FAIL(IO, "the optimizer's state is damaged: elements %lld to %lld of '%s' are in no file", (long long)first,
         (long long)(end - 1), ours->name);
}

/* Sorted shards must cover every array without gaps or overlaps. */
static remat_status check_cover(const remat_array *array, int64_t n_arrays, const rm_safetensors *files,
                                const rm_shard *shard, int64_t n_shards) {
    int64_t k = 0;
    for (int64_t i = 0; i < n_arrays; i++) {
        int64_t at = 0, all = elements_of(&array[i]);
        for (; k < n_shards && shard[k].array == i; k++) {
            const rm_shard *p = &shard[k];
            if (p->first > at) return missing(&array[i], at, p->first);
            REQUIRE(p->first == at, IO, "%s: '%.200s' overlaps '%.200s' of %s: the optimizer's state is damaged",
                    files[p->file].path, files[p->file].array[p->entry].name,
                    files[shard[k - 1].file].array[shard[k - 1].entry].name, files[shard[k - 1].file].path);
            at += p->count;
        }
        if (at < all) return missing(&array[i], at, all);
    }
    return REMAT_OK;
}

remat_status rm_optimizer_shards_match(const remat_array *array, int64_t n_arrays, const rm_safetensors *files,
                                       int64_t n_files, rm_shard **shards, int64_t *n_shards) {
    int64_t n = 0, k = 0;
    remat_status status = REMAT_OK;
    for (int64_t f = 0; f < n_files; f++) n += files[f].count;
    rm_shard *shard = *shards = rm_calloc((size_t)n + 1, sizeof *shard);
    *n_shards = n;
    REQUIRE(shard, MEMORY, "no memory to list %lld shards of the optimizer's state", (long long)n);
    for (int32_t f = 0; f < n_files; f++)
        for (int32_t e = 0; e < files[f].count && !status; e++, k++) {
            shard[k] = (rm_shard){.file = f, .entry = e};
            status = place(array, n_arrays, files[f].path, &files[f].array[e], &shard[k]);
        }
    if (!status) qsort(shard, (size_t)n, sizeof *shard, by_place);
    if (!status) status = check_cover(array, n_arrays, files, shard, n);
    if (status) {
        rm_free(shard);
        *shards = NULL;
    }
    return status;
}

/* ---- Loading ---------------------------------------------------------------------------------------------------- */

remat_status rm_saved_file_check_size(const rm_saved_file *file) {
    int fd;
    uint64_t bytes;
    REQUIRE(rm_path_exists(file->path), IO, "%s is missing" RM_STATE_REMEDY, file->path);
    TRY(rm_file_open(file->path, &fd, &bytes));
    close(fd);
    REQUIRE(bytes == file->bytes, IO, "%s is not as it was saved (%llu bytes; saved were %llu)" RM_STATE_REMEDY,
            file->path, (unsigned long long)bytes, (unsigned long long)file->bytes);
    return REMAT_OK;
}

remat_status rm_saved_file_check(const rm_saved_file *file) {
    uint32_t crc;
    uint64_t bytes;
    TRY(rm_saved_file_check_size(file));
    TRY(rm_file_checksum(file->path, &bytes, &crc));
    REQUIRE(bytes == file->bytes && crc == file->crc32, IO,
            "%s is not as it was saved (checksum %08x; saved was %08x)" RM_STATE_REMEDY, file->path, crc, file->crc32);
    return REMAT_OK;
}

struct rm_optimizer_shards {
    const rm_saved_file *as_written;
    rm_safetensors *file; /* headers; a file is open only while it is read, because there may be thousands */
    int64_t n_files;
    remat_array *array;
    int64_t n_arrays;
    rm_shard *shard;
    int64_t n_shards;
};
typedef struct rm_optimizer_shards loading;

static remat_status open_file(rm_safetensors *file) {
    uint64_t size;
    return file->fd < 0 ? rm_file_open(file->path, &file->fd, &size) : REMAT_OK;
}

static void close_file(rm_safetensors *file) {
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

static remat_status read_headers(loading *l) {
    l->file = rm_calloc((size_t)l->n_files + 1, sizeof *l->file);
    REQUIRE(l->file, MEMORY, "no memory to open %lld files", (long long)l->n_files);
    for (int64_t i = 0; i < l->n_files; i++) l->file[i].fd = -1;
    for (int64_t i = 0; i < l->n_files; i++) {
        TRY(rm_safetensors_open(l->as_written[i].path, &l->file[i]));
        close_file(&l->file[i]);
    }
    return REMAT_OK;
}

/* The part of the shard that the session holds: sets *first (in the array), returns the length; 0: none. */
static int64_t wanted(const loading *l, const rm_shard *p, int64_t *first) {
    const remat_array *ours = &l->array[p->array];
    int64_t end = p->first + p->count < ours->first + ours->count ? p->first + p->count : ours->first + ours->count;
    *first = p->first > ours->first ? p->first : ours->first;
    return end > *first ? end - *first : 0;
}

/* A session that holds a part reads few files; only their checksums are computed. */
static remat_status check_files(const loading *l) {
    int64_t first;
    bool *used = rm_calloc((size_t)l->n_files + 1, sizeof *used);
    REQUIRE(used, MEMORY, "no memory to open %lld files", (long long)l->n_files);
    for (int64_t k = 0; k < l->n_shards; k++)
        if (wanted(l, &l->shard[k], &first)) used[l->shard[k].file] = true;
    remat_status status = REMAT_OK;
    for (int64_t i = 0; i < l->n_files && !status; i++)
        if (used[i]) status = rm_saved_file_check(&l->as_written[i]);
    rm_free(used);
    return status;
}

static remat_status read_shard(loading *l, const rm_shard *p, remat_session *session) {
    int64_t first, n = wanted(l, p, &first);
    rm_safetensors *file = &l->file[p->file];
    if (!n) return REMAT_OK;
    TRY(open_file(file));
    remat_status status = rm_stream_in(
        session, REMAT_OPTIMIZER, p->array, (uint64_t)(first - l->array[p->array].first) * sizeof(float),
        (uint64_t)n * sizeof(float), file, &file->array[p->entry], (uint64_t)(first - p->first) * sizeof(float));
    close_file(file);
    return status;
}

/* Invalid headers usually mean a damaged file, so report the damage instead. */
static remat_status blame(const loading *l, remat_status status) {
    char sentence[1024];
    if (status != REMAT_IO && status != REMAT_INVALID) return status;
    snprintf(sentence, sizeof sentence, "%s", remat_last_error());
    for (int64_t i = 0; i < l->n_files; i++) TRY(rm_saved_file_check(&l->as_written[i]));
    return rm_fail(status, "%s", sentence);
}

/* Headers tell where shards are. Before data are read, the checksum of their file is verified. Together the files have each element
 * exactly once, so the verified files contain all that this session needs. */
static remat_status look_at_all(loading *l, remat_session *session) {
    TRY(list_arrays(session, &l->array, &l->n_arrays));
    for (int64_t i = 0; i < l->n_files; i++) TRY(rm_saved_file_check_size(&l->as_written[i]));
    remat_status status = read_headers(l);
    if (!status)
        status = rm_optimizer_shards_match(l->array, l->n_arrays, l->file, l->n_files, &l->shard, &l->n_shards);
    return status ? blame(l, status) : check_files(l);
}

void rm_optimizer_shards_close(rm_optimizer_shards *l) {
    if (!l) return;
    for (int64_t i = 0; l->file && i < l->n_files; i++) rm_safetensors_free(&l->file[i]);
    rm_free(l->file);
    rm_free(l->array);
    rm_free(l->shard);
    rm_free(l);
}

remat_status rm_optimizer_shards_open(remat_session *session, const rm_saved_file *file, int64_t n,
                                      rm_optimizer_shards **out) {
    loading *l = rm_calloc(1, sizeof *l);
    *out = NULL;
    REQUIRE(l, MEMORY, "no memory to read the optimizer's state");
    l->as_written = file;
    l->n_files = n;
    remat_status status = look_at_all(l, session);
    if (status)
        rm_optimizer_shards_close(l);
    else
        *out = l;
    return status;
}

remat_status rm_optimizer_shards_fill(rm_optimizer_shards *shards, remat_session *session) {
    for (int64_t k = 0; k < shards->n_shards; k++) TRY(read_shard(shards, &shards->shard[k], session));
    return REMAT_OK;
}

remat_status rm_optimizer_shards_load(remat_session *session, const rm_saved_file *file, int64_t n) {
    rm_optimizer_shards *shards;
    TRY(rm_optimizer_shards_open(session, file, n, &shards));
    remat_status status = rm_optimizer_shards_fill(shards, session);
    rm_optimizer_shards_close(shards);
    return status;
}

/* weights.c: saves the arrays of a session to safetensors files, loads them, and copies them between sessions.
 * Parameters and buffers have PyTorch's names. Main entries: remat_save, remat_load, remat_copy_parameters. Files
 * are written and read a part at a time, so that memory does not grow with the largest array. */
#include "dist/group/half.h"
#include "engine/remat.h"
#include "memory/host.h"
#include "weights/header.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PART = 1 << 18, KINDS = REMAT_BUFFER + 1 };

/* ---- What is stored ---------------------------------------------------------------------------------------------- */

/* The counters are stored as arrays of one number. They are not arrays of the session. */
typedef enum { STEPS = KINDS, LAST_LR } counter;

typedef struct {
    int kind; /* remat_kind or counter */
    int64_t index;
    remat_array about; /* `name` is the name in the file */
    char *name;        /* owned; NULL: the session's */
} entry;

typedef struct {
    remat_session *session;
    int64_t count;
    entry *item;
    remat_array *about; /* of each */
} stored;

/* Prefixes of the names of arrays that are not weights. */
static const char *const prefix[KINDS] = {[REMAT_OPTIMIZER] = "optimizer/", [REMAT_CARRIED] = "carried/"};
static const remat_kind of_weights[] = {REMAT_PARAM, REMAT_BUFFER}, of_training[] = {REMAT_OPTIMIZER, REMAT_CARRIED};

static remat_status add_array(stored *all, remat_kind kind, int64_t index) {
    entry *e = &all->item[all->count++];
    *e = (entry){.kind = kind, .index = index};
    TRY(remat_array_info(all->session, kind, index, &e->about));
    int64_t whole = 1;
    for (int d = 0; d < e->about.rank; d++) whole *= e->about.dim[d];
    REQUIRE(e->about.count == whole, INVALID,
            "%s: the optimizer is sharded and this rank holds a part of its state; save weights alone, or do not shard",
            e->about.name);
    if (!prefix[kind]) return REMAT_OK;
    size_t bytes = strlen(prefix[kind]) + strlen(e->about.name) + 1;
    e->name = rm_malloc(bytes);
    REQUIRE(e->name, MEMORY, "no memory for the name %s", e->about.name);
    snprintf(e->name, bytes, "%s%s", prefix[kind], e->about.name);
    e->about.name = e->name;
    return REMAT_OK;
}

static remat_status add_arrays(stored *all, const remat_kind kind[2]) {
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < remat_count(all->session, kind[k]); i++) TRY(add_array(all, kind[k], i));
    return REMAT_OK;
}

static void add_counter(stored *all, counter which, const char *name) {
    all->item[all->count++] =
        (entry){.kind = (int)which, .about = {.name = name, .dtype = REMAT_F64, .bytes = sizeof(double), .count = 1}};
}

/* Free it even after an error. */
static remat_status list_stored(remat_session *session, remat_contents contents, stored *all) {
    REQUIRE(contents == REMAT_WEIGHTS || contents == REMAT_TRAINING, INVALID,
            "contents is %d; use REMAT_WEIGHTS or REMAT_TRAINING", (int)contents);
    int64_t most = 2;
    for (int kind = 0; kind < KINDS; kind++) most += remat_count(session, kind);
    *all = (stored){.session = session,
                    .item = rm_calloc((size_t)most, sizeof *all->item),
                    .about = rm_calloc((size_t)most, sizeof *all->about)};
    REQUIRE(all->item && all->about, MEMORY, "no memory for a list of %lld arrays", (long long)most);
    TRY(add_arrays(all, of_weights));
    if (contents == REMAT_TRAINING) {
        TRY(add_arrays(all, of_training));
        add_counter(all, STEPS, "optimizer/steps");
        add_counter(all, LAST_LR, "optimizer/last_lr");
    }
    for (int64_t i = 0; i < all->count; i++) all->about[i] = all->item[i].about;
    return REMAT_OK;
}

static void free_stored(stored *all) {
    for (int64_t i = 0; i < all->count; i++) rm_free(all->item[i].name);
    rm_free(all->item);
    rm_free(all->about);
}

static remat_status read_part(const stored *all, const entry *e, uint64_t first, void *data, uint64_t bytes) {
    double counter = e->kind == STEPS ? (double)remat_step_count(all->session) : remat_last_lr(all->session);
    if (e->kind < KINDS) return remat_read_part(all->session, e->kind, e->index, first, data, bytes);
    memcpy(data, &counter, sizeof counter);
    return REMAT_OK;
}

static remat_status write_part(const stored *all, const entry *e, uint64_t first, const void *data, uint64_t bytes) {
    double counter;
    if (e->kind < KINDS) return remat_write_part(all->session, e->kind, e->index, first, data, bytes);
    memcpy(&counter, data, sizeof counter);
    REQUIRE(counter >= 0 && counter < 0x1p53, IO, "%s is %g; the file is damaged, fetch or save it again",
            e->about.name, counter);
    if (e->kind == STEPS) remat_set_step_count(all->session, (int64_t)counter);
    if (e->kind == LAST_LR) remat_set_last_lr(all->session, counter);
    return REMAT_OK;
}

static uint64_t part_bytes(uint64_t done, uint64_t bytes) { return bytes - done < PART ? bytes - done : PART; }

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static remat_status write_all(int fd, const char *path, const char *data, size_t bytes) {
    while (bytes) {
        ssize_t put = write(fd, data, bytes);
        if (put < 0 && errno == EINTR) continue;
        REQUIRE(put >= 0, IO, "cannot write %s: %s", path, strerror(errno));
        data += put, bytes -= (size_t)put;
    }
    return REMAT_OK;
}

static remat_status write_arrays(const stored *all, int fd, const char *path, char *buffer) {
    for (int64_t i = 0; i < all->count; i++)
        for (uint64_t done = 0, n; (n = part_bytes(done, all->about[i].bytes)) > 0; done += n) {
            TRY(read_part(all, &all->item[i], done, buffer, n));
            TRY(write_all(fd, path, buffer, n));
        }
    return REMAT_OK;
}

static remat_status write_file(const stored *all, int fd, const char *path, char *buffer) {
    char *header;
    size_t bytes;
    TRY(rm_st_header_make(all->about, all->count, &header, &bytes));
    remat_status status = write_all(fd, path, header, bytes);
    rm_free(header);
    if (!status) status = write_arrays(all, fd, path, buffer);
    if (!status && fsync(fd) && errno != EINVAL)
        status = rm_fail(REMAT_IO, "cannot write %s: %s", path, strerror(errno));
    return status;
}

/* Writes to a temporary file and then renames it, so that a failure leaves an existing file unchanged. */
static remat_status replace(const stored *all, const char *path, char *buffer) {
    char partial[4096];
    int n = snprintf(partial, sizeof partial, "%s.partial", path);
    REQUIRE(n > 0 && n < (int)sizeof partial, INVALID, "the path %.60s... is too long", path);
    (void)unlink(partial);
    int fd = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    REQUIRE(fd >= 0, IO, "cannot create %s: %s", partial, strerror(errno));
    remat_status status = write_file(all, fd, partial, buffer);
    if (close(fd) && !status) status = rm_fail(REMAT_IO, "cannot write %s: %s", partial, strerror(errno));
    if (!status && rename(partial, path)) status = rm_fail(REMAT_IO, "cannot create %s: %s", path, strerror(errno));
    if (status) (void)unlink(partial);
    return status;
}

remat_status remat_save(remat_session *session, const char *path, remat_contents contents) {
    NEED(session, "a session");
    NEED(path, "a path");
    stored all = {.count = 0};
    char *buffer = rm_malloc(PART);
    remat_status status =
        buffer ? list_stored(session, contents, &all) : rm_fail(REMAT_MEMORY, "no memory to write %s", path);
    if (!status) status = replace(&all, path, buffer);
    free_stored(&all);
    rm_free(buffer);
    return status;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *path;
    int fd;
    uint64_t data_start;
    char *header;
    rm_st_array *array; /* sorted by offset; by name while they are matched */
    int64_t count;
} file;

static remat_status read_at(const file *f, uint64_t at, void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(f->fd, (char *)data + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        REQUIRE(got >= 0, IO, "cannot read %s: %s", f->path, strerror(errno));
        REQUIRE(got > 0, IO, "%s ends at byte %llu: it was cut short, fetch or save it again", f->path,
                (unsigned long long)(at + done));
        done += (size_t)got;
    }
    return REMAT_OK;
}

static remat_status read_header(file *f) {
    struct stat about;
    uint8_t prefix[8];
    uint64_t length = 0;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    REQUIRE(f->fd >= 0 && !fstat(f->fd, &about), IO, "cannot open %s: %s", f->path, strerror(errno));
    REQUIRE(S_ISREG(about.st_mode) && about.st_size >= 8, IO, "%s is not a safetensors file", f->path);
    TRY(read_at(f, 0, prefix, sizeof prefix));
    for (int i = 7; i >= 0; i--) length = length << 8 | prefix[i];
    REQUIRE(length <= RM_ST_MAX_HEADER, IO, "%s is not a safetensors file", f->path);
    REQUIRE(length <= (uint64_t)about.st_size - 8, IO, "%s ends inside its header: it was cut short, save it again",
            f->path);
    f->header = rm_malloc((size_t)length + 1);
    REQUIRE(f->header, MEMORY, "no memory for the header of %s", f->path);
    f->data_start = 8 + length;
    TRY(read_at(f, 8, f->header, (size_t)length));
    return rm_st_header_parse(f->path, f->header, (size_t)length, (uint64_t)about.st_size - f->data_start, &f->array,
                              &f->count);
}

static bool is_half(const rm_st_array *array) { return !strcmp(array->dtype, "F16") || !strcmp(array->dtype, "BF16"); }

static remat_status must_match(const file *f, const remat_array *ours, const rm_st_array *theirs) {
    bool same = ours->rank == theirs->rank;
    for (int d = 0; same && d < ours->rank; d++) same = ours->dim[d] == theirs->dim[d];
    REQUIRE(same, INVALID, "%s: '%s' has another shape than this graph's", f->path, ours->name);
    if (ours->dtype == REMAT_F64)
        REQUIRE(!strcmp(theirs->dtype, "F64"), INVALID, "%s: '%s' is %s; it must be F64", f->path, ours->name,
                theirs->dtype);
    else
        REQUIRE(!strcmp(theirs->dtype, "F32") || is_half(theirs), INVALID,
                "%s: '%s' is %s; weights must be F32, F16 or BF16", f->path, ours->name, theirs->dtype);
    return REMAT_OK;
}

/* Whether an array of the file may be ignored: PyTorch's batch norm counts batches in ".num_batches_tracked", and a
 * file of TRAINING has more arrays than weights. */
static bool is_ignored(const char *name, remat_contents contents) {
    static const char counter[] = ".num_batches_tracked";
    size_t n = strlen(name);
    bool of_training = false;
    for (int kind = 0; kind < KINDS && contents == REMAT_WEIGHTS; kind++)
        of_training |= prefix[kind] && !strncmp(name, prefix[kind], strlen(prefix[kind]));
    return of_training || (n >= sizeof counter - 1 && !strcmp(name + n - sizeof counter + 1, counter));
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const rm_st_array *)a)->name, ((const rm_st_array *)b)->name);
}

static const rm_st_array *find(const file *f, const char *name) {
    const rm_st_array key = {.name = name};
    return f->count ? bsearch(&key, f->array, (size_t)f->count, sizeof key, by_name) : NULL;
}

static bool is_stored(const stored *all, const char *name) {
    for (int64_t i = 0; i < all->count; i++)
        if (!strcmp(all->about[i].name, name)) return true;
    return false;
}

static remat_status match(const stored *all, remat_contents contents, file *f) {
    if (f->count) qsort(f->array, (size_t)f->count, sizeof *f->array, by_name);
    for (int64_t j = 0; j < f->count; j++) {
        const char *name = f->array[j].name;
        REQUIRE(is_ignored(name, contents) || is_stored(all, name), INVALID,
                "%s has '%.80s', which this graph does not have", f->path, name);
    }
    for (int64_t i = 0; i < all->count; i++) {
        const rm_st_array *theirs = find(f, all->about[i].name);
        REQUIRE(theirs, INVALID, "%s has no '%s', which this graph needs", f->path, all->about[i].name);
        TRY(must_match(f, &all->about[i], theirs));
    }
    return REMAT_OK;
}

static remat_status read_arrays(const stored *all, const file *f, char *buffer) {
    for (int64_t i = 0; i < all->count; i++) {
        const rm_st_array *theirs = find(f, all->about[i].name);
        const bool half = is_half(theirs);
        for (uint64_t done = 0, n; (n = part_bytes(done, all->about[i].bytes)) > 0; done += n) {
            const uint64_t stored_bytes = half ? n / 2 : n, at = half ? done / 2 : done;
            TRY(read_at(f, f->data_start + theirs->begin + at, buffer, (size_t)stored_bytes));
            if (half) rm_widen_in_place(buffer, n / sizeof(float), *theirs->dtype == 'B');
            TRY(write_part(all, &all->item[i], done, buffer, n));
        }
    }
    return REMAT_OK;
}

remat_status remat_load(remat_session *session, const char *path, remat_contents contents) {
    NEED(session, "a session");
    NEED(path, "a path");
    stored all = {.count = 0};
    file f = {.path = path, .fd = -1};
    char *buffer = rm_malloc(PART);
    remat_status status =
        buffer ? list_stored(session, contents, &all) : rm_fail(REMAT_MEMORY, "no memory to read %s", path);
    if (!status) status = read_header(&f);
    if (!status) status = match(&all, contents, &f);
    if (!status) status = read_arrays(&all, &f, buffer);
    if (f.fd >= 0) close(f.fd);
    rm_free(f.array);
    rm_free(f.header);
    free_stored(&all);
    rm_free(buffer);
    return status;
}

/* ---- From session to session ------------------------------------------------------------------------------------- */

static remat_status check_same(const remat_array *ours, const remat_session *from, remat_kind kind) {
    remat_array theirs;
    int64_t index = remat_find(from, kind, ours->name);
    REQUIRE(index >= 0, INVALID, "the other session has no '%s', which this session needs", ours->name);
    TRY(remat_array_info(from, kind, index, &theirs));
    bool same = ours->rank == theirs.rank && !memcmp(ours->dim, theirs.dim, (size_t)ours->rank * sizeof *ours->dim);
    REQUIRE(same, INVALID, "'%s' has another shape in the other session", ours->name);
    return REMAT_OK;
}

static remat_status copy_arrays(const stored *all, remat_session *from, char *buffer) {
    for (int64_t i = 0; i < all->count; i++) TRY(check_same(&all->about[i], from, all->item[i].kind));
    for (int64_t i = 0; i < all->count; i++) {
        const entry *to = &all->item[i];
        int64_t index = remat_find(from, to->kind, to->about.name);
        for (uint64_t done = 0, n; (n = part_bytes(done, to->about.bytes)) > 0; done += n) {
            TRY(remat_read_part(from, to->kind, index, done, buffer, n));
            TRY(write_part(all, to, done, buffer, n));
        }
    }
    return REMAT_OK;
}

remat_status remat_copy_parameters(remat_session *to, remat_session *from) {
    NEED(to, "a session");
    NEED(from, "a session");
    stored all = {.count = 0};
    char *buffer = rm_malloc(PART);
    remat_status status =
        buffer ? list_stored(to, REMAT_WEIGHTS, &all) : rm_fail(REMAT_MEMORY, "no memory to copy parameters");
    if (!status) status = copy_arrays(&all, from, buffer);
    free_stored(&all);
    rm_free(buffer);
    return status;
}

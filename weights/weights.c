/* weights.c: the parameters and buffers of a session in safetensors files, by PyTorch's names: remat_save_weights and
 * remat_load_weights. A little at a time, so that neither takes memory that grows with the largest array. */
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

enum { PART = 1 << 18 };

/* ---- What is stored ---------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t count, n_params;
    remat_array *array; /* parameters, then buffers */
} stored;

static remat_kind kind_of(const stored *all, int64_t i) { return i < all->n_params ? REMAT_PARAM : REMAT_BUFFER; }
static int64_t index_of(const stored *all, int64_t i) { return i < all->n_params ? i : i - all->n_params; }

/* all->array is to be freed in any case. */
static remat_status list_stored(const remat_session *session, stored *all) {
    all->n_params = remat_count(session, REMAT_PARAM);
    all->count = all->n_params + remat_count(session, REMAT_BUFFER);
    all->array = rm_calloc((size_t)all->count + 1, sizeof *all->array);
    REQUIRE(all->array, MEMORY, "no memory for a list of %lld arrays", (long long)all->count);
    for (int64_t i = 0; i < all->count; i++)
        TRY(remat_array_info(session, kind_of(all, i), index_of(all, i), &all->array[i]));
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

static remat_status write_arrays(remat_session *session, const stored *all, int fd, const char *path, char *buffer) {
    for (int64_t i = 0; i < all->count; i++)
        for (uint64_t done = 0, n; (n = part_bytes(done, all->array[i].bytes)) > 0; done += n) {
            TRY(remat_read_part(session, kind_of(all, i), index_of(all, i), done, buffer, n));
            TRY(write_all(fd, path, buffer, n));
        }
    return REMAT_OK;
}

static remat_status write_file(remat_session *session, const stored *all, int fd, const char *path, char *buffer) {
    char *header;
    size_t bytes;
    TRY(rm_st_header_make(all->array, all->count, &header, &bytes));
    remat_status status = write_all(fd, path, header, bytes);
    rm_free(header);
    if (!status) status = write_arrays(session, all, fd, path, buffer);
    if (!status && fsync(fd) && errno != EINVAL)
        status = rm_fail(REMAT_IO, "cannot write %s: %s", path, strerror(errno));
    return status;
}

/* To a file of another name, which then takes the place of the one that is there: a failure leaves that as it was. */
static remat_status replace(remat_session *session, const stored *all, const char *path, char *buffer) {
    char partial[4096];
    int n = snprintf(partial, sizeof partial, "%s.partial", path);
    REQUIRE(n > 0 && n < (int)sizeof partial, INVALID, "the path %.60s... is too long", path);
    (void)unlink(partial);
    int fd = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    REQUIRE(fd >= 0, IO, "cannot create %s: %s", partial, strerror(errno));
    remat_status status = write_file(session, all, fd, partial, buffer);
    if (close(fd) && !status) status = rm_fail(REMAT_IO, "cannot write %s: %s", partial, strerror(errno));
    if (!status && rename(partial, path)) status = rm_fail(REMAT_IO, "cannot create %s: %s", path, strerror(errno));
    if (status) (void)unlink(partial);
    return status;
}

remat_status remat_save_weights(remat_session *session, const char *path) {
    NEED(session, "a session");
    NEED(path, "a path");
    stored all = {.array = NULL};
    char *buffer = rm_malloc(PART);
    remat_status status = buffer ? list_stored(session, &all) : rm_fail(REMAT_MEMORY, "no memory to write %s", path);
    if (!status) status = replace(session, &all, path, buffer);
    rm_free(all.array);
    rm_free(buffer);
    return status;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *path;
    int fd;
    uint64_t data_start;
    char *header;
    rm_st_array *array; /* in order of place; by name while they are matched */
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
    REQUIRE(!strcmp(theirs->dtype, "F32") || is_half(theirs), INVALID,
            "%s: '%s' is %s; weights must be F32, F16 or BF16", f->path, ours->name, theirs->dtype);
    return REMAT_OK;
}

/* PyTorch's batch norm counts its batches there. */
static bool is_ignored(const char *name) {
    static const char counter[] = ".num_batches_tracked";
    size_t n = strlen(name);
    return n >= sizeof counter - 1 && !strcmp(name + n - sizeof counter + 1, counter);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const rm_st_array *)a)->name, ((const rm_st_array *)b)->name);
}

static const rm_st_array *find(const file *f, const char *name) {
    const rm_st_array key = {.name = name};
    return f->count ? bsearch(&key, f->array, (size_t)f->count, sizeof key, by_name) : NULL;
}

static remat_status match(const remat_session *session, const stored *all, file *f) {
    if (f->count) qsort(f->array, (size_t)f->count, sizeof *f->array, by_name);
    for (int64_t j = 0; j < f->count; j++) {
        const char *name = f->array[j].name;
        bool known = remat_find(session, REMAT_PARAM, name) >= 0 || remat_find(session, REMAT_BUFFER, name) >= 0;
        REQUIRE(known || is_ignored(name), INVALID, "%s has '%.80s', which this graph does not have", f->path, name);
    }
    for (int64_t i = 0; i < all->count; i++) {
        const rm_st_array *theirs = find(f, all->array[i].name);
        REQUIRE(theirs, INVALID, "%s has no '%s', which this graph needs", f->path, all->array[i].name);
        TRY(must_match(f, &all->array[i], theirs));
    }
    return REMAT_OK;
}

/* In place: n floats of 16 bits at the beginning become as many of 32, the last first. */
static void widen(char *buffer, uint64_t n, bool bf16) {
    for (uint64_t i = n; i-- > 0;) {
        uint16_t half;
        memcpy(&half, buffer + i * sizeof half, sizeof half);
        float x = bf16 ? rm_from_bf16(half) : rm_from_f16(half);
        memcpy(buffer + i * sizeof x, &x, sizeof x);
    }
}

static remat_status read_arrays(remat_session *session, const stored *all, const file *f, char *buffer) {
    for (int64_t i = 0; i < all->count; i++) {
        const rm_st_array *theirs = find(f, all->array[i].name);
        const bool half = is_half(theirs);
        for (uint64_t done = 0, n; (n = part_bytes(done, all->array[i].bytes)) > 0; done += n) {
            const uint64_t stored_bytes = half ? n / 2 : n, at = half ? done / 2 : done;
            TRY(read_at(f, f->data_start + theirs->begin + at, buffer, (size_t)stored_bytes));
            if (half) widen(buffer, n / sizeof(float), *theirs->dtype == 'B');
            TRY(remat_write_part(session, kind_of(all, i), index_of(all, i), done, buffer, n));
        }
    }
    return REMAT_OK;
}

remat_status remat_load_weights(remat_session *session, const char *path) {
    NEED(session, "a session");
    NEED(path, "a path");
    stored all = {.array = NULL};
    file f = {.path = path, .fd = -1};
    char *buffer = rm_malloc(PART);
    remat_status status = buffer ? list_stored(session, &all) : rm_fail(REMAT_MEMORY, "no memory to read %s", path);
    if (!status) status = read_header(&f);
    if (!status) status = match(session, &all, &f);
    if (!status) status = read_arrays(session, &all, &f, buffer);
    if (f.fd >= 0) close(f.fd);
    rm_free(f.array);
    rm_free(f.header);
    rm_free(all.array);
    rm_free(buffer);
    return status;
}

/* file.c: see file.h. */
#include "train/file.h"

#include "memory/host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

static remat_status open_plain(const char *path, int *fd, struct stat *about) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe is refused below, not waited for */
    if (*fd < 0 && errno == ENOENT) FAIL(IO, "%s does not exist: check the path", path);
    if (*fd < 0) FAIL(IO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(*fd, about) == 0 && S_ISREG(about->st_mode)) return REMAT_OK;
    bool directory = S_ISDIR(about->st_mode);
    close(*fd);
    *fd = -1;
    FAIL(IO, "%s is %s: give a regular file", path, directory ? "a directory" : "not a regular file");
}

remat_status rm_file_open(const char *path, int *fd, uint64_t *size) {
    struct stat about = {0};
    TRY(open_plain(path, fd, &about));
    *size = (uint64_t)about.st_size;
    return REMAT_OK;
}

remat_status rm_file_read_at(int fd, const char *path, uint64_t offset, void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)data + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) FAIL(IO, "cannot read %s: %s", path, strerror(errno));
        if (got == 0)
            FAIL(IO, "%s ends at byte %llu where %zu more were expected: it was cut short, fetch or save it again",
                 path, (unsigned long long)(offset + done), bytes - done);
        done += (size_t)got;
    }
    return REMAT_OK;
}

/* The probable size of the content: the file's size, or the size in the last four bytes of a gzip file. Both may be wrong (several gzip
 * members; a file that grows), so it is only a first guess, bounded by gzip's largest compression ratio. */
static size_t expected_bytes(int fd, uint64_t file_bytes, uint64_t limit) {
    uint8_t begin[2] = {0}, end[4] = {0};
    uint64_t expected = file_bytes;
    bool packed = file_bytes >= 18 && pread(fd, begin, 2, 0) == 2 && begin[0] == 0x1f && begin[1] == 0x8b;
    if (packed && pread(fd, end, 4, (off_t)file_bytes - 4) == 4)
        expected = end[0] | (uint64_t)end[1] << 8 | (uint64_t)end[2] << 16 | (uint64_t)end[3] << 24;
    if (packed && expected / 1032 > file_bytes) expected = file_bytes;
    return (size_t)(expected < limit ? expected : limit);
}

/* Grows the buffer to at least `wanted` bytes, plus a zero byte. */
static remat_status grow(const char *path, uint8_t **data, size_t *capacity, size_t wanted) {
    if (wanted < *capacity) return REMAT_OK;
    size_t larger = wanted + wanted / 2 + 65536;
    uint8_t *moved = rm_realloc(*data, larger);
    REQUIRE(moved, MEMORY, "no memory for %s: %zu bytes were wanted", path, larger);
    *data = moved;
    *capacity = larger;
    return REMAT_OK;
}

static remat_status read_some(gzFile file, const char *path, uint8_t *data, size_t bytes, size_t *got) {
    int n = gzread(file, data, (unsigned)bytes), code;
    *got = n > 0 ? (size_t)n : 0;
    if (n >= 0) return REMAT_OK;
    const char *why = gzerror(file, &code), *after = strstr(why, ">: "); /* "<fd:3>: incorrect data check" */
    if (after) why = after + 3;
    FAIL(IO, "%s is damaged (%s): fetch it again", path, code == Z_ERRNO ? strerror(errno) : why);
}

static remat_status read_first(gzFile file, const char *path, size_t expected, uint64_t most, uint8_t **data,
                               size_t *size) {
    size_t capacity = expected + 65536 + 1, got = 1;
    *size = 0;
    *data = rm_malloc(capacity); /* pages that are never written take no memory */
    REQUIRE(*data, MEMORY, "no memory for %s: %zu bytes were wanted", path, capacity);
    while (got && *size < most) {
        size_t part = most - *size < 65536 ? (size_t)(most - *size) : 65536;
        TRY(grow(path, data, &capacity, *size + part));
        TRY(read_some(file, path, *data + *size, part, &got));
        *size += got;
    }
    (*data)[*size] = 0;
    *data = rm_shrink(*data, *size + 1);
    return REMAT_OK;
}

/* *about: the file's stat. gzFile reads files that are not gzip unchanged. */
static remat_status open_packed(const char *path, struct stat *about, size_t *expected, uint64_t most, gzFile *file) {
    int fd;
    TRY(open_plain(path, &fd, about));
    *expected = expected_bytes(fd, (uint64_t)about->st_size, most);
    if ((*file = gzdopen(fd, "rb"))) return REMAT_OK;
    close(fd);
    FAIL(MEMORY, "no memory to read %s", path);
}

/* Only closing reports whether the last gzip block was complete. */
static remat_status close_packed(gzFile file, const char *path, remat_status status) {
    bool whole = gzclose(file) == Z_OK;
    return whole || status ? status : rm_fail(REMAT_IO, "%s ends too early: fetch it again", path);
}

remat_status rm_file_read_first(const char *path, uint64_t most, uint8_t **data, size_t *size) {
    struct stat about = {0};
    size_t expected;
    gzFile file;
    *data = NULL;
    TRY(open_packed(path, &about, &expected, most, &file));
    remat_status status = close_packed(file, path, read_first(file, path, expected, most, data, size));
    if (status) {
        rm_free(*data);
        *data = NULL;
    }
    return status;
}

remat_status rm_file_read(const char *path, uint64_t limit, uint8_t **data, size_t *size) {
    TRY(rm_file_read_first(path, limit + 1, data, size));
    if (*size <= limit) return REMAT_OK;
    rm_free(*data);
    *data = NULL;
    FAIL(IO, "%s is longer than %llu bytes, the limit for such a file", path, (unsigned long long)limit);
}

remat_status rm_file_begin(const char *path, rm_file_start **out) {
    struct stat about = {0};
    size_t expected;
    gzFile file;
    TRY(open_packed(path, &about, &expected, 0, &file));
    rm_file_start *start = rm_malloc(sizeof *start);
    remat_status status = start ? read_some(file, path, start->data, sizeof start->data, &start->size)
                                : rm_fail(REMAT_MEMORY, "no memory to open %s", path);
    if (start) start->file_bytes = (uint64_t)about.st_size, start->packed = !gzdirect(file);
    status = close_packed(file, path, status);
    if (status) rm_free(start);
    *out = status ? NULL : start;
    return status;
}

remat_status rm_file_checksum(const char *path, uint64_t *bytes, uint32_t *crc) {
    int fd;
    uint8_t block[16384];
    remat_status status = REMAT_OK;
    TRY(rm_file_open(path, &fd, bytes));
    *crc = (uint32_t)crc32(0, NULL, 0);
    for (uint64_t at = 0; at < *bytes && !status; at += sizeof block) {
        size_t part = *bytes - at < sizeof block ? (size_t)(*bytes - at) : sizeof block;
        status = rm_file_read_at(fd, path, at, block, part);
        *crc = (uint32_t)crc32_z(*crc, block, part);
    }
    close(fd);
    return status;
}

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

static bool no_room;

remat_status rm_file_failed(const char *verb, const char *path) {
    no_room = errno == ENOSPC || errno == EFBIG || errno == EDQUOT;
    FAIL(IO, "cannot %s %s: %s%s", verb, path, strerror(errno), no_room ? ": make room, or write elsewhere" : "");
}

bool rm_file_had_no_room(void) { return no_room; }
void rm_file_forget_no_room(void) { no_room = false; }

static rm_file_writer writer_of(int fd, const char *path) {
    return (rm_file_writer){.fd = fd, .path = path, .crc32 = (uint32_t)crc32(0, NULL, 0)};
}

/* O_EXCL: never writes to a file that others created meanwhile, nor through their link. */
remat_status rm_file_create(const char *path, rm_file_writer *out) {
    struct stat about;
    rm_file_remove(path);
    *out = writer_of(open(path, O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL | O_NOFOLLOW, 0666), path);
    if (out->fd >= 0) return REMAT_OK;
    bool strange = errno == EEXIST && !lstat(path, &about) && !S_ISREG(about.st_mode);
    REQUIRE(!strange, IO, "cannot create %s: %s is there, which Remat does not overwrite: remove it", path,
            S_ISLNK(about.st_mode) ? "a symbolic link" : "something that is not a regular file");
    return rm_file_failed("create", path);
}

/* Checks the file after opening it, because the name may change meaning in between. Without O_TRUNC and O_CREAT a plain file is not
 * changed. O_NONBLOCK: refuses a pipe without a reader instead of waiting. */
remat_status rm_file_open_stream(const char *path, rm_file_writer *out) {
    struct stat about = {0};
    *out = writer_of(open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), path);
    if (out->fd < 0 && errno == ENXIO)
        FAIL(IO, "cannot write to %s: nobody reads from it; start its reader first", path);
    if (out->fd < 0) return rm_file_failed("open", path);
    bool stream = fstat(out->fd, &about) == 0 && (S_ISCHR(about.st_mode) || S_ISFIFO(about.st_mode));
    if (stream && fcntl(out->fd, F_SETFL, 0) == 0) return REMAT_OK;
    rm_file_abandon(out);
    FAIL(IO, "%s is not a regular file, a pipe or a device: name another", path);
}

#define UNFINISHED ".unfinished"

static remat_status unfinished_of(const char *target, char out[RM_PATH_BYTES]) {
    int length = snprintf(out, RM_PATH_BYTES, "%s" UNFINISHED, target);
    REQUIRE(length > 0 && length < RM_PATH_BYTES, INVALID, "the path %.60s... is too long: give a shorter one", target);
    return REMAT_OK;
}

remat_status rm_file_replace(const char *path, rm_file_writer *out) {
    char unfinished[RM_PATH_BYTES];
    *out = writer_of(-1, path);
    if (rm_path_exists(path) && !rm_path_is_file(path)) return rm_file_open_stream(path, out);
    char *target = realpath(path, NULL);
    if (!target) target = strdup(path);
    REQUIRE(target, MEMORY, "no memory to write %s", path);
    remat_status status = unfinished_of(target, unfinished);
    if (!status) status = rm_file_create(unfinished, out);
    out->path = path;
    if (status)
        free(target);
    else
        out->target = target;
    return status;
}

/* Ends a replacement: the new file takes the old one's place, or is removed. */
static remat_status settle(rm_file_writer *writer, bool whole) {
    char unfinished[RM_PATH_BYTES];
    if (!writer->target || unfinished_of(writer->target, unfinished)) return REMAT_OK;
    bool failed = whole && rename(unfinished, writer->target);
    remat_status status = failed ? rm_file_failed("replace", writer->path) : REMAT_OK;
    if (!whole || failed) rm_file_remove(unfinished);
    free(writer->target);
    writer->target = NULL;
    return status;
}

remat_status rm_file_write(rm_file_writer *writer, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t put = write(writer->fd, (const char *)data + done, bytes - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return rm_file_failed("write", writer->path);
        done += (size_t)put;
    }
    writer->bytes += bytes;
    writer->crc32 = (uint32_t)crc32_z(writer->crc32, data, bytes);
    return REMAT_OK;
}

void rm_file_abandon(rm_file_writer *writer) {
    if (writer->fd >= 0) close(writer->fd);
    writer->fd = -1;
    (void)settle(writer, false);
}

void rm_file_remove(const char *path) {
    struct stat about;
    if (lstat(path, &about) == 0 && S_ISREG(about.st_mode)) unlink(path);
}

remat_status rm_file_finish(rm_file_writer *writer) {
    if (writer->fd < 0) return REMAT_OK;
    int synced = fsync(writer->fd);
    if (synced && (errno == EINVAL || errno == EROFS)) synced = 0; /* a terminal or a pipe has nothing to sync */
    int failed = synced ? errno : 0;
    if (close(writer->fd) && !failed) failed = errno;
    writer->fd = -1;
    errno = failed;
    if (!failed) return settle(writer, true);
    remat_status status = rm_file_failed("write", writer->path);
    (void)settle(writer, false);
    return status;
}

remat_status rm_file_flush_output(void) {
    bool bad = fflush(stdout) || ferror(stdout);
    if (bad) FAIL(IO, "cannot write the output: %s", strerror(errno));
    return REMAT_OK;
}

remat_status rm_directory_make(const char *path, const char *flag) {
    char partial[RM_PATH_BYTES];
    size_t length = strlen(path);
    REQUIRE(length > 0 && length < sizeof partial, INVALID, "the path %.60s... is too long", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] && path[i] != '/') continue;
        memcpy(partial, path, i);
        partial[i] = 0;
        if (mkdir(partial, 0777) && errno != EEXIST)
            FAIL(IO, "cannot create the directory %s: %s: choose another place for --%s", partial, strerror(errno),
                 flag);
    }
    return REMAT_OK;
}

remat_status rm_directory_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return rm_file_failed("open the directory", path);
    int failed = fsync(fd) && errno != EINVAL ? errno : 0; /* EINVAL: this file system does not support it */
    close(fd);
    errno = failed;
    return failed ? rm_file_failed("sync the directory", path) : REMAT_OK;
}

bool rm_path_exists(const char *path) {
    struct stat about;
    return stat(path, &about) == 0;
}

bool rm_path_is_file(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

bool rm_path_is_directory(const char *path) {
    struct stat at;
    return !stat(path, &at) && S_ISDIR(at.st_mode);
}

/* For a file that does not exist yet, resolves its directory. */
static bool resolve(const char *path, char out[RM_PATH_BYTES]) {
    char above[RM_PATH_BYTES], name[256];
    char *real = realpath(path, NULL);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (!real && n < sizeof above) {
        memcpy(above, path, n);
        above[n] = 0;
        char *slash = strrchr(above, '/');
        const char *last = slash ? slash + 1 : above;
        if (!*last || strlen(last) >= sizeof name) return false;
        strcpy(name, last);
        if (slash) slash[slash == above] = 0;
        real = realpath(slash ? above : ".", NULL);
        bool fits = real && !rm_path_join(out, RM_PATH_BYTES, real, name);
        free(real);
        return fits;
    }
    bool fits = real && strlen(real) < RM_PATH_BYTES;
    if (fits) strcpy(out, real);
    free(real);
    return fits;
}

bool rm_path_same(const char *a, const char *b) {
    char at_a[RM_PATH_BYTES], at_b[RM_PATH_BYTES];
    if (resolve(a, at_a) && resolve(b, at_b)) return !strcmp(at_a, at_b);
    size_t n = strlen(a), m = strlen(b);
    while (n > 1 && a[n - 1] == '/') n--;
    while (m > 1 && b[m - 1] == '/') m--;
    return n == m && !memcmp(a, b, n);
}

remat_status rm_path_join(char *out, size_t out_bytes, const char *directory, const char *name) {
    int wrote = snprintf(out, out_bytes, "%s/%s", directory, name);
    REQUIRE(wrote > 0 && (size_t)wrote < out_bytes, INVALID, "the path %.60s.../%s is too long", directory, name);
    return REMAT_OK;
}

bool rm_path_of_program(char *out, size_t out_bytes) {
    ssize_t n = readlink("/proc/self/exe", out, out_bytes - 1);
    out[n > 0 ? n : 0] = 0;
    return n > 0 && !access(out, X_OK);
}

/* The words of `text`, each ended by a zero byte, `bytes` bytes in total; one block, freed with rm_free. NULL: no memory. */
static char **split_words(const char *text, size_t bytes) {
    size_t words = 1, n = 0;
    for (size_t i = 0; i < bytes; i++) words += text[i] == 0;
    char **argv = rm_malloc((words + 1) * sizeof *argv + bytes + 1);
    if (!argv) return NULL;
    char *copy = (char *)(argv + words + 1);
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    for (char *word = copy; word < copy + bytes; word += strlen(word) + 1) argv[n++] = word;
    argv[n] = NULL;
    return argv;
}

remat_status rm_program_words(char ***out) {
    size_t room = 1 << 21; /* the longest command line */
    *out = NULL;
    FILE *file = fopen("/proc/self/cmdline", "re");
    REQUIRE(file, IO, "cannot read /proc/self/cmdline: %s", strerror(errno));
    char *text = rm_malloc(room);
    if (text) *out = split_words(text, fread(text, 1, room, file));
    fclose(file);
    rm_free(text);
    REQUIRE(*out, MEMORY, "no memory for the command line");
    return REMAT_OK;
}

bool rm_path_has_program(const char *name) {
    const char *path = getenv("PATH");
    char full[RM_PATH_BYTES];
    for (const char *at = path; at; at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL) {
        snprintf(full, sizeof full, "%.*s/%s", (int)strcspn(at, ":"), at, name);
        if (rm_path_is_file(full) && !access(full, X_OK)) return true;
    }
    return false;
}

/* file.c: see file.h. */
#include "train/file.h"

#include "memory/host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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
    FAIL(IO, "%s is %s: give a plain file", path, directory ? "a directory" : "not a file that can be read twice");
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

/* What reading will probably give: the file's size, or what a gzip file says of itself in its last four bytes. Both may lie
 * (several gzip members; a file that grows), so it is no more than a start; and nothing unpacks to more than so many times
 * itself. */
static size_t expected_bytes(int fd, uint64_t file_bytes, uint64_t limit) {
    uint8_t begin[2] = {0}, end[4] = {0};
    uint64_t expected = file_bytes;
    bool packed = file_bytes >= 18 && pread(fd, begin, 2, 0) == 2 && begin[0] == 0x1f && begin[1] == 0x8b;
    if (packed && pread(fd, end, 4, (off_t)file_bytes - 4) == 4)
        expected = end[0] | (uint64_t)end[1] << 8 | (uint64_t)end[2] << 16 | (uint64_t)end[3] << 24;
    if (packed && expected / 1032 > file_bytes) expected = file_bytes;
    return (size_t)(expected < limit ? expected : limit);
}

/* Grows the buffer to at least `wanted` bytes and one for the zero. */
static remat_status grow(const char *path, uint8_t **data, size_t *capacity, size_t wanted) {
    if (wanted < *capacity) return REMAT_OK;
    size_t larger = wanted + wanted / 2 + 65536;
    uint8_t *moved = rm_realloc(*data, larger);
    REQUIRE(moved, MEMORY, "no memory for %s: %zu bytes were wanted", path, larger);
    *data = moved;
    *capacity = larger;
    return REMAT_OK;
}

static remat_status read_all(gzFile file, const char *path, size_t expected, uint64_t limit, uint8_t **data,
                             size_t *size) {
    size_t capacity = expected + 65536 + 1;
    *size = 0;
    *data = rm_malloc(capacity); /* pages that nothing is written to take no memory */
    REQUIRE(*data, MEMORY, "no memory for %s: %zu bytes were wanted", path, capacity);
    for (;;) {
        TRY(grow(path, data, &capacity, *size + 65536));
        int got = gzread(file, *data + *size, 65536);
        if (got < 0) {
            int code;
            const char *why = gzerror(file, &code);
            FAIL(IO, "%s is damaged (%s): fetch it again", path, code == Z_ERRNO ? strerror(errno) : why);
        }
        if (got == 0) break;
        *size += (size_t)got;
        REQUIRE(*size <= limit, IO, "%s is longer than %llu bytes, the most that is read from such a file", path,
                (unsigned long long)limit);
    }
    (*data)[*size] = 0;
    *data = rm_shrink(*data, *size + 1);
    return REMAT_OK;
}

remat_status rm_file_read(const char *path, uint64_t limit, uint8_t **data, size_t *size) {
    struct stat about = {0};
    int fd;
    *data = NULL;
    TRY(open_plain(path, &fd, &about));
    size_t expected = expected_bytes(fd, (uint64_t)about.st_size, limit);
    gzFile file = gzdopen(fd, "rb"); /* passes what is not gzip through as it is */
    if (!file) {
        close(fd);
        FAIL(MEMORY, "no memory to read %s", path);
    }
    remat_status status = read_all(file, path, expected, limit, data, size);
    /* Only closing tells whether the last gzip block was whole. */
    if (gzclose(file) != Z_OK && !status) status = rm_fail(REMAT_IO, "%s ends too early: fetch it again", path);
    if (status) {
        rm_free(*data);
        *data = NULL;
    }
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

remat_status rm_file_create(const char *path, rm_file_writer *out) {
    *out = (rm_file_writer){.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), .path = path};
    out->crc32 = (uint32_t)crc32(0, NULL, 0);
    if (out->fd < 0) FAIL(IO, "cannot create %s: %s", path, strerror(errno));
    return REMAT_OK;
}

static remat_status write_failed(const char *path) {
    const char *remedy = errno == ENOSPC || errno == EFBIG || errno == EDQUOT ? ": make room, or save elsewhere" : "";
    FAIL(IO, "cannot write %s: %s%s", path, strerror(errno), remedy);
}

remat_status rm_file_write(rm_file_writer *writer, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t put = write(writer->fd, (const char *)data + done, bytes - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return write_failed(writer->path);
        done += (size_t)put;
    }
    writer->bytes += bytes;
    writer->crc32 = (uint32_t)crc32_z(writer->crc32, data, bytes);
    return REMAT_OK;
}

void rm_file_abandon(rm_file_writer *writer) {
    if (writer->fd >= 0) close(writer->fd);
    writer->fd = -1;
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
    return failed ? write_failed(writer->path) : REMAT_OK;
}

remat_status rm_file_flush_output(void) {
    bool bad = fflush(stdout) || ferror(stdout);
    if (bad) FAIL(IO, "cannot write the output: %s", strerror(errno));
    return REMAT_OK;
}

remat_status rm_directory_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) FAIL(IO, "cannot open the directory %s: %s", path, strerror(errno));
    int failed = fsync(fd) && errno != EINVAL ? errno : 0; /* EINVAL: this file system has no such thing */
    close(fd);
    if (failed) FAIL(IO, "cannot sync the directory %s: %s", path, strerror(failed));
    return REMAT_OK;
}

bool rm_path_exists(const char *path) {
    struct stat about;
    return stat(path, &about) == 0;
}

bool rm_path_is_file(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
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

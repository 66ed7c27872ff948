/* trace_file.c: see trace_file.h.
 *
 *     {"otherData":{"start_ns":"17..."},"traceEvents":[      HEAD, of a fixed length
 *     {},                                                    so that every event can begin with a comma
 *     {"ph":"X", ...},
 *     {"ph":"X", ...}
 *     ]}                                                     TAIL, which the next write overwrites */
#define _GNU_SOURCE
#include "engine/report/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/host.h"

#define HEAD                                                                                                           \
    "{\"otherData\":{\"start_ns\":\"%020" PRIu64 "\"},\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0}"
#define TAIL "\n]}\n"
enum {
    TAIL_BYTES = RM_TRACE_TAIL_BYTES,
    NUMBER_AT = sizeof "{\"otherData\":{\"start_ns\":\"" - 1,
    END_BYTES = 1 << 14
};

static remat_status cannot(const rm_trace_file *file, const char *verb, int error) {
    FAIL(IO, "the timeline %s cannot be %s: %s; give a file that can be written", file->path, verb, strerror(error));
}

/* All or nothing. */
static remat_status put(const rm_trace_file *file, const char *text, size_t bytes, off_t at) {
    ssize_t done;
    while ((done = pwrite(file->fd, text, bytes, at)) < 0 && errno == EINTR) continue;
    return done == (ssize_t)bytes ? REMAT_OK : cannot(file, "written", done < 0 ? errno : ENOSPC);
}

/* ---- Head ----------------------------------------------------------------------------------------------------- */

static remat_status begin(const rm_trace_file *file) {
    char text[200];
    int bytes = snprintf(text, sizeof text, HEAD TAIL, rm_clock_ns(CLOCK_REALTIME));
    if (ftruncate(file->fd, 0)) return cannot(file, "written", errno);
    return put(file, text, (size_t)bytes, 0);
}

static remat_status read_start(rm_trace_file *file) {
    char head[NUMBER_AT + 21] = "";
    if (pread(file->fd, head, NUMBER_AT + 20, 0) < 0) return cannot(file, "read", errno);
    bool ours = !strncmp(head, HEAD, NUMBER_AT);
    file->start_ns = ours ? strtoull(head + NUMBER_AT, NULL, 10) : 0;
    REQUIRE(file->start_ns, INVALID, "%s is not a timeline of Remat and was not changed; name another file",
            file->path);
    return REMAT_OK;
}

/* ---- End ------------------------------------------------------------------------------------------------------ */

/* Where the last event begins, of which only a part may have been written; 0: not found. */
static off_t last_event(const rm_trace_file *file, off_t size) {
    char end[END_BYTES];
    off_t from = size > END_BYTES ? size - END_BYTES : 0;
    ssize_t n = pread(file->fd, end, END_BYTES, from);
    for (ssize_t i = n - 2; i > 0; i--)
        if (end[i] == ',' && end[i + 1] == '\n') return from + i;
    return 0;
}

/* Where TAIL begins, which is written again if it is missing. */
static remat_status find_end(const rm_trace_file *file, off_t *end) {
    struct stat about;
    char tail[TAIL_BYTES] = "";
    if (fstat(file->fd, &about)) return cannot(file, "read", errno);
    *end = about.st_size - TAIL_BYTES;
    if (*end > 0 && pread(file->fd, tail, TAIL_BYTES, *end) == TAIL_BYTES && !memcmp(tail, TAIL, TAIL_BYTES))
        return REMAT_OK;
    *end = last_event(file, about.st_size);
    REQUIRE(*end, INVALID, "%s is not a timeline of Remat; remove it, or name another file", file->path);
    if (ftruncate(file->fd, *end)) return cannot(file, "written", errno);
    return put(file, TAIL, TAIL_BYTES, *end);
}

/* ---- Entries -------------------------------------------------------------------------------------------------- */

/* Waits half a second at most: a process that was stopped in the middle of a write holds the lock. */
static bool lock(int fd) {
    for (int try = 0; flock(fd, LOCK_EX | LOCK_NB); try++) {
        if (try == 2500) return false;
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    return true;
}

static remat_status open_file(rm_trace_file *file, bool append) {
    struct stat about;
    off_t end;
    REQUIRE(file->path, MEMORY, "out of memory for a timeline");
    file->fd = open(file->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file->fd < 0 || fstat(file->fd, &about)) return cannot(file, "opened", errno);
    REQUIRE(S_ISREG(about.st_mode), INVALID, "the timeline %s is not a regular file; name one", file->path);
    if (!lock(file->fd)) return cannot(file, "locked", errno);
    remat_status status = about.st_size ? read_start(file) : REMAT_OK; /* nothing but a timeline is replaced */
    file->start_ns = 0;
    if (!status) status = append && about.st_size ? find_end(file, &end) : begin(file);
    rm_trace_file_unlock(file);
    return status;
}

remat_status rm_trace_file_open(const char *path, bool append, rm_trace_file *out) {
    *out = (rm_trace_file){.fd = -1, .path = rm_strdup(path)};
    return open_file(out, append);
}

void rm_trace_file_close(rm_trace_file *file) {
    if (file->fd >= 0) close(file->fd);
    rm_free(file->path);
    *file = (rm_trace_file){.fd = -1};
}

remat_status rm_trace_file_lock(rm_trace_file *file) {
    REQUIRE(lock(file->fd), IO, "another process keeps the timeline %s locked; continue that process, or end it",
            file->path);
    remat_status status = file->start_ns ? REMAT_OK : read_start(file);
    if (status) rm_trace_file_unlock(file);
    return status;
}

void rm_trace_file_unlock(const rm_trace_file *file) { flock(file->fd, LOCK_UN); }

/* One call writes text and tail, so that only a kill in its middle leaves the file without a tail. A full disk does not:
 * the tail that was there is written again. */
remat_status rm_trace_file_append(const rm_trace_file *file, char *text, size_t bytes) {
    off_t end;
    TRY(find_end(file, &end));
    memcpy(text + bytes, TAIL, TAIL_BYTES);
    remat_status status = put(file, text, bytes + TAIL_BYTES, end);
    if (!status) return REMAT_OK;
    rm_reason why = rm_reason_kept();
    if (!ftruncate(file->fd, end)) (void)put(file, TAIL, TAIL_BYTES, end);
    return rm_reason_again(status, &why);
}

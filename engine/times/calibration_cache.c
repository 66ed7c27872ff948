/* calibration_cache.c: see calibration_cache.h. */
#include "engine/times/calibration_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory/host.h"

static const char first_line[] = "remat calibration 1\n";

enum { LARGEST_FILE = 4 << 20 }; /* RM_TIMES_MOST full lines take half of it */

/* ---- Entries -------------------------------------------------------------------------------------------------- */

void rm_times_free(rm_times *times) {
    rm_free(times->item);
    *times = (rm_times){0};
}

const rm_time_entry *rm_times_find(const rm_times *times, uint64_t key) {
    for (int64_t i = 0; i < times->count; i++)
        if (times->item[i].key == key) return &times->item[i];
    return NULL;
}

static remat_status make_room(rm_times *times) {
    if (times->count == RM_TIMES_MOST)
        memmove(times->item, times->item + 1, (size_t)--times->count * sizeof *times->item);
    REQUIRE(rm_grow(&times->item, &times->capacity, times->count + 1, sizeof *times->item), MEMORY,
            "out of memory for %" PRId64 " measured times", times->count + 1);
    return REMAT_OK;
}

static void copy_note(char *to, const char *from) {
    size_t n = 0;
    for (; from[n] && n < RM_TIME_NOTE - 1; n++) to[n] = from[n] >= ' ' && from[n] <= '~' ? from[n] : '?';
    to[n] = 0;
}

remat_status rm_times_put(rm_times *times, uint64_t key, uint64_t time_ns, const char *note) {
    if (!key || !time_ns || time_ns > RM_TIME_MOST_NS) return REMAT_OK;
    rm_time_entry *entry = (rm_time_entry *)rm_times_find(times, key);
    if (!entry) {
        TRY(make_room(times));
        entry = &times->item[times->count++];
    }
    entry->key = key;
    entry->time_ns = time_ns;
    copy_note(entry->note, note);
    return REMAT_OK;
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

/* Reads at most 20 digits of `base` at the start of a line. Returns the rest, or NULL if there are none or too many. */
static const char *read_number(const char *at, const char *end, unsigned base, uint64_t *out) {
    const char *start = at;
    *out = 0;
    for (; at < end; at++) {
        unsigned digit = *at >= '0' && *at <= '9'   ? (unsigned)(*at - '0')
                         : *at >= 'a' && *at <= 'f' ? (unsigned)(*at - 'a') + 10
                                                    : 99;
        if (digit >= base) break;
        if (__builtin_mul_overflow(*out, (uint64_t)base, out) || __builtin_add_overflow(*out, (uint64_t)digit, out))
            return NULL;
    }
    return at > start ? at : NULL;
}

static remat_status parse_line(rm_times *times, const char *at, const char *end) {
    uint64_t key, time_ns;
    char note[RM_TIME_NOTE];
    if (!(at = read_number(at, end, 16, &key)) || at == end || *at++ != ' ') return REMAT_OK;
    if (!(at = read_number(at, end, 10, &time_ns)) || (at < end && *at++ != ' ')) return REMAT_OK;
    size_t length = (size_t)(end - at) < sizeof note - 1 ? (size_t)(end - at) : sizeof note - 1;
    memcpy(note, at, length);
    note[length] = 0;
    return rm_times_put(times, key, time_ns, note);
}

/* A last line without a newline may have lost digits, so it is ignored. */
remat_status rm_times_parse(rm_times *times, const char *text, size_t length) {
    size_t head = sizeof first_line - 1;
    if (length < head || memcmp(text, first_line, head)) return REMAT_OK;
    const char *at = text + head, *end = text + length, *stop;
    for (; at < end && (stop = memchr(at, '\n', (size_t)(end - at))); at = stop + 1) TRY(parse_line(times, at, stop));
    return REMAT_OK;
}

void rm_times_print(const rm_times *times, FILE *file) {
    fputs(first_line, file);
    for (int64_t i = 0; i < times->count; i++)
        fprintf(file, "%016" PRIx64 " %" PRIu64 " %s\n", times->item[i].key, times->item[i].time_ns,
                times->item[i].note);
}

/* ---- Files ---------------------------------------------------------------------------------------------------- */

static remat_status must_be_ours(const char *path, const char *text, size_t length) {
    size_t head = sizeof first_line - 1;
    REQUIRE(
        !length || (length >= head && !memcmp(text, first_line, head)), INVALID,
        "{calibration}: %s is not a file of measured times (its first line is not \"%.*s\"), so it was not changed: "
        "give another "
        "file, or a new one",
        path, (int)head - 1, first_line);
    return REMAT_OK;
}

/* Reads the text of a file of `size` bytes. Of a file that is too long it reads only the start. */
static remat_status parse_file(rm_times *times, const char *path, int file, off_t size) {
    bool whole = size <= LARGEST_FILE;
    size_t want = whole ? (size_t)size : sizeof first_line - 1;
    char *text = rm_malloc(want + 1);
    REQUIRE(text, MEMORY, "out of memory for reading %s", path);
    ssize_t got = pread(file, text, want, 0);
    remat_status status = got < 0 ? REMAT_OK : must_be_ours(path, text, (size_t)got);
    if (!status && whole && got > 0) status = rm_times_parse(times, text, (size_t)got);
    rm_free(text);
    return status;
}

/* Checked before opening: opening a device may have effects, and opening a pipe waits. */
remat_status rm_times_read(rm_times *times, const char *path) {
    struct stat about;
    if (stat(path, &about)) return REMAT_OK;
    REQUIRE(S_ISREG(about.st_mode), INVALID, "{calibration}: %s is not a regular file: give another", path);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return REMAT_OK;
    remat_status status = fstat(file, &about) ? REMAT_OK : parse_file(times, path, file, about.st_size);
    close(file);
    return status;
}

/* Locks the file itself, so that no lock file remains. Writers replace the file, so the locked file may be gone by then; if so, it tries
 * again. Returns a descriptor that holds the lock, or -1 after half a second and where files cannot be locked; times that another
 * process adds at the same moment may then be lost. */
static int lock(const char *path) {
    enum { TRIES = 500 };
    for (int i = 0; i < TRIES; i++) {
        struct stat held, there;
        int file = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
        if (file < 0) return -1;
        bool locked = !flock(file, LOCK_EX | LOCK_NB), busy = !locked && errno == EWOULDBLOCK;
        if (locked && !fstat(file, &held) && !stat(path, &there) && held.st_ino == there.st_ino) return file;
        close(file);
        if (!locked && !busy) return -1;
        if (busy) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return -1;
}

/* Writes a temporary file next to `path`, then renames it. */
static remat_status replace(const rm_times *times, const char *path) {
    size_t length = strlen(path) + 8;
    char *temporary = rm_malloc(length);
    REQUIRE(temporary, MEMORY, "out of memory for the name %s", path);
    snprintf(temporary, length, "%s.XXXXXX", path);
    int descriptor = mkstemp(temporary);
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (file) rm_times_print(times, file);
    bool good = file && !ferror(file);
    if (file) good = !fclose(file) && good;
    good = good && !rename(temporary, path);
    int reason = errno;
    if (!file && descriptor >= 0) close(descriptor);
    if (!good && descriptor >= 0) unlink(temporary);
    rm_free(temporary);
    REQUIRE(good, IO, "measured times cannot be written to %s: %s", path, strerror(reason));
    return REMAT_OK;
}

/* Keeps times that another process has added meanwhile. */
static remat_status merge(const rm_times *times, const char *path) {
    rm_times all = {0};
    remat_status status = rm_times_read(&all, path);
    for (int64_t i = 0; !status && i < times->count; i++)
        status = rm_times_put(&all, times->item[i].key, times->item[i].time_ns, times->item[i].note);
    if (!status) status = replace(&all, path);
    rm_times_free(&all);
    return status;
}

/* Follows a symbolic link first, so that its target is replaced. Refuses anything but a regular file before opening it for the lock. */
remat_status rm_times_write(const rm_times *times, const char *path) {
    char target[PATH_MAX];
    struct stat about;
    bool link = !lstat(path, &about) && S_ISLNK(about.st_mode), there = realpath(path, target);
    REQUIRE(there || !link, IO, "measured times cannot be written to %s: broken symbolic link", path);
    REQUIRE(!there || stat(target, &about) || S_ISREG(about.st_mode), INVALID,
            "measured times cannot be written to %s: not a regular file", path);
    const char *name = there ? target : path;
    int held = lock(name);
    remat_status status = merge(times, name);
    if (held >= 0) close(held);
    return status;
}

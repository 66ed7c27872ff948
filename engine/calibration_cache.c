/* calibration_cache.c: see calibration_cache.h. */
#include "engine/calibration_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/host.h"

static const char first_line[] = "remat calibration 1\n";

enum { LARGEST_FILE = 4 << 20 }; /* RM_TIMES_MOST full lines fit in a half of it */

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
    if (times->count == RM_TIMES_MOST) {
        memmove(times->item, times->item + 1, (size_t)--times->count * sizeof *times->item);
    } else if (times->count == times->capacity) {
        int64_t capacity = times->capacity ? 2 * times->capacity : 32;
        void *larger = rm_realloc(times->item, (size_t)capacity * sizeof *times->item);
        REQUIRE(larger, MEMORY, "out of memory for %" PRId64 " measured times", capacity);
        times->item = larger;
        times->capacity = capacity;
    }
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

/* At most 20 digits of `base` at the start of a line; what follows them, or NULL where there are none or too many. */
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

/* A last line without its end may have lost some digits: it does not count. */
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

remat_status rm_times_read(rm_times *times, const char *path) {
    struct stat about;
    remat_status status = REMAT_OK;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return REMAT_OK;
    if (!fstat(file, &about) && S_ISREG(about.st_mode) && about.st_size > 0 && about.st_size <= LARGEST_FILE) {
        char *text = rm_malloc((size_t)about.st_size);
        ssize_t got = text ? read(file, text, (size_t)about.st_size) : -1;
        if (!text) status = rm_fail(REMAT_MEMORY, "out of memory for reading %s", path);
        if (got > 0) status = rm_times_parse(times, text, (size_t)got);
        rm_free(text);
    }
    close(file);
    return status;
}

remat_status rm_times_write(const rm_times *times, const char *path) {
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
    REQUIRE(good, IO, "measured times cannot be kept in %s: %s", path, strerror(reason));
    return REMAT_OK;
}

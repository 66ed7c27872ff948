/* calibration_cache.h: a file of measured times that later runs reuse. Main entries: rm_times_read, rm_times_write. It knows keys and
 * times; calibrate.c knows what a key means.
 *
 *   remat calibration 1
 *   7c0c5ff6dd7e8a01 183250 lstm tau 128, batch 4: forward drop          key, nanoseconds, a note for people
 *
 * The file is a convenience: an unreadable file counts as empty, and invalid lines are skipped. A file of another kind is refused
 * and never overwritten. Writing replaces the whole file under a lock (a temporary file, then rename), so concurrent runs never see
 * half a file and keep each other's times. */
#ifndef RM_CALIBRATION_CACHE_H
#define RM_CALIBRATION_CACHE_H

#include <stdio.h>

#include "engine/status.h"

enum { RM_TIME_NOTE = 96, RM_TIMES_MOST = 16384 };

typedef struct {
    uint64_t key, time_ns; /* time_ns 1 .. RM_TIME_MOST_NS */
    char note[RM_TIME_NOTE];
} rm_time_entry;
#define RM_TIME_MOST_NS 100000000000000u /* a little over a day */

typedef struct {
    rm_time_entry *item; /* in order of first appearance; keys differ */
    int64_t count, capacity;
} rm_times;
void rm_times_free(rm_times *times); /* accepts a zeroed one, and leaves it zeroed */

const rm_time_entry *rm_times_find(const rm_times *times, uint64_t key); /* NULL: not found */

/* Adds or replaces an entry. Above RM_TIMES_MOST entries it removes the oldest. It ignores key 0 and times out of range. A long note is
 * truncated, and unprintable characters become '?'. MEMORY. */
remat_status rm_times_put(rm_times *times, uint64_t key, uint64_t time_ns, const char *note);

/* parse adds the entries of a text, which may be any bytes (MEMORY). print writes a text that parse reads back unchanged. */
remat_status rm_times_parse(rm_times *times, const char *text, size_t length);
void rm_times_print(const rm_times *times, FILE *file);

/* Adds the entries of a file; none if the file is missing, empty, damaged or unreadable. INVALID: not a regular file, or a file of
 * another kind. MEMORY. */
remat_status rm_times_read(rm_times *times, const char *path);

/* Merges these times into the file and replaces equal keys; follows a symbolic link. IO: the file cannot be written; INVALID, as
 * rm_times_read. On an error the file is unchanged. */
remat_status rm_times_write(const rm_times *times, const char *path);

#endif

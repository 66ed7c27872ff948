/* calibration_cache.h: measured times, kept in a file from run to run. Main entries: rm_times_read, rm_times_write. Knows
 * keys and times; what a key stands for is calibrate.c's business.
 *
 *   remat calibration 1
 *   7c0c5ff6dd7e8a01 183250 lstm tau 128, batch 4: forward drop          key, nanoseconds, a note for people
 *
 * The file is a convenience: what cannot be read counts as not there, and a line that makes no sense is skipped. But a file
 * that is something else is nobody's to overwrite: it is refused. It is replaced as a whole (a temporary file, then rename),
 * so that runs side by side never see half of one, under a lock, and what another run added meanwhile stays. */
#ifndef RM_CALIBRATION_CACHE_H
#define RM_CALIBRATION_CACHE_H

#include <stdio.h>

#include "engine/status.h"

enum { RM_TIME_NOTE = 96, RM_TIMES_MOST = 16384 };

typedef struct {
    uint64_t key, time_ns; /* time_ns 1 .. RM_TIME_MOST_NS */
    char note[RM_TIME_NOTE];
} rm_time_entry;
#define RM_TIME_MOST_NS 100000000000000u /* a day and a bit */

typedef struct {
    rm_time_entry *item; /* in order of first appearance; keys differ */
    int64_t count, capacity;
} rm_times;
void rm_times_free(rm_times *times); /* zeroed allowed; leaves it zeroed */

const rm_time_entry *rm_times_find(const rm_times *times, uint64_t key); /* NULL: not there */

/* Adds or replaces. Beyond RM_TIMES_MOST entries the oldest goes. A time out of range or without a key (0) is dropped.
 * The note is cut where it is too long, and what is not printable becomes '?'. MEMORY. */
remat_status rm_times_put(rm_times *times, uint64_t key, uint64_t time_ns, const char *note);

/* Adds what a text holds; any bytes. MEMORY. And writes one: what rm_times_parse reads back the same. */
remat_status rm_times_parse(rm_times *times, const char *text, size_t length);
void rm_times_print(const rm_times *times, FILE *file);

/* Adds what a file holds; nothing if there is none, it is empty or damaged, or cannot be read. INVALID: it is no plain file,
 * or does not begin as these do. MEMORY. */
remat_status rm_times_read(rm_times *times, const char *path);

/* Puts these times into the file beside those that it has, the same keys replaced; a link's target, where it is one. IO: it
 * could not be written; INVALID, as rm_times_read says. It is then as it was. */
remat_status rm_times_write(const rm_times *times, const char *path);

#endif

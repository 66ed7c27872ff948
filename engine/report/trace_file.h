/* trace_file.h: a file in Chrome's trace event format that several processes append to. It ends with the closing brackets
 * after every write, so it can be read at any time. A process that is killed while it writes may leave the last write
 * unfinished; the next writer cuts it off. timeline_events.c decides what is written. */
#ifndef RM_TRACE_FILE_H
#define RM_TRACE_FILE_H

#include "engine/status.h"

typedef struct {
    int fd;
    char *path;
    uint64_t start_ns; /* CLOCK_REALTIME when the file was begun, which is its time 0; 0: not read yet */
} rm_trace_file;

/* Empties the file, or with `append` keeps its events. Close it in any case. */
remat_status rm_trace_file_open(const char *path, bool append, rm_trace_file *out);
void rm_trace_file_close(rm_trace_file *file);

/* Only between lock and unlock may a file be appended to. IO: another process has kept it locked for half a second. */
remat_status rm_trace_file_lock(rm_trace_file *file);
void rm_trace_file_unlock(const rm_trace_file *file);
/* Appends events in JSON, each beginning with ",\n". `text` has room for RM_TRACE_TAIL_BYTES more. */
enum { RM_TRACE_TAIL_BYTES = 4 };
remat_status rm_trace_file_append(const rm_trace_file *file, char *text, size_t bytes);

#endif

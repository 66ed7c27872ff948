/* progress.h: prints the progress of a run for people: a progress bar on a terminal, otherwise (a file, a pipe, a CI log) a plain
 * line from time to time. metrics.h is for programs. */
#ifndef RM_PROGRESS_H
#define RM_PROGRESS_H

#include "train/report/metrics.h"

typedef struct {
    FILE *out; /* NULL: no output, or writing failed */
    bool terminal;
    int64_t first, last, every; /* steps; every: steps between plain lines */
    double started_s, shown_s;
    bool bar_shown; /* the cursor is at the end of a bar */
} rm_progress;

/* Before steps first+1..last. `out` NULL: no output, for ranks that do not print. log_every 0: about twenty lines, and at least one
 * every 30 s. */
void rm_progress_start(rm_progress *progress, FILE *out, int64_t first, int64_t last, int64_t log_every);
void rm_progress_step(rm_progress *progress, const rm_step_event *event);
/* Prints a warning on stderr. */
void rm_progress_warn(rm_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints a line without breaking the bar. */
void rm_progress_say(rm_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

/* progress.h: what a person sees while a run trains: on a terminal a bar that redraws itself, elsewhere (a file, a pipe,
 * a CI log) a plain line every so often. For programs there is metrics.h. */
#ifndef RM_PROGRESS_H
#define RM_PROGRESS_H

#include "train/report/metrics.h"

typedef struct {
    FILE *out; /* NULL: nobody looks, or nobody any more */
    bool terminal;
    int64_t first, last, every; /* steps; every: between plain lines */
    double started_s, shown_s;
    bool bar_shown; /* the cursor stands behind a bar */
} rm_progress;

/* `out` NULL: nobody looks (a rank that does not print). Steps first+1..last are to come. log_every 0: about twenty lines, and one at least every 30 s. */
void rm_progress_start(rm_progress *progress, FILE *out, int64_t first, int64_t last, int64_t log_every);
void rm_progress_step(rm_progress *progress, const rm_step_event *event);
/* Says on stderr what the run goes on in spite of. */
void rm_progress_warn(rm_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints a line of its own, between bars. */
void rm_progress_say(rm_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

/* launch_output.h: passes on the ranks' output as whole lines: reads their pipes, adds a prefix, and writes to the
 * launcher's own stdout and stderr and to log files. Private to launch.c. Nothing here blocks: a slow reader of the
 * launcher's output delays the ranks' output, but never the launcher.
 *
 *     rank 0 ── stdout ──┐            ┌── queue ──► stdout        A queue takes whole lines and writes pieces that end
 *            ── stderr ──┤  lines ────┤                           at the end of a line. A line longer than a piece
 *     rank 1 ── stdout ──┤     │      └── queue ──► stderr        blocks the other queue until it is written, as both
 *            ── stderr ──┘     └──────────────────► log files     may be the same terminal.
 */
#ifndef RM_LAUNCH_OUTPUT_H
#define RM_LAUNCH_OUTPUT_H

#include <poll.h>

#include "engine/status.h"

typedef struct rm_launch_output rm_launch_output;

typedef struct {
    int32_t nproc, first_rank;      /* ranks of this host; the first one's global rank */
    bool prefix;                    /* "[3] " */
    bool direct_rank_0;             /* the first rank has no pipes */
    const char *log_dir;            /* borrowed; NULL: no logs */
    const uint8_t *redirects, *tee; /* as in rm_launch_config; borrowed */
    const bool *shown;              /* the same */
} rm_launch_output_config;

remat_status rm_launch_output_open(const rm_launch_output_config *config, rm_launch_output **out);
void rm_launch_output_close(rm_launch_output *output); /* accepts NULL; queued output is lost */

/* The writing end of the pipe for stdout (1) or stderr (2) of a rank of this host; -1: it has none. The second function
 * closes all these ends in this process. */
int rm_launch_output_pipe(const rm_launch_output *output, int32_t local_rank, int which);
void rm_launch_output_close_pipes(rm_launch_output *output);

/* Opens DIR/RUN/attempt-N/rank-R.log for each rank, or its .stdout.log and .stderr.log, after closing those of the last
 * attempt. RUN is a directory of this job, named by its start time; attempt 0 creates it and prints its name. */
remat_status rm_launch_output_begin(rm_launch_output *output, int32_t attempt);

/* One turn of a loop around poll(): fills in what to wait for (at most _slots entries), and handles the result. */
int rm_launch_output_slots(const rm_launch_output *output);
int rm_launch_output_watch(rm_launch_output *output, struct pollfd *slots);
void rm_launch_output_tend(rm_launch_output *output);

/* Reads the rest of the pipes after all writers have ended, and completes unfinished lines. */
void rm_launch_output_drain(rm_launch_output *output);
bool rm_launch_output_pending(const rm_launch_output *output); /* queued but not written yet */

/* Prints a line of the launcher itself to stderr. */
void rm_launch_output_say(rm_launch_output *output, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

/* launch_output.h: what the ranks write, as whole lines: read from their pipes, given a prefix, written to the launcher's
 * own stdout and stderr, and to log files. Private to launch.c. Nothing here waits: who reads the launcher's output slowly
 * holds up the ranks' output, and never the launcher.
 *
 *     rank 0 ── stdout ──┐            ┌── queue ──► stdout        A queue takes whole lines and gives pieces that end
 *            ── stderr ──┤  lines ────┤                           with one; one longer than a piece keeps the other
 *     rank 1 ── stdout ──┤     │      └── queue ──► stderr        queue waiting, as both may be the same terminal.
 *            ── stderr ──┘     └──────────────────► log files
 */
#ifndef RM_LAUNCH_OUTPUT_H
#define RM_LAUNCH_OUTPUT_H

#include <poll.h>

#include "engine/status.h"

typedef struct rm_launch_output rm_launch_output;

typedef struct {
    int32_t nproc, first_rank; /* ranks of this host */
    bool prefix;               /* "[3] " */
    bool direct_rank_0;        /* the first rank has no pipes */
    const char *log_dir;       /* borrowed; NULL: no logs */
} rm_launch_output_config;

remat_status rm_launch_output_open(const rm_launch_output_config *config, rm_launch_output **out);
void rm_launch_output_close(rm_launch_output *output); /* NULL allowed; what is still queued is lost */

/* The end to write to, of the stdout (1) or stderr (2) of a rank of this host; -1: it has none. And closes all these ends
 * in this process. */
int rm_launch_output_pipe(const rm_launch_output *output, int32_t local_rank, int which);
void rm_launch_output_close_pipes(rm_launch_output *output);

/* Opens DIR/RUN/attempt-N/rank-R.log for each rank, after those of the attempt before have been closed. RUN is a folder of this
 * job's own, named by when it began; attempt 0 makes it and says so. */
remat_status rm_launch_output_begin(rm_launch_output *output, int32_t attempt);

/* One turn of a loop around poll(): what to wait for (as many as _slots says, at most), and what to do afterwards. */
int rm_launch_output_slots(const rm_launch_output *output);
int rm_launch_output_watch(rm_launch_output *output, struct pollfd *slots);
void rm_launch_output_tend(rm_launch_output *output);

/* Reads what the pipes still hold, when nobody writes to them any more, and ends unfinished lines. */
void rm_launch_output_drain(rm_launch_output *output);
bool rm_launch_output_pending(const rm_launch_output *output); /* queued, and not yet written */

/* A line of the launcher's own, to stderr. */
void rm_launch_output_say(rm_launch_output *output, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

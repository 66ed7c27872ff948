/* launch.h: starts the ranks of this host as processes, watches them, and leaves nothing behind. torchrun's flags and
 * variables, so that scripts carry over. Main entry: rm_launch.
 *
 *   launcher ── keeper ─┬─ rank 0      The keeper is a subreaper: whatever ranks start, and leave, becomes its child.
 *                       ├─ rank 1      It ends the whole tree when a rank fails, when it is told to, and when the
 *                       └─ ...         launcher is gone, even by SIGKILL; should the keeper go, ranks get SIGKILL.
 *
 * Each rank gets RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE
 * MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID, REMAT_JOB_SECRET,
 * REMAT_JOB_ID (drawn by each launcher: the same on all attempts, and no other job's), and OMP_NUM_THREADS (this process's
 * processors, or its container's quota of them, / nproc, at least 1) unless it is set. On node 0 the launcher itself listens on
 * the port and rank 0 takes the socket over (REMAT_LISTEN_FD), so that a port is either taken at once, with a sentence, or ours.
 *
 * Failure. The first rank to fail decides: its exit code, 128 + signal for signals. The others, who notice, get grace_ms to
 * say so and stop, then SIGTERM, then SIGKILL. A rank that exits with RM_EXIT_PEER only says that another has failed: the
 * next to end otherwise decides, if there is one. With max_restarts left, all ranks are started again, in a fresh attempt with a
 * number of its own; unless what decided is RM_EXIT_USE, as the same flags would fail the same way, or a rank that was asked to
 * stop, by somebody's SIGTERM say, and exited with 128 + signal. Ranks that are stopped (SIGSTOP) are woken when another fails.
 *
 * Signals INT, TERM, HUP, QUIT to the launcher are passed on to all ranks once; a second one kills. A rank that ends as the
 * signal asks, with 128 + signal, is no reason to stop the others: they may be busy saving. Then nothing is started again. USR1 is
 * passed on as often as it comes, and means nothing here. */
#ifndef RM_LAUNCH_H
#define RM_LAUNCH_H

#include "engine/status.h"

typedef struct {
    int32_t nproc, nnodes, node_rank;
    const char *master_addr; /* NULL: 127.0.0.1, on one node only */
    int32_t master_port;     /* 0: 29500; where standalone is set, any that is free */
    bool standalone;         /* one node, a port of its own: never collides */
    int32_t max_restarts;
    const char *log_dir; /* DIR/TIME/attempt-N/rank-R.log as well as the terminal; NULL: the terminal alone */
    bool prefix;         /* "[3] " before each line of rank 3 on the terminal */
    bool direct_rank_0;  /* the first rank of this host writes to the launcher's stdout and stderr itself, not through
                                a pipe, and so sees a terminal if there is one; its lines are in no log */
    const char *run_id;  /* the job's name and secret; NULL: drawn, on one node; must be given where there are more */
    int64_t grace_ms;    /* 0: 5,000 */
    char **argv;         /* the command, NULL-terminated; found in PATH */
} rm_launch_config;

enum {
    RM_EXIT_USE = 2,  /* what `remat` exits with when it is asked for what cannot work, and most programs besides */
    RM_EXIT_PEER = 3, /* what `remat train` exits with when another rank failed */
};

/* Runs the job to its end. *exit_code is what the program should exit with. Fails only where nothing was started: INVALID
 * (flags), IO (the port is taken, the log directory, the command cannot be found), MEMORY. Prints the ranks' lines, and its
 * own ("remat launch: ...") to stderr; must be called while the process has one thread. */
remat_status rm_launch(const rm_launch_config *config, int *exit_code);

#endif

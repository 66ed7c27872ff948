/* launch.h: starts the ranks of this host as processes, watches them, and leaves nothing running. It uses torchrun's
 * flags and variables, so that scripts carry over. Main entry: rm_launch.
 *
 *   launcher ── supervisor ─┬─ rank 0   The supervisor is a subreaper: processes that outlive the rank that made them
 *                           ├─ rank 1   become its children. It ends the whole tree when a rank fails, on request, and
 *                           └─ ...      when the launcher is gone, even by SIGKILL. If the supervisor dies, the kernel
 *                                       sends SIGKILL to the ranks.
 *
 * Each rank gets RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE
 * MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID, REMAT_JOB_SECRET,
 * REMAT_JOB_ID (random for each launcher: the same in all attempts, and different from other jobs), and OMP_NUM_THREADS
 * unless it is set (this process's processors, or its container's quota of them, / nproc, at least 1). `remat train`
 * divides them itself, also among ranks of other launchers (RM_LAUNCH_THREADS, train/ranks/ranks.c). On node 0 the
 * launcher itself listens on the port, and rank 0 takes over the socket (REMAT_LISTEN_FD). A port in use is therefore
 * an error at once, and nobody can take the port in between.
 *
 * Failure. The first rank to fail determines the exit code: its own, or 128 + signal. The other ranks, which notice the
 * failure, have grace_ms to report it and stop; then they get SIGTERM, then SIGKILL. A rank that exits with
 * RM_EXIT_PEER only reports that another rank failed: if another rank fails later, that one determines the exit code.
 * If max_restarts allows, all ranks are started again, in a new attempt with its own number. There is no restart after
 * RM_EXIT_USE, since the same flags would fail in the same way, nor after a rank that was asked to stop, for example by
 * SIGTERM, and exited with 128 + signal. Stopped ranks (SIGSTOP) are continued when another rank fails.
 *
 * An elastic job (least_nodes) has one attempt. A failed rank is started again by itself if max_restarts allows, and is
 * lost otherwise; the others go on. There is no restart after RM_EXIT_NO_WORLD either. The exit code is 0 if a rank of
 * this host ended with 0. On node 0 the port belongs to the host of the world, and ranks meet elsewhere. The numbers of
 * ranks in prefixes and names of logs are those of processes, node_rank * nproc + local rank, which the world may give
 * another place.
 *
 * The launcher passes the signals INT, TERM, HUP and QUIT to all ranks once; a second one kills them. A rank that ends
 * as the signal asks, with 128 + signal, does not stop the others, which may be busy saving, and there is no restart.
 * USR1 is passed on every time and has no meaning for the launcher. */
#ifndef RM_LAUNCH_H
#define RM_LAUNCH_H

#include "engine/status.h"

/* A host of a job that has one launcher for all hosts (remote.h). */
typedef struct {
    const char *name; /* for ssh; NULL: this host */
    char **argv;      /* its launcher's command, NULL-terminated */
} rm_launch_host;

typedef struct {
    int32_t nproc, nnodes, node_rank;
    int32_t least_nodes; /* fewer than nnodes: an elastic job (world.h), for which `nnodes` is the most; 0: nnodes */
    const char *master_addr; /* NULL: 127.0.0.1, for one node only */
    int32_t first_rank, world_size; /* if hosts have different numbers of ranks; world_size 0: node_rank * nproc and
                                     * nnodes * nproc */
    const rm_launch_host *hosts;    /* `nproc` hosts, whose launchers take the places of ranks; NULL: starts ranks */
    bool on_host;                   /* this is the launcher of one of those hosts: rm_remote_enter was called */
    int32_t master_port;     /* 0: 29500, or any free port if standalone is set */
    bool standalone;         /* one node with a port of its own, which never collides */
    int32_t max_restarts;
    const char *log_dir; /* writes DIR/TIME/attempt-N/rank-R.log in addition to the terminal; NULL: terminal only */
    /* By rank of this host, 1: stdout, 2: stderr, 3: both go to rank-R.stdout.log and rank-R.stderr.log there; with
     * redirects instead of the terminal, with tee in addition to it, also if redirects names the stream, too. Other
     * streams are then in no log. NULL: none; both NULL: as log_dir says */
    const uint8_t *redirects, *tee;
    const bool *shown;   /* by rank of this host: whether the terminal shows its lines; NULL: it shows all */
    bool prefix;         /* prints "[3] " before each line of rank 3 on the terminal */
    bool direct_rank_0;  /* the first rank of this host writes directly to the launcher's stdout and stderr instead of a
                          * pipe, so it sees a terminal if there is one; its lines are in no log */
    const char *run_id;  /* name and secret of the job; NULL: random, for one node only */
    int64_t grace_ms;    /* 0: 5,000 */
    char **argv;         /* the command, NULL-terminated; searched in PATH */
} rm_launch_config;

/* The value of OMP_NUM_THREADS that this launcher has set; a user who sets another one means it. */
#define RM_LAUNCH_THREADS "REMAT_LAUNCH_THREADS"

enum {
    RM_EXIT_USE = 2,       /* exit status of `remat`, and of most programs, for a command line that cannot work */
    RM_EXIT_PEER = 3,      /* exit status of `remat train` when another rank failed */
    RM_EXIT_NO_WORLD = 4,  /* ... when an elastic job has no place for it: too few ranks, or launcher 0 is gone */
    RM_EXIT_NOT_RUN = 126, /* of a shell that finds a program and cannot run it */
    RM_EXIT_NOT_FOUND = 127,
};

/* Runs the job to its end. *exit_code is the code with which the program should exit. Fails only if nothing was
 * started: INVALID (flags), IO (the port is in use, the log directory, the command cannot be run: then *exit_code is
 * that of a shell), MEMORY. Writes the
 * ranks' lines, and its own ("remat launch: ...") to stderr. Must be called while the process has one thread. */
remat_status rm_launch(const rm_launch_config *config, int *exit_code);

#endif

/* launch_supervisor.h: the process between the launcher and the ranks, and the notes that it exchanges with the
 * launcher. Private to launch*.c. The launcher prints, and may be blocked by a slow reader of its output. The
 * supervisor only starts, watches and ends processes, and nothing blocks it. */
#ifndef RM_LAUNCH_SUPERVISOR_H
#define RM_LAUNCH_SUPERVISOR_H

#include <signal.h>

#include "dist/launch/launch.h"
#include "dist/launch/launch_output.h"

/* Settings of the launcher that it changes for itself and restores for each rank. */
typedef struct {
    sigset_t mask;
    struct sigaction pipe;
    int32_t ignored; /* bit i: rm_launch_signals[i] was ignored, as under nohup, and stays ignored */
} rm_launch_signal_state;

enum { RM_LAUNCH_STOPS = 4, RM_LAUNCH_SIGNALS };
extern const int
    /* Signals that are passed on: INT TERM HUP QUIT, which ask ranks to stop, and USR1 */
    rm_launch_signals[RM_LAUNCH_SIGNALS];

/* The supervisor is forked and reads the launcher's memory as of then. */
typedef struct {
    const rm_launch_config *config; /* all fields are set */
    const rm_launch_output *output; /* for the ends of the pipes */
    const char *secret;             /* of the job; that of an attempt is "SECRET.N" */
    const char *job_id;             /* of this launcher only, the same in all attempts */
    int32_t threads;                /* for OMP_NUM_THREADS */
    int control;                    /* the supervisor's end of the socket between the two */
    int launcher;                   /* polls readable when the launcher is gone; -1: only `control` reports it */
    int listen_fd;                  /* for rank 0; -1: this is another node */
    rm_launch_signal_state signals;
} rm_supervisor_job;

/* Whether ranks may be fewer than nnodes * nproc (world.h). */
static inline bool rm_launch_is_elastic(const rm_launch_config *c) { return c->least_nodes < c->nnodes; }

_Noreturn void rm_supervisor_run(const rm_supervisor_job *job);

typedef enum {
    RM_SUPERVISOR_LOST,    /* elastic: rank, pid and status; `attempt`: how many restarts with this one, 0: none */
    RM_SUPERVISOR_FIRST,   /* the first failure of an attempt: rank, pid, and status from waitpid */
    RM_SUPERVISOR_TERMS,   /* `rank` ranks did not stop by themselves and get SIGTERM */
    RM_SUPERVISOR_KILLS,   /* nor after that, so they get SIGKILL */
    RM_SUPERVISOR_NO_FORK, /* fork failed; status is errno */
    /* All processes of this attempt have ended: status is its exit code; rank is 1 if there is another attempt */
    RM_SUPERVISOR_OVER,
    RM_SUPERVISOR_PASS,     /* from the launcher: pass signal `status` to all ranks */
    RM_SUPERVISOR_KILL,     /* from the launcher: kill all ranks now, because of signal `status` */
    RM_SUPERVISOR_CONTINUE, /* from the launcher: all output of the last attempt has been read; start the next */
} rm_supervisor_word;

typedef struct {
    int32_t word, attempt, rank, pid, status;
} rm_supervisor_note;

/* The exit code that corresponds to a status from waitpid. */
int rm_launch_code(int status);

/* Returns true if the other end exists. */
bool rm_supervisor_send(int control, const rm_supervisor_note *note);
/* 1: a note was received; 0: the other end is gone; -1: nothing has arrived. */
int rm_supervisor_receive(int control, rm_supervisor_note *note);

#endif

/* launch_keeper.h: the process between the launcher and the ranks, and what the two say to each other. Private to launch*.c.
 * The launcher talks to people: it prints, and may be held up by whoever reads. The keeper only starts, watches and ends
 * processes, and is held up by nobody. */
#ifndef RM_LAUNCH_KEEPER_H
#define RM_LAUNCH_KEEPER_H

#include <signal.h>

#include "dist/launch/launch.h"
#include "dist/launch/launch_output.h"

/* What the launcher had before it changed it, and what a rank gets back. */
typedef struct {
    sigset_t mask;
    struct sigaction pipe;
    int32_t ignored; /* bit i: rm_launch_signals[i] was ignored, as under nohup, and stays so */
} rm_launch_signal_state;

enum { RM_LAUNCH_STOPS = 4, RM_LAUNCH_SIGNALS };
extern const int
    rm_launch_signals[RM_LAUNCH_SIGNALS]; /* passed on: INT TERM HUP QUIT, which ask ranks to stop, and USR1 */

/* The keeper is forked, and sees the launcher's own memory as it was then. */
typedef struct {
    const rm_launch_config *config; /* all fields filled in */
    const rm_launch_output *output; /* for the ends of pipes */
    const char *secret;             /* of the job; an attempt's is "SECRET.N" */
    const char *job_id;             /* of this launcher alone, on all attempts */
    int32_t threads;                /* for OMP_NUM_THREADS */
    int control;                    /* its end of the socket between the two */
    int launcher;                   /* polls readable when the launcher is gone; -1: only `control` says so */
    int listen_fd;                  /* for rank 0; -1: this is another node */
    rm_launch_signal_state signals;
} rm_keeper_job;

_Noreturn void rm_keeper_run(const rm_keeper_job *job);

typedef enum {
    RM_KEEPER_FIRST,    /* the first failure of an attempt: rank, pid, status as waitpid has it */
    RM_KEEPER_TERMS,    /* `rank` ranks did not stop by themselves: they get SIGTERM */
    RM_KEEPER_KILLS,    /* nor then: SIGKILL */
    RM_KEEPER_NO_FORK,  /* status is errno */
    RM_KEEPER_OVER,     /* nothing is left of this attempt: status is its exit code; rank 1 when there is another one */
    RM_KEEPER_PASS,     /* launcher: pass signal `status` on to all ranks */
    RM_KEEPER_KILL,     /* launcher: end them all now, because of signal `status` */
    RM_KEEPER_CONTINUE, /* launcher: all output of the last attempt is read; start the next */
} rm_keeper_word;

typedef struct {
    int32_t word, attempt, rank, pid, status;
} rm_keeper_note;

/* The exit code that stands for a status of waitpid's. */
int rm_launch_code(int status);

/* True when the other end is there. */
bool rm_keeper_send(int control, const rm_keeper_note *note);
/* 1: a note; 0: the other end is gone; -1: nothing has come. */
int rm_keeper_receive(int control, rm_keeper_note *note);

#endif

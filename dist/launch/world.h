/* world.h: who takes part in an elastic job (`remat launch --nnodes=MIN:MAX`). The launcher of host 0 runs the host of
 * the world, a process that gives every other process its place. A world is a set of ranks that train together; the next
 * one is formed when a rank is lost, or when more ranks have come.
 *
 *   process                        host of the world (world_host.c)
 *   join STEP UNITS PORT PID ENGINE ► waits for the others of the last world, and a moment for new ones
 *                          ◄──────   world GENERATION RANK SIZE ..., the place; or over: the job has ended
 *                          ◄──────   refuse ENGINE: the ranks of the job communicate by another engine
 *                          ◄──────   note TEXT, spare: why it waits; a spare waits as long as the job runs
 *                          ◄──────   wait: others are still in the step, so its time-out starts anew
 *   (trains)               ◄──────   call: join again after this step
 *                          ◄──────   lost RANK: it has left, or does not respond; do not wait for it
 *   alive                  ──────►   a sign of life, from a thread, so that slow steps do not look like lost ranks
 *   again                  ──────►   it has left this world and will join: wait for it
 *   done                   ──────►   the job has ended
 *
 * These are lines of text. A connection begins with proofs of the job's secret (store_kind.h). A process that dies
 * closes its connection, and so the host learns of it.
 *
 * A place becomes the variables that launchers set (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...), so that ranks meet
 * as in any other job. Each generation is an attempt of the job, with a store at a port of its own. */
#ifndef RM_WORLD_H
#define RM_WORLD_H

#include "engine/status.h"

/* The launcher sets it for each process: "SLOT MOST PORT HOST": a number that only this process has, from 0; the
 * most ranks that there can be; where the host of the world listens. */
#define RM_WORLD_VARIABLE "REMAT_WORLD"
/* The descriptor of the connection, for the program that a process loads again (exec). */
#define RM_WORLD_CONNECTION "REMAT_WORLD_FD"

/* ---- A process ---------------------------------------------------------------------------------------------------- */

bool rm_world_exists(void); /* whether this process belongs to an elastic job */
int64_t rm_world_most(void);

typedef struct {
    int64_t step;                                     /* the last finished step in this process's memory; -1: none */
    int64_t units;                                    /* the size of a world divides it; 0: any size */
    const char *engine;                               /* --dist-backend: the same as that of the job's ranks */
    int64_t timeout_ms;                               /* for the whole of rm_world_join, except as a spare */
    void (*say)(void *context, const char *sentence); /* why it waits */
    void *context;
} rm_world_request;

/* Waits for a place and sets the variables. *over: the job has ended without this process. PEER: too few ranks, or the
 * host of the world is gone. INVALID: the ranks of a job that has begun have another engine. */
remat_status rm_world_join(const rm_world_request *request, bool *over);

/* Whether to join again after this step. Costs one system call. Any thread may ask. */
bool rm_world_called(void);
/* Whether a rank of this world is lost, although its connections or its process may still exist: it loads its program
 * again, its host is down, or it is stopped. *rank becomes its number. Any thread may ask. */
bool rm_world_lost(int32_t *rank);
/* Tells the host that this process runs. Call it about every RM_WORLD_SIGN_S seconds while the process trains, from any
 * thread. A rank without signs is excluded after RM_WORLD_SILENT_S seconds. */
#define RM_WORLD_SIGN_S 0.4
#define RM_WORLD_SILENT_S 3
void rm_world_alive(void);
void rm_world_again(void); /* before the exec: keeps the connection open for it, and the host waits */
void rm_world_done(void);

/* ---- The host of the world ----------------------------------------------------------------------------------------- */

typedef struct {
    int listen_fd;       /* taken over */
    int closing;         /* a pipe whose end tells that the launcher's own ranks have ended */
    int32_t least, most; /* ranks */
    const char *secret, *job_id;
} rm_world_config;

/* Returns when the pipe has ended and no process is connected. Writes nothing. */
void rm_world_serve(const rm_world_config *config);

#endif

/* observe.h: what sessions and jobs do, as events in time, and a file of them for trace viewers. Part of remat.h. */
#ifndef REMAT_OBSERVE_H
#define REMAT_OBSERVE_H

#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Events ------------------------------------------------------------------------------------- */

/* Events of one thread nest: two of them follow each other, or one contains the other. BUCKET alone overlaps others. On
 * "cuda" the times are those of the host, which runs ahead of the GPU.
 *   JOIN        remat_join has met the other ranks. number: this rank; peer: the number of ranks
 *   GRADIENTS   remat_gradients, remat_forward, remat_backward, or that part of remat_step. number: updates so far
 *   UPDATE      remat_update, or that part of remat_step. number: updates so far, without this one
 *   EVALUATION  remat_evaluate. number: updates so far
 *   FORWARD     the first forward run of a stage in a pass. number: the stage
 *   RECOMPUTE   a later forward run of the stage
 *   BACKWARD    the backward run of a stage
 *   LIVE        a counter: the bytes of the arena that hold activations and their gradients, from begin_ns on
 *   SAVE, LOAD  a transfer to or from the spill file, in the thread that makes it
 *   WAIT        the calling thread waits. name: for what ("bucket 3, which begins with ..", "the spill file")
 *   BUCKET      from the start of a bucket's reduction to its result. name: the bucket
 *   COLLECTIVE  the part of BUCKET in which ranks exchange the data, in the thread that does it
 *   SEND, RECEIVE  a message to or from the rank `peer` of a pipeline, waiting included
 *   PROGRAM     an event of the program, which calls `event` itself. name: its name ("load batch") */
typedef enum {
    REMAT_EVENT_JOIN,
    REMAT_EVENT_GRADIENTS,
    REMAT_EVENT_UPDATE,
    REMAT_EVENT_EVALUATION,
    REMAT_EVENT_FORWARD,
    REMAT_EVENT_RECOMPUTE,
    REMAT_EVENT_BACKWARD,
    REMAT_EVENT_LIVE,
    REMAT_EVENT_SAVE,
    REMAT_EVENT_LOAD,
    REMAT_EVENT_WAIT,
    REMAT_EVENT_BUCKET,
    REMAT_EVENT_COLLECTIVE,
    REMAT_EVENT_SEND,
    REMAT_EVENT_RECEIVE,
    REMAT_EVENT_PROGRAM
} remat_event_kind;

typedef struct {
    remat_event_kind kind;
    int peer; /* of JOIN, SEND and RECEIVE */
    int64_t number;
    uint64_t begin_ns, end_ns; /* of CLOCK_MONOTONIC */
    uint64_t bytes;            /* transferred, or alive (LIVE); else 0 */
    const char *name;          /* NULL: none. Valid during the call */
    uint64_t reserved[4];      /* zeros */
} remat_event;

/* For remat_config.observer and remat_job_config.observer. `event` is called when an event has ended, by any thread and
 * by several at a time. It must be quick, and must call no session and no job. */
typedef struct remat_observer {
    size_t struct_bytes; /* sizeof(remat_observer) */
    void *context;
    void (*event)(void *context, const remat_event *event);
} remat_observer;

/* ---- A file of events --------------------------------------------------------------------------- */

/* Writes events in the JSON format of Chrome's trace viewer, which https://ui.perfetto.dev reads:
 *
 *     remat_timeline_config file = {.struct_bytes = sizeof file, .path = "run.json"};
 *     remat_timeline_open(&file, &t);
 *     config.observer = job_config.observer = remat_timeline_observer(t);
 *     remat_join(&job_config, &job);                                      // all ranks write one file
 *     ...
 *     remat_timeline_close(t);                                            // after session and job
 *
 * In the trace each rank is a process and each of its threads a lane. Ranks that share a file system share the file.
 * Every rank opens the timeline before remat_join; opening empties the file. The file is a complete JSON document after
 * every write. If a rank is killed during a write, the end of the document is missing until another write, or an open
 * with `append`, restores it.
 *
 * The file's size is bounded. An update ends a step. The first 16 steps since `open` are written, then 8 of each
 * doubling (every second up to step 32, every fourth up to 64, ..), and the last two when the timeline is closed. A step
 * has at most 32,768 events, and a rank writes at most 64 MiB before it closes; further events are dropped and counted.
 */
typedef struct remat_timeline remat_timeline;

typedef struct {
    size_t struct_bytes; /* sizeof(remat_timeline_config) */
    bool append;         /* add to the events of an existing file, for a restarted job */
    const char *path;
} remat_timeline_config;

/* INVALID: `append` to a file that is not a timeline. IO: the file cannot be written. MEMORY: it reserves 6 MiB; how
 * much of it becomes resident depends on the events of a step. */
remat_status remat_timeline_open(const remat_timeline_config *config, remat_timeline **out);
const remat_observer *remat_timeline_observer(remat_timeline *timeline); /* borrowed */
/* Writes the last steps and frees the timeline. IO: some events could not be written; those before them were. */
remat_status remat_timeline_close(REMAT_OPTIONAL remat_timeline *timeline);

#ifdef __cplusplus
}
#endif
#endif

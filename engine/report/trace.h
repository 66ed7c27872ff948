/* trace.h: records the bytes that the executor has alive, by kind, at each step of a running plan. It counts claims and FREEs as they run
 * and never uses the judge's numbers (timeline.c does), so that the two can be compared. run.c calls it in two places, where `trace`
 * is NULL unless tracing was requested or the session has an observer. Everything is allocated before the traced run starts. */
#ifndef RM_TRACE_H
#define RM_TRACE_H

#include "memory/check.h"

typedef struct rm_trace rm_trace;

/* For plans of `problem` (borrowed) with at most n_steps steps. MEMORY. */
remat_status rm_trace_create(const rm_problem *problem, int64_t n_steps, rm_trace **out);
void rm_trace_free(rm_trace *trace); /* NULL allowed */

/* Starts a new trace, before the first step. `resident`: points have the process's resident bytes, too. */
void rm_trace_begin(rm_trace *trace, bool resident);
/* Starts a step; the buffers that the step before freed are gone. */
void rm_trace_step(rm_trace *trace, rm_step step);
/* Records a buffer claimed by the current step. */
void rm_trace_claim(rm_trace *trace, rm_buffer_kind kind, int64_t index, uint64_t bytes);

uint64_t rm_trace_live_bytes(const rm_trace *trace); /* now, of all kinds */

/* One point for each step, in order; borrowed until the trace is freed or restarted. */
const remat_live_point *rm_trace_points(const rm_trace *trace, int64_t *count);

#endif

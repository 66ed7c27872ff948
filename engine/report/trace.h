/* trace.h: what the executor has alive, by kind, written down step by step while a plan runs. It counts what is
 * claimed and what FREE ends, from the steps as they are run; it never looks at what the judge worked out beforehand
 * (that is timeline.c), so that the two can be compared. Hooked into run.c in two places, where `trace` is NULL unless
 * asked for. Everything is allocated before the traced run begins. */
#ifndef RM_TRACE_H
#define RM_TRACE_H

#include "memory/check.h"

typedef struct rm_trace rm_trace;

/* For runs of plans for `problem` (borrowed) of at most n_steps steps. MEMORY. */
remat_status rm_trace_create(const rm_problem *problem, int64_t n_steps, rm_trace **out);
void rm_trace_free(rm_trace *trace); /* NULL allowed */

/* Before the first step; what was traced earlier is forgotten. */
void rm_trace_begin(rm_trace *trace);
/* A step begins: the one before it has ended, and what it freed is gone. */
void rm_trace_step(rm_trace *trace, rm_step step);
/* A buffer was claimed for the step that has begun. */
void rm_trace_claim(rm_trace *trace, rm_buffer_kind kind, int64_t index, uint64_t bytes);

/* One point a step, in order; borrowed until the trace is freed or begins again. */
const remat_live_point *rm_trace_points(const rm_trace *trace, int64_t *count);

#endif

/* workers.h: worker threads that run the items of a job, each item once, while the caller continues. Any thread may run any
 * item, so results must not depend on the assignment. */
#ifndef RM_WORKERS_H
#define RM_WORKERS_H

#include "engine/status.h"

typedef struct rm_workers rm_workers;
typedef remat_status rm_workers_job(void *context, int64_t item);

/* MEMORY when a thread cannot be created. */
remat_status rm_workers_create(int64_t threads, rm_workers **out);
/* Starts items 0 .. count-1. Call rm_workers_wait for the previous job first. */
void rm_workers_start(rm_workers *workers, rm_workers_job *job, void *context, int64_t count);
/* Waits for all items. Returns the failure of the lowest failed item, regardless of timing. */
remat_status rm_workers_wait(rm_workers *workers);
void rm_workers_free(rm_workers *workers); /* waits; NULL allowed */
/* The job on threads of its own, at least one. */
remat_status rm_workers_run(int64_t threads, rm_workers_job *job, void *context, int64_t count);

#endif

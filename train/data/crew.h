/* crew.h: worker threads that run the items of a job, each item once, while the caller continues. Any thread may run any
 * item, so results must not depend on the assignment. */
#ifndef RM_CREW_H
#define RM_CREW_H

#include "engine/status.h"

typedef struct rm_crew rm_crew;
typedef remat_status rm_crew_job(void *context, int64_t item);

/* MEMORY when a thread cannot be created. */
remat_status rm_crew_create(int64_t threads, rm_crew **out);
/* Starts items 0 .. count-1. Call rm_crew_wait for the previous job first. */
void rm_crew_start(rm_crew *crew, rm_crew_job *job, void *context, int64_t count);
/* Waits for all items. Returns the failure of the lowest failed item, regardless of timing. */
remat_status rm_crew_wait(rm_crew *crew);
void rm_crew_free(rm_crew *crew); /* waits; NULL allowed */

#endif

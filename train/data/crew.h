/* crew.h: threads that do the items of a job, each item once, while the caller goes on with something else. Which thread does
 * which is left to chance: what comes out must not depend on it. */
#ifndef RM_CREW_H
#define RM_CREW_H

#include "engine/status.h"

typedef struct rm_crew rm_crew;
typedef remat_status rm_crew_job(void *context, int64_t item);

/* MEMORY when there are no more threads. */
remat_status rm_crew_create(int64_t threads, rm_crew **out);
/* Begins items 0 .. count-1; the last job has been waited for. */
void rm_crew_start(rm_crew *crew, rm_crew_job *job, void *context, int64_t count);
/* Until all are done. Of those that failed the first counts, whichever failed first in time. */
remat_status rm_crew_wait(rm_crew *crew);
void rm_crew_free(rm_crew *crew); /* waits; NULL allowed */

#endif

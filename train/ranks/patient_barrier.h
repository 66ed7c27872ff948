/* patient_barrier.h: ranks that wait for each other for as long as it takes. A collective gives up on a rank that does not come
 * within --hang-timeout, which is right in the middle of a step, and wrong while one rank writes a large file to a slow disk.
 * Here a rank waits while the others live: what ends the wait early is that one dies, hangs or fails. */
#ifndef RM_PATIENT_BARRIER_H
#define RM_PATIENT_BARRIER_H

#include "train/ranks/ranks.h"
#include "train/state/state.h"

/* Collective, as rm_state_ranks.agree; context: an rm_ranks, connected where there are values. Where ranks have no store
 * (some launches by MPI), the waiting is a collective's after all. */
remat_status rm_patient_barrier(void *ranks, remat_status mine, double *values, int64_t count);

/* The ranks as rm_state_store_open wants them; `ranks` is borrowed. */
rm_state_ranks rm_patient_barrier_ranks(rm_ranks *ranks, bool shard_optimizer);

#endif

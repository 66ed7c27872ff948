/* patient_barrier.h: a barrier without a time limit. A collective gives up on a rank that is later than --hang-timeout, which is right
 * during a step, but wrong while one rank writes a large file to a slow disk. Here ranks wait as long as the others are alive; the wait
 * ends early only if a rank dies, hangs or fails. */
#ifndef RM_PATIENT_BARRIER_H
#define RM_PATIENT_BARRIER_H

#include "train/ranks/ranks.h"
#include "train/state/state.h"

/* Collective; implements rm_state_ranks.agree. context: an rm_ranks, connected if there are values. Ranks without a store (some MPI
 * launches) wait in a collective, with its time limit. */
remat_status rm_patient_barrier(void *ranks, remat_status mine, double *values, int64_t count);

/* The ranks in the form that rm_state_store_open takes; `ranks` is borrowed. */
rm_state_ranks rm_patient_barrier_ranks(rm_ranks *ranks, bool shard_optimizer);

#endif

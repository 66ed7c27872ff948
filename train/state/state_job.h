/* state_job.h: which job this process belongs to, as far as training states go: a job that is started again goes on from the
 * states that it saved itself, and from nobody else's. So a job's name must be the same on all its attempts, and no two jobs'
 * may be alike; what launchers call a job ("none", HOST:PORT, --run-id=NAME) is neither.
 *
 *   remat launch, --devices   REMAT_JOB_ID, which the launcher draws at random when it starts
 *   torchrun                  TORCHELASTIC_RUN_ID and the agent, which lives as long as the job: its host, that host's boot,
 *                             process and the moment it was started
 *   Slurm                     cluster and SLURM_JOB_ID, and how often Slurm has put the job back into its queue: only states
 *                             from before that are the job's own. Beside one of the others, if there is one.
 *   anything else             nothing: it is never started again, and takes over nothing without --resume
 *
 * Rank 0 decides for all, so names need not be the same on several hosts. */
#ifndef RM_STATE_JOB_H
#define RM_STATE_JOB_H

#include "engine/status.h"

#include <jansson.h>

#define RM_STATE_JOB_BYTES 512
typedef struct {
    char launch[RM_STATE_JOB_BYTES]; /* of the launcher that starts ranks again; "": there is none */
    char slurm[RM_STATE_JOB_BYTES];  /* "": not in a job of Slurm's */
    int64_t restarts, requeues;      /* by the launcher, by Slurm; 0: this is the first attempt */
} rm_state_job;

void rm_state_job_find(rm_state_job *out); /* from this process's environment and ancestors */

/* Has the job been started before? Only then rm_state_job_saved is worth asking. */
bool rm_state_job_again(const rm_state_job *job);

/* Into state.json, and back: was the state with this `root` saved by an earlier attempt of the job? */
void rm_state_job_write(const rm_state_job *job, json_t *root);
bool rm_state_job_saved(const rm_state_job *job, const json_t *root);

#endif

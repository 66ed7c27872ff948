/* state_job.h: identifies the job of this process, because a restarted job continues only from training states that it saved itself. A
 * job's name must be the same on all attempts and unique. Launchers' names ("none", HOST:PORT, --run-id=NAME) are neither.
 *
 *   remat launch, --devices   REMAT_JOB_ID, which the launcher chooses at random
 *   torchrun                  TORCHELASTIC_RUN_ID and the agent, which lives as long as the job: its host, that host's boot,
 *                             process and start time
 *   Slurm                     cluster and SLURM_JOB_ID, and how often Slurm has requeued the job: only states from before are
 *                             the job's own. In addition to one of the others, if there is one.
 *   anything else             none: it is never restarted, and adopts no state without --resume
 *
 * Rank 0 decides for all ranks, so names may differ between hosts. */
#ifndef RM_STATE_JOB_H
#define RM_STATE_JOB_H

#include "engine/status.h"

#include <jansson.h>

#define RM_STATE_JOB_BYTES 512
typedef struct {
    char launch[RM_STATE_JOB_BYTES]; /* name by the launcher that restarts ranks; "": none */
    char slurm[RM_STATE_JOB_BYTES];  /* name by Slurm; "": not a Slurm job */
    int64_t restarts, requeues;      /* by the launcher, by Slurm; 0: the first attempt */
} rm_state_job;

void rm_state_job_find(rm_state_job *out); /* from this process's environment and ancestors */

/* Whether the job was restarted; rm_state_job_saved is meaningful only then. */
bool rm_state_job_again(const rm_state_job *job);

/* Writes the job to state.json; rm_state_job_saved: whether an earlier attempt of the job saved the state with this `root`. */
void rm_state_job_write(const rm_state_job *job, json_t *root);
bool rm_state_job_saved(const rm_state_job *job, const json_t *root);

#endif

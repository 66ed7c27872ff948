/* pipeline_times.h: how long the ranks of a pipeline compute and wait in a training step, predicted for ranks that need
 * not exist. */
#ifndef RM_PIPELINE_TIMES_H
#define RM_PIPELINE_TIMES_H

#include "engine/session/session.h"

/* Of one rank. Without what is outside the plan: tables, the update, data. */
typedef struct {
    uint64_t compute_ns, wait_ns; /* together, the time of the step; exchanging messages counts as computing */
    uint64_t sent_bytes;
} rm_pipeline_rank;

/* Simulates the programs of all ranks by predicted times: session[r] is rank r's, with the same plan as the others.
 * `room`: bytes that a rank sends ahead to another before it waits. node_ns: measured times of the nodes, forward and
 * backward in all tiles (rm_layer_times); NULL: counted work. MEMORY; INVALID: the plans differ. */
remat_status rm_pipeline_times(remat_session *const *session, int n, uint64_t room, const double *node_ns,
                               rm_pipeline_rank *out);

#endif

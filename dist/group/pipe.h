/* pipe.h: a job's ranks as replicas of a pipeline: rank r of the world is rank r % P of pipeline r / P. The ranks of one
 * pipeline exchange messages; those at the same place of all pipelines hold the same layers and are a group of their own,
 * which adds up their gradients. */
#ifndef RM_PIPE_H
#define RM_PIPE_H

#include "dist/group/group.h"
#include "engine/remat.h"

typedef struct rm_pipe rm_pipe;

/* Collective over the world, whose size is a multiple of `ranks`. `like`: time limits, and what messages need. *replicas: the group of this rank's place, which the
 * caller closes first; NULL: there is one pipeline. With ranks = 1 *pipe is NULL and *replicas the world itself. */
remat_status rm_pipe_open(rm_group *world, int32_t ranks, const rm_group_config *like, rm_pipe **pipe,
                          rm_group **replicas);
/* Collective over the pipeline, for sessions on GPUs: a second group, over NCCL, between the streams of its ranks; adds what
 * these need to the table. `like`: as above, with this rank's GPU. `store`: where the ranks meet; borrowed. */
remat_status rm_pipe_open_gpus(rm_pipe *pipe, rm_group_config like, rm_kv *store);
void rm_pipe_close(rm_pipe *pipe); /* NULL allowed */
const remat_pipeline *rm_pipe_table(const rm_pipe *pipe);
rm_group *rm_pipe_group(const rm_pipe *pipe); /* of the ranks of this pipeline */

#endif

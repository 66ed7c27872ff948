/* ddp.h: data parallel: fills in the table by which a session reaches the other ranks (remat_ranks, engine/remat.h) with
 * collectives of a group. Buffers and ranks: it sees buckets, never a graph or a plan. Main entry: rm_ddp_open.
 *
 *     rm_ddp_open(&(rm_ddp_config){.group = group, .rows = batch}, &ddp);
 *     rm_ddp_compare(ddp, "the network", text);       // optional: what must be the same, in words, one thing a line
 *     config.ranks = rm_ddp_ranks(ddp);
 *     remat_session_create(graph, loss, &config, &session);
 *     rm_ddp_broadcast(ddp, session);                 // parameters as rank 0 has them
 *     ... remat_step as ever ...
 *     remat_session_free(session);                    // before rm_ddp_close, which comes before rm_group_close
 *
 * What becomes of a bucket's gradients g_r:
 *
 *   mean           sum over r of fl32(g_r * fl32(1/W)), as PyTorch's DDP does it; ranks with other numbers of rows weigh
 *                  accordingly (the session scales its loss: remat_ranks.weight)
 *   compressed     fl16(g_r * fl32(1/W)) is what travels, and what is added up (dist/group/group.h); back to float after
 *   deterministic_world       the tree sum (RM_TREE) of fl32(g_r * fl32(1/W)), W a power of two: exact, so that bits do not depend on W
 *   sharded        a reduce_scatter instead of an all_reduce; parameters come back by an all_gather
 *
 * A bucket's collective is issued by `reduce`, on the group's own thread, and runs beside what is left of the backward
 * pass. Its tag is the bucket; what goes wrong names it and the parameter it begins with.
 *
 * Errors: those of the group; INVALID for a config that cannot work. One thread at a time. */
#ifndef RM_DDP_H
#define RM_DDP_H

#include "dist/group/group.h"
#include "engine/remat.h"

typedef enum { RM_COMPRESS_NONE, RM_COMPRESS_FP16, RM_COMPRESS_BF16 } rm_compress;

typedef struct {
    rm_group *group;                           /* borrowed; must outlive the session */
    rm_group *gpus;                            /* of the same ranks, by nccl, where sessions lie on GPUs: gradients and
                                                  parameters travel by it, all else by `group`; borrowed; NULL: none */
    uint64_t first_bucket_bytes, bucket_bytes; /* 0: 1 MiB, 25 MiB */
    rm_compress compress;
    bool deterministic_world, shard_optimizer, fused_update; /* as in remat_config and remat_ranks */
    int64_t rows;                                            /* of this rank's batch: decides its weight */
} rm_ddp_config;

typedef struct rm_ddp rm_ddp;

/* Collective: compares the versions of Remat and the config (PEER where they differ), adds up the rows. */
remat_status rm_ddp_open(const rm_ddp_config *config, rm_ddp **out);
/* NULL allowed. Sessions that are still there are refused from now on (INVALID); their pages stay until they are freed. */
void rm_ddp_close(rm_ddp *ddp);
const remat_ranks *rm_ddp_ranks(const rm_ddp *ddp);

/* Collective: PEER, with the same sentence on all ranks, unless all have the same text: names two ranks and the first line
 * in which they differ. `what` is the subject of that sentence. */
remat_status rm_ddp_compare(rm_ddp *ddp, const char *what, const char *text);
/* Collective: rank 0's text, on every rank; the caller frees it with rm_free. Up to 1 GiB. */
remat_status rm_ddp_share_text(rm_ddp *ddp, const char *text, char **out);
/* Collective: rank 0's parameters into every session; then all parameter names, shapes and types have been compared, and the
 * settings (remat_settings_text): a difference is PEER, on all ranks, and names two ranks and both settings. Learning rates
 * are compared by the session itself, in every step. */
remat_status rm_ddp_broadcast(rm_ddp *ddp, remat_session *session);
/* Collective: buffers as rank 0 has them. */
remat_status rm_ddp_broadcast_buffers(rm_ddp *ddp, remat_session *session);

/* For metrics: of the last step. Bytes that went into collectives; the time they took on the group's thread, waiting for
 * other ranks to come, and on GPUs for the backward pass to get there, included; and how long the session waited for them (sums of losses and norms, which queue up behind
 * them, included). What is not waited for was hidden behind the backward pass. */
typedef struct {
    uint64_t bytes, busy_ns, waited_ns;
    int32_t buckets;
} rm_ddp_cost;
rm_ddp_cost rm_ddp_last_cost(const rm_ddp *ddp);

/* The words for a tag, for rm_group_config.tag_name, with the ddp as context once there is one; a group is opened before its
 * ddp, so the context is a pointer to where the ddp will be: rm_ddp **, NULL until then. A ddp that has been closed is not
 * asked any more. Any thread; the text lasts until the thread has asked for two others. */
const char *rm_ddp_tag_name(void *ddp_pointer, uint32_t tag);

#endif

/* ddp.h: data-parallel training. Implements remat_ranks (engine/remat.h), through which a session reaches the other
 * ranks, with the collectives of a group. It sees buckets, but no graph or plan. Main entry: rm_ddp_open.
 *
 *     rm_ddp_open(&(rm_ddp_config){.group = group, .rows = batch}, &ddp);
 *     rm_ddp_compare(ddp, "the network", text);       // optional: a description that must be equal, one item per line
 *     config.ranks = rm_ddp_ranks(ddp);
 *     remat_session_create(graph, loss, &config, &session);
 *     rm_ddp_broadcast(ddp, session);                 // rank 0's parameters
 *     ... remat_step as usual ...
 *     remat_session_free(session);                    // before rm_ddp_close, which comes before rm_group_close
 *
 * A bucket's gradients g_r are reduced in one of these ways:
 *
 *   mean                  sum over r of fl32(g_r * fl32(1/W)), as in PyTorch's DDP. Ranks with unequal numbers of rows
 *                         are weighted accordingly (the session scales its loss: remat_ranks.weight).
 *   compressed            fl16(g_r * fl32(1/W)) is sent and added up (dist/group/group.h), then converted back to float
 *   deterministic_world   the tree sum (RM_TREE) of fl32(g_r * fl32(1/W)). W is a power of two, so the scaling is exact
 *                         and bits do not depend on W.
 *   sharded               a reduce_scatter instead of an all_reduce; an all_gather returns the parameters
 *
 * `reduce` issues a bucket's collective, which runs on the group's own thread in parallel to the rest of the backward
 * pass. Its tag is the bucket, so errors name the bucket and its first parameter.
 *
 * Errors: those of the group; INVALID for a config that cannot work. One thread at a time. */
#ifndef RM_DDP_H
#define RM_DDP_H

#include "dist/group/group.h"
#include "engine/remat.h"

typedef enum { RM_COMPRESS_NONE, RM_COMPRESS_FP16, RM_COMPRESS_BF16 } rm_compress;

typedef struct {
    rm_group *group;                           /* borrowed; must outlive the session */
    rm_group *gpus;                            /* the same ranks over nccl, for sessions on GPUs: transfers gradients
                                                * and parameters, `group` everything else; borrowed; NULL: none */
    uint64_t first_bucket_bytes, bucket_bytes; /* 0: defaults of 1 MiB and 25 MiB */
    rm_compress compress;
    bool deterministic_world, shard_optimizer, fused_update; /* as in remat_config and remat_ranks */
    int64_t rows;                                            /* rows of this rank's batch, which determine its weight */
} rm_ddp_config;

typedef struct rm_ddp rm_ddp;

extern const char *rm_ddp_version; /* of this library; tests set another one */

/* Collective. Compares the versions of Remat and the configs (PEER if they differ), and adds up the rows. */
remat_status rm_ddp_open(const rm_ddp_config *config, rm_ddp **out);
/* Accepts NULL. Later calls from sessions that still exist fail with INVALID; their pages stay until they are freed. */
void rm_ddp_close(rm_ddp *ddp);

/* For sessions that are created from now on; the same on all ranks. No session may exist. */
void rm_ddp_set_buckets(rm_ddp *ddp, uint64_t first_bytes, uint64_t bytes);

const remat_ranks *rm_ddp_ranks(const rm_ddp *ddp);

/* Collective. PEER, with the same message on all ranks, unless all ranks pass the same text. The message names two
 * ranks and the first line that differs; `what` is its subject. */
remat_status rm_ddp_compare(rm_ddp *ddp, const char *what, const char *text);
/* Collective. Gives rank 0's text to every rank; the caller frees it with rm_free. Up to 1 GiB. */
remat_status rm_ddp_share_text(rm_ddp *ddp, const char *text, char **out);
/* Collective. Copies rank 0's parameters into every session. Before that it compares the names, shapes and types of all
 * parameters, and the settings (remat_settings_text). A difference is PEER on all ranks and names two ranks and both
 * settings. The session itself compares learning rates in every step. */
remat_status rm_ddp_broadcast(rm_ddp *ddp, remat_session *session);
/* Collective. Copies rank 0's arrays of a kind into the same arrays of every session, which need not be this ddp's. */
remat_status rm_ddp_send_arrays(rm_ddp *ddp, remat_session *session, remat_kind kind);
/* Collective. Copies rank 0's buffers to all ranks. */
remat_status rm_ddp_broadcast_buffers(rm_ddp *ddp, remat_session *session);

/* Statistics of the last step: bytes passed to collectives; time the group's thread was busy with them, which includes
 * waiting for other ranks and, on GPUs, for the backward pass; time the session waited for them, including the sums of
 * losses and norms queued after them. Communication that is not waited for overlaps with the backward pass. */
typedef struct {
    uint64_t bytes, busy_ns, waited_ns;
    int32_t buckets;
} rm_ddp_cost;
rm_ddp_cost rm_ddp_last_cost(const rm_ddp *ddp);

/* Describes a tag, for rm_group_config.tag_name. A group is opened before its ddp, so the context is a pointer to the
 * ddp's variable: rm_ddp **, NULL until the ddp is open. A closed ddp is not accessed. Any thread; the text is valid
 * until the thread has asked for two others. */
const char *rm_ddp_tag_name(void *ddp_pointer, uint32_t tag);

#endif

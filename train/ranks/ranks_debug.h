/* ranks_debug.h: the lines that NCCL_DEBUG=INFO (or TRACE) and TORCH_DISTRIBUTED_DEBUG=INFO (or DETAIL) add to stderr
 * before the first step: where ranks met, over which engine and why, and the buckets. */
#ifndef RM_RANKS_DEBUG_H
#define RM_RANKS_DEBUG_H

#include "train/ranks/ranks.h"

/* Every rank describes itself, once all have met. `backend`: the engine that was asked for. */
void rm_ranks_debug_meeting(const rm_ranks *ranks, const rm_rendezvous *where, const char *backend);
/* The first replica describes its buckets. */
void rm_ranks_debug_buckets(const rm_ranks *ranks, remat_session *session);

#endif

/* ddp_state.h: shared by ddp.c (gradients) and ddp_compare.c (texts and parameters before the first step). */
#ifndef RM_DDP_STATE_H
#define RM_DDP_STATE_H

#include "dist/ddp/ddp.h"

/* Tags of collectives that do not belong to a bucket; a bucket's tag is its index. */
enum {
    RM_TAG_FIRST = 0xFE00,
    RM_TAG_CONFIG = RM_TAG_FIRST,
    RM_TAG_ORDER,
    RM_TAG_USED,
    RM_TAG_SUM,
    RM_TAG_COMPARE,
    RM_TAG_SHARE,
    RM_TAG_PARAMETERS,
    RM_TAG_VERSION,
    RM_TAGS_END
};

/* A bucket that has been registered. */
typedef struct {
    char *first;    /* name of its first parameter */
    uint16_t *half; /* compressed gradients in the group's memory; NULL: none yet */
    int64_t half_count;
    rm_ticket reduced, gathered;
} rm_ddp_bucket;

struct rm_ddp {
    rm_ddp_config config;
    remat_ranks ranks;
    float share; /* fl32(1/W) */
    rm_ddp_bucket *bucket;
    int32_t buckets;          /* number registered, */
    int64_t room;             /* and capacity */
    rm_ticket issued, waited; /* the latest ones */
    uint64_t busy_before_ns;  /* busy time of the group's thread when the step's first bucket was issued */
    rm_ddp_cost cost;         /* of the current step, except busy_ns */
    rm_ddp *next;             /* list of all open ones */
    int32_t mapped;           /* number of sections that sessions have mapped and not yet unmapped */
    bool closed;              /* closed while sections are mapped: only refuses calls until they are unmapped */
};

/* Runs one collective on small data, under one of the tags above. */
remat_status rm_ddp_run(rm_ddp *ddp, rm_collective what);

/* Collective. PEER, with the same message on all ranks, unless all ranks run the same version of Remat. The message
 * names two ranks, their hosts and both versions. */
remat_status rm_ddp_compare_versions(rm_ddp *ddp);

/* Registers bucket `index` with its name for messages. NULL: out of memory, with a message. */
rm_ddp_bucket *rm_ddp_know(rm_ddp *ddp, int32_t index, const char *first);

#endif

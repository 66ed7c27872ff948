/* ddp_state.h: what ddp.c (gradients) and ddp_compare.c (texts and parameters, before the first step) share. */
#ifndef RM_DDP_STATE_H
#define RM_DDP_STATE_H

#include "dist/ddp/ddp.h"

/* Names in sentences of collectives that are no bucket's: those have their index. */
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

/* A bucket that was seen. */
typedef struct {
    char *first;    /* its first parameter's name */
    uint16_t *half; /* compressed gradients, of the group's memory; NULL: none yet */
    int64_t half_count;
    rm_ticket reduced, gathered;
} rm_ddp_bucket;

struct rm_ddp {
    rm_ddp_config config;
    remat_ranks ranks;
    float share; /* fl32(1/W) */
    rm_ddp_bucket *bucket;
    int32_t buckets;          /* seen, */
    int64_t room;             /* and room for */
    rm_ticket issued, waited; /* the newest */
    uint64_t busy_before_ns;  /* of the group's thread, when the step's first bucket was issued */
    rm_ddp_cost cost;         /* of the step so far, but for busy_ns */
    rm_ddp *next;             /* of all that are open */
    int32_t mapped;           /* sections that sessions have mapped, and not given back */
    bool closed;              /* before them: only their calls are left to refuse */
};

/* One collective of bytes or other small things, under one of the tags above. */
remat_status rm_ddp_run(rm_ddp *ddp, rm_collective what);

/* Collective: PEER, with the same sentence on all ranks, unless all run the same version of Remat: names two ranks, their
 * hosts and both versions. */
remat_status rm_ddp_compare_versions(rm_ddp *ddp);
extern const char *rm_ddp_version; /* this library's; tests pretend to be another */

/* Bucket `index`, made known: its name in sentences. NULL: no memory, with a sentence. */
rm_ddp_bucket *rm_ddp_know(rm_ddp *ddp, int32_t index, const char *first);

#endif

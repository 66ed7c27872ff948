/* failure.h: for engines whose transport says only "it failed" or "it takes too long": who is the cause? Ranks that are in
 * trouble say so in the store; who is neither there nor heard of is named. */
#ifndef RM_FAILURE_H
#define RM_FAILURE_H

#include "dist/group/fingerprint.h"

typedef struct {
    const rm_group_config *config; /* config->store may be NULL: then nobody can be named */
    _Atomic uint64_t looked_ns;    /* when rm_failure_look last asked the store */
} rm_failure;

/* Leaves this rank's host and process where the others find them. */
remat_status rm_failure_begin(rm_failure *failure, const rm_group_config *config);

/* OK, or PEER when a rank is lost or has ended the group. Asks the store every 50 ms at most; from any thread. `now` is
 * what this rank does, for the sentence; NULL: nothing. */
remat_status rm_failure_look(rm_failure *failure, const rm_fingerprint *now);

/* This rank could not finish `now`; `why` is what the transport said. Always PEER. Takes half a second at most. */
remat_status rm_failure_find(rm_failure *failure, const rm_fingerprint *now, const char *why);

void rm_failure_abort(rm_failure *failure, const char *reason); /* rm_failure_look of the others then fails */

#endif

/* blame.h: for engines whose transport says only "it failed" or "it takes too long": who is the cause? Ranks that are in
 * trouble say so in the store; who is neither there nor heard of is named. */
#ifndef RM_BLAME_H
#define RM_BLAME_H

#include "dist/fingerprint.h"

typedef struct {
    const rm_group_config *config; /* config->store may be NULL: then nobody can be named */
    _Atomic uint64_t looked_ns;    /* when rm_blame_look last asked the store */
} rm_blame;

/* Leaves this rank's host and process where the others find them. */
remat_status rm_blame_begin(rm_blame *blame, const rm_group_config *config);

/* OK, or PEER when a rank is lost or has ended the group. Asks the store every 50 ms at most; from any thread. `now` is
 * what this rank does, for the sentence; NULL: nothing. */
remat_status rm_blame_look(rm_blame *blame, const rm_fingerprint *now);

/* This rank could not finish `now`; `why` is what the transport said. Always PEER. Takes half a second at most. */
remat_status rm_blame_find(rm_blame *blame, const rm_fingerprint *now, const char *why);

void rm_blame_abort(rm_blame *blame, const char *reason); /* rm_blame_look of the others then fails */

#endif

/* failure.h: finds the cause of a failure, for engines whose transport only reports an error or a timeout. A rank that
 * fails reports it in the store; a rank that has neither arrived nor reported anything is named as the cause. */
#ifndef RM_FAILURE_H
#define RM_FAILURE_H

#include "dist/group/fingerprint.h"
#include "dist/group/side_thread.h"

typedef struct {
    const rm_group_config *config; /* config->store may be NULL; then no rank can be named */
    _Atomic uint64_t looked_ns;    /* time of the last query by rm_failure_look */
    rm_side_thread side;           /* tells the store whom this rank waits for; runs if `watches` */
    bool watches, told;            /* told, and the next two: protected by the side thread's lock */
    int32_t waits_for;
    uint64_t since_ns; /* 0: it does not wait */
} rm_failure;

/* Publishes this rank's host and process in the store. */
remat_status rm_failure_begin(rm_failure *failure, const rm_group_config *config);

/* OK, or PEER if a rank is lost or has ended the group. Queries the store every 50 ms at most; any thread may call it.
 * `now`: what this rank is doing, for the message; NULL: nothing. */
remat_status rm_failure_look(rm_failure *failure, const rm_fingerprint *now);

/* Reports that this rank could not finish `now`, with the transport's reason `why`. Always PEER. Takes at most half a
 * second. */
remat_status rm_failure_find(rm_failure *failure, const rm_fingerprint *now, const char *why);

/* Around an exchange with `rank` that may wait: a wait that takes long is written to the store. end: before the group is
 * closed. */
remat_status rm_failure_wait(rm_failure *failure, int32_t rank);
void rm_failure_waited(rm_failure *failure);
void rm_failure_end(rm_failure *failure);

/* Reports that `rank` did not send to this rank or, if this one was `sending`, did not receive, and ends the group for
 * all. If `rank` itself waits for another rank, the last one of this chain is named. Always PEER. Takes at most a
 * second. */
remat_status rm_failure_find_rank(rm_failure *failure, int32_t rank, bool sending, const char *why);

void rm_failure_abort(rm_failure *failure, const char *reason); /* makes rm_failure_look fail on the other ranks */

#endif

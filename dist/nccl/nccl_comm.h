/* nccl_comm.h: the life cycle of NCCL's communicators without blocking: creating, polling, finalizing and ending them
 * within a time limit, and messages for NCCL's errors. group_nccl.c runs the collectives.
 *
 *                 InProgress               ┌────── issued ◄──── a collective ──┐
 *   open, split ─────► ... ─────► ready ───┤                                   ├──► finalize ... ─► destroy
 *                       │           ▲      └──── stream drained ───────────────┘       │
 *                       │           └──────────────────────────────┘                   │
 *                       └──────────────► any error, or the time is over ◄──────────────┘
 *                                                     │
 *                                                   abort, and no other call
 *
 * NCCL's rule: while a communicator is InProgress, only ncclCommGetAsyncError and ncclCommAbort may be called; after an
 * error, only ncclCommAbort. One thread at a time. */
#ifndef RM_NCCL_COMM_H
#define RM_NCCL_COMM_H

#include "dist/nccl/nccl_library.h"

typedef struct {
    const rm_nccl_library *lib;
    int device;
    cudaStream_t stream;
    /* Called repeatedly while this rank waits: OK to go on waiting, or the failure that ends the wait. */
    remat_status (*look)(void *context, uint64_t waited_ns);
    void *context;
    int64_t patience_ms; /* time limit for operations that must not fail: ending a communicator */
    /* An event that the stream waits for and that had not been reached when last polled; NULL: none */
    cudaEvent_t after;
    ncclResult_t result; /* NCCL's last error */
    /* A communicator could not be ended in time. NCCL may then hold the GPU forever, so nothing that waits for the GPU
     * may be called, not even cudaFree. Memory, threads and the communicator remain until the process ends. */
    _Atomic bool stuck; /* read by any thread */
} rm_nccl;

/* Returns when all ranks have arrived and are connected. After a failure *out is NULL and everything is freed. */
remat_status rm_nccl_open(rm_nccl *nccl, int rank, int size, const ncclUniqueId *id, ncclComm_t *out);
/* Collective over `parent`: creates one communicator for each `color`, with ranks in the order of `parent`. */
remat_status rm_nccl_split(rm_nccl *nccl, ncclComm_t parent, int color, int key, ncclComm_t *out);

/* Takes the result of a call on `comm`. Returns OK when NCCL has accepted the call, possibly after InProgress. */
remat_status rm_nccl_issued(rm_nccl *nccl, ncclComm_t comm, ncclResult_t result);
/* Work that the stream gets from now on waits for `event` of another stream on this GPU. */
remat_status rm_nccl_follow(rm_nccl *nccl, cudaEvent_t event);
/* Waits until the stream is empty and polls `comm` for failures meanwhile. The time passed to `look` starts when the
 * event has been reached, since before that this rank waits only for itself. */
remat_status rm_nccl_drain(rm_nccl *nccl, ncclComm_t comm);

/* Both set *comm to NULL (and accept NULL), and take at most a few times patience_ms. */
void rm_nccl_close(rm_nccl *nccl,
                   /* Finishes issued collectives; waits for other ranks for patience_ms, then aborts */
                   ncclComm_t *comm);
void rm_nccl_abort(rm_nccl *nccl, ncclComm_t *comm);

/* Fails with a message for NCCL's result: NCCL's own text and the remedy. `comm` may be NULL. PEER, INVALID or
 * DEVICE. */
remat_status rm_nccl_fail(const rm_nccl_library *lib, ncclComm_t comm, ncclResult_t result);

#endif

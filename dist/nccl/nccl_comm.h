/* nccl_comm.h: the life of NCCL's communicators when nothing may block: made, asked, finished with and ended, each within
 * a time, and what NCCL says in words. What is computed on them is group_nccl.c's.
 *
 *                 InProgress               ┌────── issued ◄──── a collective ──┐
 *   open, split ─────► ... ─────► ready ───┤                                   ├──► finalize ... ─► destroy
 *                       │           ▲      └──── stream drained ───────────────┘       │
 *                       │           └──────────────────────────────┘                   │
 *                       └──────────────► any error, or the time is over ◄──────────────┘
 *                                                     │
 *                                                   abort, and no other call
 *
 * NCCL's rule: while a communicator is InProgress, nothing but ncclCommGetAsyncError and ncclCommAbort; after an error
 * nothing but ncclCommAbort. One thread at a time. */
#ifndef RM_NCCL_COMM_H
#define RM_NCCL_COMM_H

#include "dist/nccl/nccl_library.h"

typedef struct {
    const rm_nccl_library *lib;
    int device;
    cudaStream_t stream;
    /* Asked again and again while this rank waits: OK to go on waiting, or what ends it, with its sentence. */
    remat_status (*look)(void *context, uint64_t waited_ns);
    void *context;
    int64_t patience_ms; /* for what must not fail: ending a communicator */
    cudaEvent_t after;   /* that the stream waits for, and that was not reached when last seen; NULL: none */
    ncclResult_t result; /* NCCL's last failure */
    /* A communicator could not be ended in time. NCCL may then hold the GPU for ever, so nothing may be called that waits
     * for the GPU: no cudaFree. Memory, threads and the communicator stay behind until the process ends. */
    _Atomic bool stuck; /* read by any thread */
} rm_nccl;

/* Returns when all ranks have come and are connected. After a failure *out is NULL and nothing is left. */
remat_status rm_nccl_open(rm_nccl *nccl, int rank, int size, const ncclUniqueId *id, ncclComm_t *out);
/* Collective over `parent`: one communicator for each `color`, ranks in the order of `parent`. */
remat_status rm_nccl_split(rm_nccl *nccl, ncclComm_t parent, int color, int key, ncclComm_t *out);

/* Takes what a call on `comm` returned; OK when NCCL has accepted it, after InProgress too. */
remat_status rm_nccl_issued(rm_nccl *nccl, ncclComm_t comm, ncclResult_t result);
/* What the stream is given from now on waits for `event`, of another stream of this GPU. */
remat_status rm_nccl_follow(rm_nccl *nccl, cudaEvent_t event);
/* Until the stream is empty. `comm` is asked for failures meanwhile. The time that `look` is told begins when the event has been
 * reached: before, this rank waits for itself. */
remat_status rm_nccl_drain(rm_nccl *nccl, ncclComm_t comm);

/* Both set *comm to NULL, which is allowed to be it, and take no longer than a few times patience_ms. */
void rm_nccl_close(rm_nccl *nccl,
                   ncclComm_t *comm); /* with what was issued; waits for others for patience_ms, then abort */
void rm_nccl_abort(rm_nccl *nccl, ncclComm_t *comm);

/* NCCL's results in words, with its own and the remedy; `comm` may be NULL. PEER, INVALID or DEVICE. */
remat_status rm_nccl_fail(const rm_nccl_library *lib, ncclComm_t comm, ncclResult_t result);

#endif

/* nccl_comm.c: creates, waits for and ends communicators, for group_nccl.c. */
#define _GNU_SOURCE
#include "dist/nccl/nccl_comm.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/host.h"

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* A collective on a bucket takes some hundred microseconds: spins that long, then sleeps between polls. */
enum { AWAKE_NS = 1000000 };
static void pause_after(uint64_t waited_ns) {
    if (waited_ns < AWAKE_NS)
        sched_yield();
    else
        usleep(waited_ns < 1000000000 ? 50 : 1000);
}

static ncclResult_t state_of(const rm_nccl *nccl, ncclComm_t comm) {
    ncclResult_t state = ncclSuccess, asked = nccl->lib->ncclCommGetAsyncError(comm, &state);
    return asked ? asked : state;
}

static remat_status fail(rm_nccl *nccl, ncclComm_t comm, ncclResult_t result) {
    nccl->result = result;
    return rm_nccl_fail(nccl->lib, comm, result);
}

remat_status rm_nccl_issued(rm_nccl *nccl, ncclComm_t comm, ncclResult_t result) {
    const uint64_t start = result == ncclInProgress ? rm_now_ns() : 0;
    while (result == ncclInProgress) {
        uint64_t waited = rm_now_ns() - start;
        TRY(nccl->look(nccl->context, waited));
        pause_after(waited);
        result = state_of(nccl, comm);
    }
    return result ? fail(nccl, comm, result) : REMAT_OK;
}

remat_status rm_nccl_follow(rm_nccl *nccl, cudaEvent_t event) {
    nccl->after = event;
    return rm_cuda_check(nccl->lib, nccl->lib->cudaStreamWaitEvent(nccl->stream, event, 0), "waiting for an event");
}

/* If the event failed instead of being reached, the stream reports the failure, too. */
static bool is_ahead(rm_nccl *nccl) {
    if (!nccl->after) return false;
    bool ahead = nccl->lib->cudaEventQuery(nccl->after) == cudaErrorNotReady;
    if (ahead)
        (void)nccl->lib->cudaGetLastError();
    else
        nccl->after = NULL;
    return ahead;
}

/* Polls the stream first, so that a failure that emptied it is seen in the communicator's state. */
remat_status rm_nccl_drain(rm_nccl *nccl, ncclComm_t comm) {
    for (uint64_t reached = rm_now_ns();;) {
        cudaError_t work = nccl->lib->cudaStreamQuery(nccl->stream);
        ncclResult_t state = state_of(nccl, comm);
        if (state && state != ncclInProgress) return fail(nccl, comm, state);
        if (!work && !state) return REMAT_OK;
        if (work && work != cudaErrorNotReady) return rm_cuda_check(nccl->lib, work, "waiting for the GPU");
        if (work) (void)nccl->lib->cudaGetLastError(); /* CUDA remembers "not ready" as if it were an error */
        uint64_t now = rm_now_ns();
        bool ahead = is_ahead(nccl);
        if (ahead) reached = now;
        TRY(nccl->look(nccl->context, now - reached));
        pause_after(ahead ? AWAKE_NS : now - reached);
    }
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

remat_status rm_nccl_open(rm_nccl *nccl, int rank, int size, const ncclUniqueId *id, ncclComm_t *out) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    *out = NULL;
    ncclResult_t result = nccl->lib->ncclCommInitRankConfig(out, size, *id, rank, &config);
    remat_status status = *out || result ? rm_nccl_issued(nccl, *out, result)
                                         : rm_fail(REMAT_DEVICE, "NCCL created no communicator and gave no reason");
    if (status) rm_nccl_abort(nccl, out);
    return status;
}

/* The new communicator is InProgress at least as long as its parent. */
remat_status rm_nccl_split(rm_nccl *nccl, ncclComm_t parent, int color, int key, ncclComm_t *out) {
    *out = NULL;
    remat_status status = rm_nccl_issued(
        nccl, parent, nccl->lib->ncclCommSplit(parent, color, key, out, NULL /* copies the parent's config */));
    if (!status && *out) status = rm_nccl_issued(nccl, *out, state_of(nccl, *out));
    if (!status && !*out) status = rm_fail(REMAT_DEVICE, "NCCL created no communicator and gave no reason");
    if (status) rm_nccl_abort(nccl, out);
    return status;
}

/* ---- End --------------------------------------------------------------------------------------------------------- */

/* Abort and destroy are known to hang (a peer that is half gone, several communicators). They run in a thread of their
 * own, which is abandoned if it takes too long. The thread frees its arguments whenever it ends. */
typedef struct {
    const rm_nccl_library *lib;
    __typeof__(ncclCommAbort) *call;
    ncclComm_t comm;
    int device;
} last_call;

static void *make_call(void *context) {
    last_call call = *(last_call *)context;
    rm_free(context);
    (void)call.lib->cudaSetDevice(call.device);
    (void)call.call(call.comm);
    return NULL;
}

static bool start_thread(pthread_t *thread, last_call *call) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(thread, NULL, make_call, call);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed;
}

static bool in_time(const rm_nccl *nccl, __typeof__(ncclCommAbort) *function, ncclComm_t comm) {
    pthread_t thread;
    last_call *call = rm_malloc(sizeof *call);
    if (!call) return false;
    *call = (last_call){.lib = nccl->lib, .call = function, .comm = comm, .device = nccl->device};
    if (!start_thread(&thread, call)) {
        rm_free(call);
        return false;
    }
    const uint64_t start = rm_now_ns(), patience = (uint64_t)nccl->patience_ms * 1000000u;
    do { /* pthread_timedjoin_np uses the wall clock, which may be set back */
        if (!pthread_tryjoin_np(thread, NULL)) return true;
        pause_after(rm_now_ns() - start);
    } while (rm_now_ns() - start < patience);
    pthread_detach(thread);
    return false;
}

void rm_nccl_abort(rm_nccl *nccl, ncclComm_t *comm) {
    if (*comm && !in_time(nccl, nccl->lib->ncclCommAbort, *comm)) nccl->stuck = true;
    *comm = NULL;
}

static bool finalize(const rm_nccl *nccl, ncclComm_t comm) {
    ncclResult_t result = nccl->lib->ncclCommFinalize(comm);
    const uint64_t start = rm_now_ns(), patience = (uint64_t)nccl->patience_ms * 1000000u;
    while (result == ncclInProgress && rm_now_ns() - start < patience) {
        pause_after(rm_now_ns() - start);
        result = state_of(nccl, comm);
    }
    return result == ncclSuccess;
}

void rm_nccl_close(rm_nccl *nccl, ncclComm_t *comm) {
    if (!*comm) return;
    if (!finalize(nccl, *comm)) {
        rm_nccl_abort(nccl, comm);
        return;
    }
    if (!in_time(nccl, nccl->lib->ncclCommDestroy, *comm)) nccl->stuck = true;
    *comm = NULL;
}

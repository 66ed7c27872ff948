/* fake_nccl.c: libnccl without a GPU: communicators, their life cycle and their faults (fake.h). fake_ring.c computes
 * the sums. */
#include "fake.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_OPS = 16 };
typedef enum { STARTING, READY, FINALIZED, ENDED } stage;

/* Kept as long as their communicator, since a GPU that breaks never runs the waiting ones. */
typedef struct operation {
    struct operation *next;
    struct ncclComm *comm;
    fake_collective what;
    long number;
    bool broken; /* a message whose other rank is gone */
} operation;

/* Never freed, so that a call on a communicator that has ended is detected. */
struct ncclComm {
    struct ncclComm *next;
    operation *given;
    char path[160];
    int rank, size, device, splits;
    _Atomic stage stage;
    _Atomic int result; /* ncclInProgress while starting */
    char text[200];
    long questions;  /* this many more polls return InProgress */
    operation *held; /* starts when these polls have been answered */
    cudaStream_t stream;
    _Atomic bool stop;
    _Atomic int running; /* number of operations on a stream, and the start */
    atomic_flag inside;
    fake_ring *ring;
    struct ncclComm *parent; /* of a split: the ranks first meet there */
    int color, key;
    long collectives;
    ncclDataType_t op_type[MOST_OPS];
    unsigned char op_scale[MOST_OPS][8];
    int ops;
    bool op_gone[MOST_OPS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *comms;
static _Thread_local char last_text[200];

int fake_nccl_live(void) {
    int n = 0;
    pthread_mutex_lock(&lock);
    for (ncclComm_t c = comms; c; c = c->next) n += c->stage != ENDED;
    pthread_mutex_unlock(&lock);
    return n;
}

static const _Atomic bool never;

static void wait_for_ever(const _Atomic bool *stop) {
    while (!*stop) usleep(1000);
}

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

static void enter(ncclComm_t comm, const char *call) {
    if (!comm || comm->stage == ENDED) fake_violation("%s on a communicator that is not, or no longer, there", call);
    if (atomic_flag_test_and_set(&comm->inside)) fake_violation("%s while another thread uses the communicator", call);
}
static ncclResult_t leave(ncclComm_t comm, ncclResult_t result) {
    atomic_flag_clear(&comm->inside);
    return result;
}

static void enter_ready(ncclComm_t comm, const char *call) {
    enter(comm, call);
    if (comm->result == ncclInProgress || comm->questions > 0) fake_violation("%s while InProgress", call);
    if (comm->result) fake_violation("%s after a failure (%d)", call, (int)comm->result);
    if (comm->stage != READY) fake_violation("%s in stage %d", call, (int)comm->stage);
}

static void fail(ncclComm_t comm, ncclResult_t result, const char *text) {
    pthread_mutex_lock(&lock);
    if (comm->result == ncclSuccess || comm->result == ncclInProgress) {
        snprintf(comm->text, sizeof comm->text, "%s", text);
        comm->result = result;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- Information ------------------------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version) {
    *version = (int)fake_fault("version", NCCL_VERSION_CODE);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static int number;
    const char *folder = getenv("TMPDIR");
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%.80s/fake-nccl-%d-%d", folder ? folder : "/tmp", (int)getpid(),
             number++);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited or there was a network error" : "some failure";
}

const char *ncclGetLastError(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    snprintf(last_text, sizeof last_text, "%s", comm ? comm->text : "");
    pthread_mutex_unlock(&lock);
    return last_text;
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

static ncclComm_t new_comm(const char *path, int rank, int size) {
    ncclComm_t comm = calloc(1, sizeof *comm);
    snprintf(comm->path, sizeof comm->path, "%s", path);
    comm->rank = rank;
    comm->size = size;
    comm->device = fake_current_device();
    comm->result = ncclInProgress;
    comm->questions = fake_fault("in_progress", 0);
    pthread_mutex_lock(&lock);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&lock);
    return comm;
}

/* Ranks of the parent with the same color, in the order of their keys, which must be the parent's order. */
static fake_end find_pair(ncclComm_t comm) {
    int colors[FAKE_RANKS];
    ncclComm_t parent = comm->parent;
    fake_end end = fake_ring_tell(parent->ring, comm->color, colors);
    for (int r = 0; !end && r < parent->size; r++) {
        if (colors[r] != comm->color) continue;
        if (r < parent->rank) comm->rank++;
        comm->size++;
    }
    parent->result = end ? ncclRemoteError : ncclSuccess;
    return end;
}

static void start(ncclComm_t comm) {
    char text[200];
    int same[2];
    usleep((useconds_t)fake_fault("slow_init", 0) * 1000);
    if (fake_fault(comm->parent ? "split_hangs" : "init_hangs", 0)) wait_for_ever(&comm->stop);
    if (fake_fault("init_fails", 0)) {
        fail(comm, ncclSystemError, "Bootstrap : no socket interface found");
        return;
    }
    if (comm->stop) return;
    fake_end end = comm->parent ? find_pair(comm) : FAKE_DONE;
    if (!end) {
        comm->ring = fake_ring_open(comm->path, comm->rank, comm->size, &comm->stop);
        end = fake_ring_meet(comm->ring, comm->device, same);
    }
    if (end == FAKE_SAME_GPU) {
        snprintf(text, sizeof text, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x000\n", same[0],
                 same[1], comm->device + 1);
        fail(comm, ncclInvalidUsage, text);
    } else if (end) {
        fail(comm, ncclRemoteError, "remote process exited or there was a network error");
    } else {
        comm->stage = READY;
        comm->result = ncclSuccess;
    }
}

static void *start_in_thread(void *context) {
    ncclComm_t comm = context;
    start(comm);
    comm->running--;
    return NULL;
}

static void begin(ncclComm_t comm) {
    pthread_t thread;
    comm->running++;
    pthread_create(&thread, NULL, start_in_thread, comm);
    pthread_detach(thread);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    if (config->magic != 0xcafebeef || config->size != sizeof *config)
        fake_violation("a config without its initializer");
    if (config->blocking != 0) fake_violation("a communicator that blocks");
    if (rank < 0 || rank >= size) fake_violation("rank %d of %d", rank, size);
    *out = new_comm(id.internal, rank, size);
    begin(*out);
    return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    char path[160];
    enter_ready(parent, "ncclCommSplit");
    if (config || key != parent->rank) fake_violation("the fake splits in the parent's order, and as the parent is");
    snprintf(path, sizeof path, "%.100s-%d-%d", parent->path, parent->splits++, color);
    ncclComm_t comm = new_comm(path, 0, 0);
    comm->parent = parent;
    comm->color = color;
    comm->key = key;
    parent->result = ncclInProgress;
    *out = comm;
    begin(comm);
    return leave(parent, ncclInProgress);
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

/* After a failure the GPU waits until the communicator is aborted. */
static cudaError_t exchange(ncclComm_t comm, operation *op) {
    if (comm->stop) return cudaSuccess;
    fake_end end = op->broken ? FAKE_NOT_YET : fake_ring_run(comm->ring, &op->what);
    op->broken |= end == FAKE_PEER_GONE;
    if (end == FAKE_PEER_GONE) fail(comm, ncclRemoteError, "socketProgress: Connection closed by remote peer\n");
    return end == FAKE_NOT_YET || end == FAKE_PEER_GONE ? cudaErrorNotReady : cudaSuccess;
}

static cudaError_t operate(ncclComm_t comm, operation *op) {
    if (op->number == fake_fault("cuda_at", 0)) return cudaErrorLaunchFailure;
    if (op->number == fake_fault(comm->parent ? "pair_hang_at" : "hang_at", 0)) wait_for_ever(&comm->stop);
    if (op->what.kind >= FAKE_SEND) return exchange(comm, op);
    if (comm->stop) return cudaSuccess;
    fake_end end = op->number == fake_fault(comm->parent ? "pair_remote_at" : "remote_at", 0)
                       ? FAKE_PEER_GONE
                       : fake_ring_run(comm->ring, &op->what);
    if (end == FAKE_PEER_GONE) {
        usleep(20000);
        fail(comm, ncclRemoteError, "socketProgress: Connection closed by remote peer node7<40001>\n");
        wait_for_ever(&comm->stop);
    }
    return cudaSuccess;
}

static cudaError_t run(void *context) {
    operation *op = context;
    cudaError_t error = operate(op->comm, op);
    if (error != cudaErrorNotReady) op->comm->running--;
    return error;
}

static void launch(operation *op, cudaStream_t stream) {
    const fake_collective *what = &op->what;
    const size_t bytes = what->count * fake_type_bytes(what->type), all = bytes * (size_t)op->comm->size;
    op->comm->running++;
    fake_push(stream, run, op,
              (fake_touched){.in = what->in,
                             .out = what->out,
                             .in_bytes = what->kind == FAKE_RECEIVE          ? 0
                                         : what->kind == FAKE_REDUCE_SCATTER ? all
                                                                             : bytes,
                             .out_bytes = what->kind == FAKE_SEND         ? 0
                                          : what->kind == FAKE_ALL_GATHER ? all
                                                                          : bytes});
}

static ncclResult_t issue(ncclComm_t comm, fake_collective what, ncclRedOp_t sum, cudaStream_t stream,
                          const char *call) {
    const size_t bytes = what.count * fake_type_bytes(what.type), size = (size_t)comm->size;
    enter_ready(comm, call);
    if (fake_current_device() != comm->device || fake_stream_device(stream) != comm->device)
        fake_violation("%s on another GPU than the communicator's", call);
    if (what.kind >= FAKE_SEND && (what.root < 0 || what.root >= comm->size || what.root == comm->rank))
        fake_violation("%s with rank %d of %d", call, what.root, comm->size);
    fake_need_device_memory(what.in, what.kind == FAKE_REDUCE_SCATTER ? bytes * size : bytes, call);
    fake_need_device_memory(what.out, what.kind == FAKE_ALL_GATHER ? bytes * size : bytes, call);
    if (sum == ncclMax) what.maximum = true;
    if (sum >= ncclNumOps) {
        int i = (int)sum - ncclNumOps;
        if (i >= comm->ops || comm->op_gone[i] || comm->op_type[i] != what.type)
            fake_violation("%s with a reduction that is not this communicator's, or of another type", call);
        what.scaled = true;
        memcpy(what.scale, comm->op_scale[i], sizeof what.scale);
    }
    operation *op = malloc(sizeof *op);
    *op = (operation){.next = comm->given, .comm = comm, .what = what, .number = ++comm->collectives};
    comm->given = op;
    if (op->number == fake_fault("system_at", 0)) {
        fail(comm, ncclSystemError, "Call to ibv_reg_mr failed with error Cannot allocate memory");
        return leave(comm, ncclSystemError);
    }
    if ((comm->questions = fake_fault("in_progress", 0)) == 0) {
        launch(op, stream);
        return leave(comm, ncclSuccess);
    }
    comm->held = op;
    comm->stream = stream;
    return leave(comm, ncclInProgress);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    fake_collective what = {.kind = FAKE_ALL_REDUCE, .type = type, .count = count, .in = in, .out = out};
    return issue(comm, what, op, stream, "ncclAllReduce");
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    fake_collective what = {.kind = FAKE_BROADCAST, .type = type, .root = root, .count = count, .in = in, .out = out};
    return issue(comm, what, ncclSum, stream, "ncclBroadcast");
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    fake_collective what = {.kind = FAKE_ALL_GATHER, .type = type, .count = count, .in = in, .out = out};
    return issue(comm, what, ncclSum, stream, "ncclAllGather");
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    fake_collective what = {.kind = FAKE_REDUCE_SCATTER, .type = type, .count = count, .in = in, .out = out};
    return issue(comm, what, op, stream, "ncclReduceScatter");
}

/* A message is one buffer, which counts as both. */
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    fake_collective what = {.kind = FAKE_SEND, .type = type, .root = peer, .count = count, .in = data};
    what.out = (void *)(uintptr_t)data;
    return issue(comm, what, ncclSum, stream, "ncclSend");
}
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    fake_collective what = {.kind = FAKE_RECEIVE, .type = type, .root = peer, .count = count, .in = data, .out = data};
    return issue(comm, what, ncclSum, stream, "ncclRecv");
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t where,
                                      ncclComm_t comm) {
    enter_ready(comm, "ncclRedOpCreatePreMulSum");
    usleep((useconds_t)fake_fault("slow_mean", 0) * 1000);
    if (where != ncclScalarHostImmediate || comm->ops == MOST_OPS) fake_violation("ncclRedOpCreatePreMulSum");
    comm->op_type[comm->ops] = type;
    memcpy(comm->op_scale[comm->ops], scalar, fake_type_bytes(type));
    *op = (ncclRedOp_t)(ncclNumOps + comm->ops++);
    comm->questions = fake_fault("in_progress", 0);
    return leave(comm, comm->questions ? ncclInProgress : ncclSuccess);
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    enter_ready(comm, "ncclRedOpDestroy");
    int i = (int)op - ncclNumOps;
    if (i < 0 || i >= comm->ops || comm->op_gone[i]) fake_violation("ncclRedOpDestroy of what is not there");
    comm->op_gone[i] = true;
    return leave(comm, ncclSuccess);
}

/* ---- Polling ----------------------------------------------------------------------------------------------------- */

static ncclResult_t answer(ncclComm_t comm) {
    int result = comm->result;
    if (result && result != ncclInProgress) return (ncclResult_t)result;
    if (comm->questions > 0) {
        comm->questions--;
        return ncclInProgress;
    }
    if (comm->held) {
        launch(comm->held, comm->stream);
        comm->held = NULL;
    }
    return (ncclResult_t)result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    enter(comm, "ncclCommGetAsyncError");
    *state = answer(comm);
    return leave(comm, ncclSuccess);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    enter_ready(comm, "ncclCommFinalize");
    comm->stage = FINALIZED;
    comm->questions = fake_fault("finalize_hangs", 0) ? 1L << 40 : fake_fault("in_progress", 0);
    return leave(comm, comm->questions ? ncclInProgress : ncclSuccess);
}

static void end(ncclComm_t comm) {
    comm->stop = true;
    if (comm->parent && comm->stage == STARTING) comm->parent->stop = true; /* the start waits there */
    while (comm->running && fake_streams_go_on()) usleep(100);
    if (comm->ring) fake_ring_close(comm->ring);
    free(comm->held);
    comm->held = NULL;
    pthread_mutex_lock(&lock);
    comm->stage = ENDED;
    pthread_mutex_unlock(&lock);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    enter(comm, "ncclCommDestroy");
    if (comm->stage != FINALIZED || comm->questions || comm->result) fake_violation("ncclCommDestroy before finalized");
    if (fake_fault("destroy_hangs", 0)) wait_for_ever(&never);
    end(comm);
    return leave(comm, ncclSuccess);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    enter(comm, "ncclCommAbort");
    if (fake_fault("abort_hangs", 0)) wait_for_ever(&never);
    end(comm);
    return leave(comm, ncclSuccess);
}

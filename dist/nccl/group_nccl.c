/* group_nccl.c: collectives by NVIDIA's NCCL, between GPUs. The table rm_group_nccl is at the end. The other engines
 * work on host memory; here every buffer is on this rank's GPU (rm_group_config.gpu).
 *
 * Nothing blocks. Communicators are NCCL's non-blocking ones, and the stream is polled. Between polls this rank checks
 * the clock and looks for dead ranks (nccl_comm.h). A failure ends in an abort and a message, here and, through the
 * store, on the other ranks.
 *
 * NCCL itself compares nothing: ranks that disagree about a collective hang or get wrong sums. Every collective
 * therefore begins with the maximum of 16 bytes (agree.h), for which the host waits before the data are touched. This
 * costs one small all-reduce and two copies of 16 bytes per call. A barrier consists of this exchange alone. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/group/agree.h"
#include "dist/group/failure.h"
#include "dist/group/joining.h"
#include "dist/nccl/nccl_buffers.h"
#include "dist/nccl/nccl_messages.h"
#include "dist/nccl/nccl_tree.h"
#include "dist/group/reduce.h"
#include "memory/clock.h"
#include "memory/host.h"

#define ABORT_MS 5000 /* time for NCCL to end a communicator; the group's timeout if that is shorter */
#define CONNECTING "connecting by NCCL"
#define INTERFACE "NCCL_SOCKET_IFNAME"
#define TELLING_MS 1000 /* after a lost connection, the store reports a dead rank within this time */

typedef struct {
    rm_group_config config;
    rm_failure failure;
    int64_t limit_ms; /* for another rank: join_ms while the group is opened, then timeout_ms */
    bool blaming;     /* this rank is registered in the store, so failures can be attributed */
    rm_nccl nccl;
    pthread_mutex_t lock; /* protects the communicators: a collective holds it, poll only tries it */
    ncclComm_t world;
    rm_nccl_tree tree;
    ncclRedOp_t mean[RM_WIRES]; /* x * fl(1/W), summed */
    bool has_mean[RM_WIRES];
    /* Two numbers for comparing fingerprints: on the GPU, and in page-locked host memory */
    uint64_t *number, *number_host;
    uint64_t device_bytes; /* taken when the group was opened */
    void *scratch;         /* on the GPU, for RM_TREE */
    uint64_t scratch_bytes;
    const rm_fingerprint *now; /* NULL: between collectives */
    int32_t partner;           /* of the message that is exchanged; -1: none */
    bool sending;
    rm_nccl_messages messages; /* of streams of this GPU */
    uint64_t waits_for;        /* number of the message that the store may know this rank to wait for; 0: none */
    bool complete;             /* the failure's message already says who and where */
    bool told;                 /* the other ranks have been told */
    atomic_flag ending;        /* rm_group_abort has been called; `reason` is complete once `ended` is true */
    _Atomic bool ended;
    char reason[600];
    rm_nccl_buffers buffers;
} nccl_group;

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* A rank learns that the others could not connect from its own heartbeat or, a moment earlier, from the store. */
static remat_status look_at_others(nccl_group *g) {
    TRY(rm_joining_look(g->config.joining));
    return rm_failure_look(&g->failure, g->now);
}

/* Adds the usual reason why ranks that have all arrived cannot connect. A rank that has reported it has added it. */
static remat_status explain(remat_status status) {
    const char *why = remat_last_error();
    if (!status || !strstr(why, CONNECTING) || strstr(why, INTERFACE)) return status;
    return rm_fail(status,
                   "%.600s. The usual reason is a network interface that does not reach the others; choose one "
                   "with " INTERFACE "=NAME. NCCL_DEBUG=INFO shows what NCCL tries",
                   why);
}

static remat_status look_around(nccl_group *g, uint64_t waited_ns) {
    char why[64];
    bool late = waited_ns >= (uint64_t)g->limit_ms * 1000000u;
    g->told = true;
    if (g->ended) FAIL(PEER, "rank %d ended the group: %s", g->config.rank, g->reason);
    TRY(explain(look_at_others(g)));
    g->told = false;
    if (!late || (!g->now && g->partner < 0)) return REMAT_OK;
    snprintf(why, sizeof why, "%lld ms have passed", (long long)g->limit_ms);
    return g->now ? rm_failure_find(&g->failure, g->now, why)
                  : rm_failure_find_rank(&g->failure, g->partner, g->sending, why);
}

static remat_status look(void *context, uint64_t waited_ns) {
    nccl_group *g = context;
    remat_status status = look_around(g, waited_ns);
    g->complete = status != REMAT_OK;
    return status;
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* NCCL only reports a lost connection; a moment later the store knows which rank died. */
static remat_status find_the_dead(nccl_group *g, remat_status status) {
    char text[700];
    if (g->nccl.result != ncclRemoteError && g->nccl.result != ncclSystemError) return status;
    snprintf(text, sizeof text, "%s", remat_last_error());
    for (const uint64_t start = rm_now_ns(); rm_now_ns() - start < TELLING_MS * UINT64_C(1000000); usleep(10000)) {
        remat_status found = rm_failure_look(&g->failure, g->now);
        if (!found) continue;
        g->complete = g->told = true;
        return found;
    }
    return rm_fail(status, "%s", text);
}

static void end_communicators(nccl_group *g) {
    rm_nccl_tree_end(&g->nccl, &g->tree, rm_nccl_abort);
    rm_nccl_abort(&g->nccl, &g->world);
}

/* Handles every failure: finds the cause, tells the other ranks, and ends the communicators. Keeps the message. */
static remat_status give_up(nccl_group *g, remat_status status, const char *doing) {
    char text[900];
    if (!g->complete) status = find_the_dead(g, status);
    if (!g->complete) (void)rm_fail_in(status, "rank %d, %s", g->config.rank, doing);
    snprintf(text, sizeof text, "%s", remat_last_error());
    if (g->blaming && !g->told) rm_failure_abort(&g->failure, text);
    end_communicators(g);
    if (!g->nccl.stuck) return rm_fail(status, "%s", text);
    return rm_fail(status,
                   "%s. NCCL could not be ended within %lld ms: its threads and this rank's GPU memory stay allocated "
                   "until the process ends",
                   text, (long long)g->nccl.patience_ms);
}

/* ---- Fingerprints ------------------------------------------------------------------------------------------------ */

static remat_status move(nccl_group *g, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return rm_cuda_check(g->nccl.lib, g->nccl.lib->cudaMemcpyAsync(to, from, bytes, kind, g->nccl.stream),
                         "copying to or from the GPU");
}

static remat_status maximum(void *context, const rm_fingerprint *now, uint64_t number[2]) {
    nccl_group *g = context;
    const size_t bytes = 2 * sizeof *number;
    (void)now;
    memcpy(g->number_host, number, bytes);
    TRY(move(g, g->number, g->number_host, bytes, cudaMemcpyHostToDevice));
    TRY(rm_nccl_issued(
        &g->nccl, g->world,
        g->nccl.lib->ncclAllReduce(g->number, g->number, 2, ncclUint64, ncclMax, g->world, g->nccl.stream)));
    TRY(move(g, g->number_host, g->number, bytes, cudaMemcpyDeviceToHost));
    TRY(rm_nccl_drain(&g->nccl, g->world));
    memcpy(number, g->number_host, bytes);
    return REMAT_OK;
}

static remat_status wait_for_key(nccl_group *g, const char *key, void *value, uint32_t bytes) {
    uint32_t length = 0;
    for (const uint64_t start = rm_now_ns();;) {
        remat_status status = rm_kv_get(g->config.store, key, value, bytes, &length, -1);
        if (!status) break;
        if (status != REMAT_MISSING) return status;
        TRY(look(g, rm_now_ns() - start));
        usleep(1000);
    }
    REQUIRE(length == bytes, INTERNAL, "%s has %u bytes in the store instead of %u", key, length, bytes);
    return REMAT_OK;
}

/* Through the store: ranks that disagree stop here, and the first rank to finish must not close NCCL for the others. */
static remat_status gather(void *context, const rm_fingerprint *mine, rm_fingerprint *all) {
    nccl_group *g = context;
    char key[RM_KV_KEY_BYTES];
    const unsigned long long call = mine->call;
    snprintf(key, sizeof key, "%s/said/%llu/%d", g->config.name, call, g->config.rank);
    TRY(rm_kv_set(g->config.store, key, mine, sizeof *mine));
    for (int32_t r = 0; r < g->config.size; r++) {
        snprintf(key, sizeof key, "%s/said/%llu/%d", g->config.name, call, r);
        TRY(wait_for_key(g, key, &all[r], sizeof all[r]));
    }
    return REMAT_OK;
}

static remat_status agree(nccl_group *g, const rm_fingerprint *mine) {
    if (g->config.size == 1) return REMAT_OK;
    rm_exchange exchange = {.maximum = maximum, .gather = gather, .context = g};
    remat_status status = rm_agree(&g->config, &exchange, mine);
    if (status == REMAT_PEER && !g->nccl.result) g->complete = true; /* the message already names the two ranks */
    return status;
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

static const ncclDataType_t types[RM_WIRES] = {
    [RM_WIRE_F32] = ncclFloat32, [RM_WIRE_I32] = ncclUint32, /* sums of i32 wrap around by definition */
    [RM_WIRE_U8] = ncclUint8,    [RM_WIRE_F64] = ncclFloat64,
    [RM_WIRE_F16] = ncclFloat16, [RM_WIRE_BF16] = ncclBfloat16,
};

static remat_status check_memory(const nccl_group *g, const void *address, const char *which) {
    struct cudaPointerAttributes about = {0};
    if (!address) return REMAT_OK;
    cudaError_t error = g->nccl.lib->cudaPointerGetAttributes(&about, address);
    if (error) (void)g->nccl.lib->cudaGetLastError(); /* older versions of CUDA return an error for unknown memory */
    REQUIRE(!error && (about.type == cudaMemoryTypeDevice || about.type == cudaMemoryTypeManaged), INVALID,
            "the %s is host memory, but NCCL only works on GPU memory. For ranks that compute on the CPU "
            "use local, mpi or gloo ({backend}=auto chooses)",
            which);
    REQUIRE(about.type == cudaMemoryTypeManaged || about.device == g->nccl.device, INVALID,
            "the %s is on GPU %d, but the group of rank %d uses GPU %d", which, about.device, g->config.rank,
            g->nccl.device);
    return REMAT_OK;
}

static remat_status check_buffers(const nccl_group *g, const rm_collective *what) {
    if (rm_collective_in_bytes(what, g->config.size)) TRY(check_memory(g, what->in, "collective's in"));
    if (rm_collective_out_bytes(what, g->config.size)) TRY(check_memory(g, what->out, "collective's out"));
    return REMAT_OK;
}

static remat_status need_scratch(nccl_group *g, uint64_t bytes) {
    if (bytes <= g->scratch_bytes) return REMAT_OK;
    (void)g->nccl.lib->cudaFree(g->scratch); /* safe, since the stream is empty */
    g->scratch = NULL;
    g->scratch_bytes = 0;
    TRY(rm_cuda_check(g->nccl.lib, g->nccl.lib->cudaMalloc(&g->scratch, bytes), "memory for a tree sum"));
    g->scratch_bytes = bytes;
    return REMAT_OK;
}

/* For reduce_scatter, computes the whole tree sum and keeps one row. */
static remat_status sum_as_tree(nccl_group *g, const rm_collective *what) {
    const int32_t rank = g->config.rank, size = g->config.size;
    const uint64_t bytes = rm_collective_in_bytes(what, size), row = rm_collective_out_bytes(what, size);
    rm_nccl_sum sum = {.type = types[what->wire], .count = (size_t)what->count, .bytes = bytes, .in = what->in};
    sum.out = what->out;
    if (what->kind == RM_ALL_REDUCE) return rm_nccl_tree_sum(&g->nccl, &g->tree, g->world, rank, size, &sum);
    TRY(need_scratch(g, bytes));
    sum.count *= (size_t)size;
    sum.out = g->scratch;
    TRY(rm_nccl_tree_sum(&g->nccl, &g->tree, g->world, rank, size, &sum));
    return move(g, what->out, (char *)g->scratch + row * (uint64_t)rank, row, cudaMemcpyDeviceToDevice);
}

static ncclResult_t start(nccl_group *g, const rm_collective *what) {
    const rm_nccl_library *lib = g->nccl.lib;
    const size_t count = (size_t)what->count;
    const ncclDataType_t type = types[what->wire];
    const ncclRedOp_t sum = what->reduction == RM_MEAN ? g->mean[what->wire] : ncclSum;
    const cudaStream_t stream = g->nccl.stream;
    switch (what->kind) {
    case RM_ALL_REDUCE:
        return lib->ncclAllReduce(what->in, what->out, count, type, sum, g->world, stream);
    case RM_BROADCAST:
        return lib->ncclBroadcast(what->out, what->out, count, type, what->root, g->world, stream);
    case RM_ALL_GATHER:
        return lib->ncclAllGather(what->in, what->out, count, type, g->world, stream);
    default:
        return lib->ncclReduceScatter(what->in, what->out, count, type, sum, g->world, stream);
    }
}

static bool is_tree(const rm_collective *what) {
    return (what->kind == RM_ALL_REDUCE || what->kind == RM_REDUCE_SCATTER) && what->reduction == RM_TREE;
}

static remat_status do_it(nccl_group *g, const rm_collective *what, const rm_fingerprint *mine) {
    /* The current device is per thread */
    TRY(rm_cuda_check(g->nccl.lib, g->nccl.lib->cudaSetDevice(g->nccl.device), "choosing the GPU"));
    TRY(check_buffers(g, what));
    TRY(agree(g, mine));
    if (what->kind == RM_BARRIER || what->count == 0) return REMAT_OK; /* the ranks have already met to agree */
    if (what->after) TRY(rm_nccl_follow(&g->nccl, what->after));
    if (is_tree(what))
        TRY(sum_as_tree(g, what));
    else
        TRY(rm_nccl_issued(&g->nccl, g->world, start(g, what)));
    return rm_nccl_drain(&g->nccl, g->world);
}

static remat_status run(void *engine, uint64_t call, const rm_collective *what) {
    nccl_group *g = engine;
    char doing[RM_FINGERPRINT_TEXT];
    const rm_fingerprint mine = rm_fingerprint_of(call, what);
    pthread_mutex_lock(&g->lock);
    g->now = &mine;
    g->nccl.after = NULL; /* the event of the last collective may have been destroyed */
    remat_status status = do_it(g, what, &mine);
    if (status) status = give_up(g, status, rm_fingerprint_text(&g->config, &mine, doing));
    g->now = NULL;
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static remat_status exchange(nccl_group *g, void *data, uint64_t bytes) {
    const rm_nccl_library *lib = g->nccl.lib;
    TRY(rm_cuda_check(lib, lib->cudaSetDevice(g->nccl.device), "choosing the GPU"));
    TRY(check_memory(g, data, "message"));
    TRY(rm_nccl_issued(&g->nccl, g->world,
                       g->sending ? lib->ncclSend(data, bytes, ncclUint8, g->partner, g->world, g->nccl.stream)
                                  : lib->ncclRecv(data, bytes, ncclUint8, g->partner, g->world, g->nccl.stream)));
    return rm_nccl_drain(&g->nccl, g->world);
}

/* NCCL does not buffer: when the sender continues, the message has been received. */
static remat_status talk(nccl_group *g, int32_t partner, bool sending, void *data, uint64_t bytes) {
    char doing[64];
    snprintf(doing, sizeof doing, "%s rank %d", sending ? "sending to" : "receiving from",
             rm_group_number(&g->config, partner));
    if (!bytes) return REMAT_OK;
    pthread_mutex_lock(&g->lock);
    g->partner = partner;
    g->sending = sending;
    g->nccl.after = NULL;
    remat_status status = exchange(g, data, bytes);
    if (status) status = give_up(g, status, doing);
    g->partner = -1;
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- Messages of streams ----------------------------------------------------------------------------------------- */

static const char *exchange_text(const nccl_group *g, const rm_nccl_message *m, char text[64]) {
    snprintf(text, 64, "%s rank %d", m->sending ? "sending to" : "receiving from",
             rm_group_number(&g->config, m->peer));
    return text;
}

/* Lets the other ranks know whom this one waits for, so that the rank that keeps all waiting is named. */
static remat_status tell_of_wait(nccl_group *g, const rm_nccl_message *m) {
    if (g->waits_for == (m ? m->number : 0)) return REMAT_OK;
    rm_failure_waited(&g->failure);
    g->waits_for = m ? m->number : 0;
    return m ? rm_failure_wait(&g->failure, m->peer) : REMAT_OK;
}

/* NCCL reports here that a message cannot be exchanged. */
static remat_status check_communicator(nccl_group *g) {
    ncclResult_t state = ncclSuccess, asked = g->nccl.lib->ncclCommGetAsyncError(g->world, &state);
    if (!asked && (!state || state == ncclInProgress)) return REMAT_OK;
    g->nccl.result = asked ? asked : state;
    return rm_nccl_fail(g->nccl.lib, g->world, g->nccl.result);
}

/* Looks after the messages that streams have. The time that a stream needs to reach a message does not count. */
static remat_status look_after_messages(nccl_group *g) {
    uint64_t waited_ns;
    const rm_nccl_message *m = rm_nccl_messages_first(&g->nccl, &g->messages, &waited_ns);
    g->partner = m ? m->peer : -1;
    g->sending = m && m->sending;
    TRY(tell_of_wait(g, m));
    TRY(check_communicator(g));
    return look(g, waited_ns);
}

static remat_status attend_now(nccl_group *g) {
    char doing[64] = "exchanging messages";
    if (!g->world) return REMAT_OK; /* it has been given up */
    remat_status status = look_after_messages(g);
    const rm_nccl_message *m = status ? rm_nccl_messages_oldest(&g->messages) : NULL;
    if (status) status = give_up(g, status, m ? exchange_text(g, m, doing) : doing);
    g->partner = -1;
    return status;
}

static remat_status attend(void *engine) {
    nccl_group *g = engine;
    if (!g->messages.given) return REMAT_OK;
    pthread_mutex_lock(&g->lock);
    remat_status status = attend_now(g);
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* Waits until there is room to keep one more in mind. */
static remat_status need_room(nccl_group *g) {
    while (rm_nccl_messages_full(&g->nccl, &g->messages)) {
        TRY(attend_now(g));
        usleep(50);
    }
    return REMAT_OK;
}

static remat_status give_now(nccl_group *g, cudaStream_t stream, rm_nccl_message *m, void *data, uint64_t bytes) {
    const rm_nccl_library *lib = g->nccl.lib;
    TRY(rm_cuda_check(lib, lib->cudaSetDevice(g->nccl.device), "choosing the GPU"));
    TRY(check_memory(g, data, "message"));
    TRY(check_communicator(g)); /* an earlier message may have failed since the host last waited */
    TRY(rm_nccl_messages_begin(&g->nccl, &g->messages, m, stream));
    TRY(rm_nccl_issued(&g->nccl, g->world,
                       m->sending ? lib->ncclSend(data, bytes, ncclUint8, m->peer, g->world, stream)
                                  : lib->ncclRecv(data, bytes, ncclUint8, m->peer, g->world, stream)));
    return rm_nccl_messages_end(&g->nccl, &g->messages, m, stream);
}

static remat_status give(void *engine, void *stream, int32_t peer, bool sending, void *data, uint64_t bytes) {
    nccl_group *g = engine;
    char doing[64];
    rm_nccl_message m = {.peer = peer, .sending = sending};
    if (!bytes) return REMAT_OK;
    pthread_mutex_lock(&g->lock);
    remat_status status = need_room(g);
    if (!status && !g->world) status = rm_fail(REMAT_PEER, "the group has ended");
    if (!status) status = give_now(g, stream, &m, data, bytes);
    if (status && g->world) status = give_up(g, status, exchange_text(g, &m, doing));
    pthread_mutex_unlock(&g->lock);
    return status;
}

static remat_status send_to(void *engine, int32_t to, const void *data, uint64_t bytes) {
    return talk(engine, to, true, (void *)(uintptr_t)data, bytes);
}
static remat_status receive_from(void *engine, int32_t from, void *data, uint64_t bytes) {
    return talk(engine, from, false, data, bytes);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static remat_status choose_gpu(nccl_group *g) {
    const rm_nccl_library *lib = g->nccl.lib;
    int gpus = 0;
    cudaError_t error = lib->cudaGetDeviceCount(&gpus);
    if (error) (void)lib->cudaGetLastError();
    REQUIRE(!error && gpus > 0, MISSING,
            "rank %d finds no GPU, which NCCL needs (CUDA says: %s). For ranks that compute on the CPU use local, mpi "
            "or gloo ({backend}=auto chooses)",
            g->config.rank, lib->cudaGetErrorString(error ? error : cudaErrorNoDevice));
    REQUIRE(g->nccl.device < gpus, INVALID,
            "rank %d is to use GPU %d, but there are only %d, counted from 0; start fewer ranks on this machine "
            "(--nproc-per-node=%d), or check which GPUs CUDA_VISIBLE_DEVICES hides",
            g->config.rank, g->nccl.device, gpus, gpus);
    return rm_cuda_check(lib, lib->cudaSetDevice(g->nccl.device), "choosing the GPU");
}

static remat_status get_memory(nccl_group *g) {
    const rm_nccl_library *lib = g->nccl.lib;
    const size_t bytes = 2 * sizeof *g->number;
    TRY(rm_cuda_check(lib, lib->cudaStreamCreateWithFlags(&g->nccl.stream, cudaStreamNonBlocking),
                      "creating a stream"));
    TRY(rm_cuda_check(lib, lib->cudaMalloc((void **)&g->number, bytes), "memory for comparing fingerprints"));
    return rm_cuda_check(lib, lib->cudaMallocHost((void **)&g->number_host, bytes),
                         "memory for comparing fingerprints");
}

/* Rank 0 creates the ID with which NCCL's ranks find each other. */
static remat_status share_id(nccl_group *g, ncclUniqueId *id) {
    char key[RM_KV_KEY_BYTES];
    snprintf(key, sizeof key, "%s/nccl/id", g->config.name);
    if (g->config.rank > 0) return wait_for_key(g, key, id, sizeof *id);
    ncclResult_t result = g->nccl.lib->ncclGetUniqueId(id);
    if (result) return rm_nccl_fail(g->nccl.lib, NULL, result);
    return g->config.size > 1 ? rm_kv_set(g->config.store, key, id, sizeof *id) : REMAT_OK;
}

/* 1/W in the type of the data. */
static remat_status make_mean(nccl_group *g, rm_wire wire) {
    float share = 1.0f / (float)g->config.size;
    uint16_t short_share;
    void *scalar = &share;
    if (wire != RM_WIRE_F32) {
        rm_narrow(wire, 1, &share, &short_share, 1);
        scalar = &short_share;
    }
    TRY(rm_nccl_issued(
        &g->nccl, g->world,
        g->nccl.lib->ncclRedOpCreatePreMulSum(&g->mean[wire], scalar, types[wire], ncclScalarHostImmediate, g->world)));
    g->has_mean[wire] = true;
    return REMAT_OK;
}

static remat_status make_means(nccl_group *g) {
    for (int w = 0; w < RM_WIRES; w++)
        if (rm_can_reduce((rm_wire)w, RM_MEAN)) TRY(make_mean(g, (rm_wire)w));
    return REMAT_OK;
}

static void destroy_means(nccl_group *g) {
    for (int w = 0; w < RM_WIRES && g->world; w++)
        if (g->has_mean[w]) (void)g->nccl.lib->ncclRedOpDestroy(g->mean[w], g->world);
}

static remat_status free_memory(const nccl_group *g, uint64_t *bytes) {
    size_t free = 0, total = 0;
    TRY(rm_cuda_check(g->nccl.lib, g->nccl.lib->cudaMemGetInfo(&free, &total), "asking for the GPU's free memory"));
    *bytes = free;
    return REMAT_OK;
}

/* Connects all ranks when the group is opened. Connections made on first use would take GPU memory during training that
 * no plan accounts for. */
static void connect_at_once(void) { setenv("NCCL_RUNTIME_CONNECT", "0", 0); }

/* Two ranks of NCCL connect in their first message. Every two exchange one, in an order that is the same on all ranks. */
static remat_status connect_all(nccl_group *g) {
    const int32_t rank = g->config.rank;
    TRY(rm_nccl_messages_make(&g->nccl, &g->messages));
    for (int32_t i = 0; i < 2 * g->config.size * g->config.size; i++) {
        int32_t from = i / 2 / g->config.size, to = i / 2 % g->config.size;
        if (from >= to || (rank != from && rank != to)) continue;
        g->partner = rank == from ? to : from;
        g->sending = (rank == from) == !(i % 2);
        TRY(exchange(g, g->number, sizeof *g->number));
    }
    g->partner = -1;
    return REMAT_OK;
}

static remat_status enter(nccl_group *g) {
    ncclUniqueId id;
    uint64_t before, after;
    TRY(rm_failure_begin(&g->failure, &g->config));
    g->blaming = g->config.size > 1;
    g->limit_ms = g->config.join_ms;
    TRY(rm_nccl_library_open(&g->nccl.lib));
    TRY(choose_gpu(g));
    TRY(free_memory(g, &before));
    connect_at_once();
    TRY(get_memory(g));
    rm_joining_step(g->config.joining, "starting NCCL");
    TRY(share_id(g, &id));
    rm_joining_step(g->config.joining, CONNECTING);
    TRY(rm_nccl_open(&g->nccl, g->config.rank, g->config.size, &id, &g->world));
    TRY(make_means(g));
    if (g->config.messages) TRY(connect_all(g));
    TRY(free_memory(g, &after));
    g->device_bytes = before > after ? before - after : 0;
    g->limit_ms = g->config.timeout_ms;
    return REMAT_OK;
}

static void free_group(nccl_group *g) {
    const rm_nccl_library *lib = g->nccl.lib;
    rm_failure_end(&g->failure);
    if (lib && !g->nccl.stuck) {
        rm_nccl_messages_free(&g->nccl, &g->messages);
        if (g->number) (void)lib->cudaFree(g->number);
        if (g->scratch) (void)lib->cudaFree(g->scratch);
        if (g->number_host) (void)lib->cudaFreeHost(g->number_host);
        if (g->nccl.stream) (void)lib->cudaStreamDestroy(g->nccl.stream);
    }
    rm_nccl_buffers_free(&g->nccl, &g->buffers);
    pthread_mutex_destroy(&g->lock);
    rm_free(g);
}

static void close_group(void *engine) {
    nccl_group *g = engine;
    (void)g->nccl.lib->cudaSetDevice(g->nccl.device);
    if (g->ended) end_communicators(g); /* after a failure there are none */
    rm_nccl_tree_end(&g->nccl, &g->tree, rm_nccl_close);
    destroy_means(g);
    rm_nccl_close(&g->nccl, &g->world);
    free_group(g);
}

static remat_status open_group(const rm_group_config *config, void **engine) {
    REQUIRE(config->gpu > 0, INVALID,
            "NCCL works on GPU memory, but these ranks compute on the CPU; use local, mpi or gloo ({backend}=auto "
            "chooses)");
    REQUIRE(config->store || config->size == 1, INVALID, "NCCL needs a store for its ranks to meet; set {init_method}");
    nccl_group *g = rm_calloc(1, sizeof *g);
    REQUIRE(g, MEMORY, "out of memory for a group");
    g->config = *config;
    g->partner = -1;
    g->nccl = (rm_nccl){.device = config->gpu - 1, .look = look, .context = g};
    g->nccl.patience_ms = config->timeout_ms < ABORT_MS ? config->timeout_ms : ABORT_MS;
    pthread_mutex_init(&g->lock, NULL);
    rm_nccl_buffers_init(&g->buffers);
    remat_status status = enter(g);
    if (status) {
        status = give_up(g, status, "starting NCCL");
        free_group(g);
    } else {
        *engine = g;
    }
    return status;
}

/* ---- The rest of the table --------------------------------------------------------------------------------------- */

static void *alloc_buffer(void *engine, uint64_t bytes) {
    nccl_group *g = engine;
    return rm_nccl_buffers_take(&g->nccl, &g->buffers, bytes);
}
static void free_buffer(void *engine, void *start) {
    nccl_group *g = engine;
    rm_nccl_buffers_give_back(&g->nccl, &g->buffers, start);
}

static uint64_t device_bytes(const void *engine) { return ((const nccl_group *)engine)->device_bytes; }

/* A failure that the current collective would find itself is left to it. */
static remat_status poll_group(void *engine) {
    nccl_group *g = engine;
    ncclResult_t state = ncclSuccess;
    remat_status status = rm_failure_look(&g->failure, NULL);
    if (status || pthread_mutex_trylock(&g->lock)) return status;
    if (g->world && !g->nccl.lib->ncclCommGetAsyncError(g->world, &state) && state && state != ncclInProgress)
        status = rm_nccl_fail(g->nccl.lib, g->world, state);
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* Does not end the communicators: the thread that uses them does, in the current collective or in close. */
static void abort_group(void *engine, const char *reason) {
    nccl_group *g = engine;
    if (atomic_flag_test_and_set(&g->ending)) return;
    snprintf(g->reason, sizeof g->reason, "%s", reason);
    if (g->blaming) rm_failure_abort(&g->failure, reason);
    g->ended = true;
}

static remat_status library_text(char *text, size_t bytes) {
    const rm_nccl_library *lib;
    TRY(rm_nccl_library_open(&lib));
    snprintf(text, bytes, "NCCL %d.%d.%d, between GPUs", lib->version / 10000, lib->version / 100 % 100,
             lib->version % 100);
    return REMAT_OK;
}

const rm_group_api rm_group_nccl = {
    .name = "nccl",
    .library = library_text,
    .open = open_group,
    .close = close_group,
    .alloc = alloc_buffer,
    .free = free_buffer,
    .run = run,
    .send = send_to,
    .receive = receive_from,
    .give = give,
    .attend = attend,
    .device_bytes = device_bytes,
    .poll = poll_group,
    .abort = abort_group,
};

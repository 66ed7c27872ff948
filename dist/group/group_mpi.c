/* group_mpi.c: collectives by MPI (Open MPI or MPICH), for ranks that mpirun or srun has started. The table
 * rm_group_mpi is at the end.
 *
 * Every collective begins with a non-blocking exchange of fingerprints. Until all ranks have arrived, this rank watches
 * the clock and checks for dead ranks. After that all ranks are in the same call, and MPI's own blocking collective,
 * its fastest, does the work. It cannot be interrupted: if a rank dies inside it, MPI's launcher has to notice. MPI
 * does not say which rank died or is stopped. A store tells; rank 0 serves one if the config has none. Sums whose order
 * is fixed, and sums of types that MPI does not support, are made by slices.h. This engine is a module: module.h.
 *
 * A rank may have several groups, and a thread that moves messages on, but MPI is called by one thread at a time
 * (MPI_THREAD_SERIALIZED): whoever calls it holds mpi_lock. A rank that waits releases the lock between its calls. */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dist/group/agree.h"
#include "dist/group/failure.h"
#include "dist/group/joining.h"
#include "dist/store/bootstrap.h"
#include "dist/group/module.h"
#include "dist/group/contribute.h"
#include "dist/group/side_thread.h"
#include "dist/group/slices.h"
#include "memory/clock.h"
#include "memory/host.h"

#include "dist/group/module_calls.h" /* must be last */

#define PART (1 << 30) /* elements; MPI counts in int */

/* A part of a message that the other rank may not have asked for yet. */
typedef struct message {
    struct message *next;
    MPI_Request sent, received; /* the other rank answers when it has the part */
    uint64_t bytes;
    char data[];
} message;

/* Parts that were sent to one rank, the oldest first. */
typedef struct {
    message *first, *last;
    uint64_t bytes;
} outbox;

typedef struct {
    rm_group_config config;
    MPI_Comm comm;
    MPI_Op add_bytes;
    rm_kv *own_store; /* the store made here if the config had none; config.store is this one */
    rm_failure failure;
    rm_scratch scratch;
    rm_slices slices;
    _Atomic bool failed; /* once true, no joint operation of MPI may be started */
    outbox *sent;        /* by rank; NULL: nothing has been sent */
    bool waits;          /* until one of them is received, which the side thread must not free meanwhile */
    rm_side_thread side; /* moves them on; it runs if `sent` is set */
} mpi_group;

static _Atomic int groups_open; /* MPI is finalized with the last group; it cannot be initialised twice */
static _Atomic bool begun_here;

/* ---- One thread at a time ---------------------------------------------------------------------------------------- */

static pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int queue; /* threads that want the lock */

static void enter_mpi(void) {
    queue++;
    pthread_mutex_lock(&mpi_lock);
    queue--;
}

static void leave_mpi(void) { pthread_mutex_unlock(&mpi_lock); }

/* Between two calls of one that waits. A mutex is not fair: without a nap it would be taken again before another thread
 * wakes up. */
static void let_others_in(uint64_t waited_ns) {
    leave_mpi();
    if (waited_ns > 1000000000)
        usleep(1000);
    else if (queue)
        usleep(20);
    else
        sched_yield();
    enter_mpi();
}

static remat_status check_mpi(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return REMAT_OK;
    MPI_Error_string(code, text, &length);
    FAIL(PEER, "%s: %.400s", what, text);
}

/* ---- Fingerprints ----------------------------------------------------------------------------------------------- */

/* MPI only makes progress while it is called: spins first, then yields the core, and after a second sleeps between
 * calls. *late: the group's time limit is over. */
static remat_status test_until(mpi_group *g, const rm_fingerprint *now, MPI_Request *request, bool *late) {
    uint64_t start = 0, waited = 0;
    *late = false;
    for (uint64_t tries = 0;; tries++) {
        int done = 0;
        TRY(check_mpi(MPI_Test(request, &done, MPI_STATUS_IGNORE), "MPI cannot reach the other ranks"));
        if (done) return REMAT_OK;
        if (tries < 2000) continue;
        if (!start) start = rm_now_ns();
        waited = rm_now_ns() - start;
        TRY(rm_failure_look(&g->failure, now));
        *late = waited > (uint64_t)g->config.timeout_ms * 1000000u;
        if (*late) return REMAT_OK;
        let_others_in(waited);
    }
}

static const char *time_is_over(const mpi_group *g, char why[64]) {
    snprintf(why, 64, "%lld ms have passed", (long long)g->config.timeout_ms);
    return why;
}

static remat_status wait_for(mpi_group *g, const rm_fingerprint *now, MPI_Request *request) {
    char why[64];
    bool late;
    TRY(test_until(g, now, request, &late));
    return late ? rm_failure_find(&g->failure, now, time_is_over(g, why)) : REMAT_OK;
}

static remat_status maximum(void *context, const rm_fingerprint *now, uint64_t number[2]) {
    mpi_group *g = context;
    MPI_Request request;
    TRY(check_mpi(MPI_Iallreduce(MPI_IN_PLACE, number, 2, MPI_UINT64_T, MPI_MAX, g->comm, &request), "MPI_Iallreduce"));
    return wait_for(g, now, &request);
}

static remat_status gather(void *context, const rm_fingerprint *mine, rm_fingerprint *all) {
    mpi_group *g = context;
    MPI_Request request;
    TRY(check_mpi(MPI_Iallgather(mine, sizeof *mine, MPI_BYTE, all, sizeof *all, MPI_BYTE, g->comm, &request),
                  "MPI_Iallgather"));
    return wait_for(g, mine, &request);
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

static MPI_Datatype type_of(rm_wire wire) {
    switch (wire) {
    case RM_WIRE_F32:
        return MPI_FLOAT;
    case RM_WIRE_I32:
        return MPI_INT32_T;
    case RM_WIRE_F64:
        return MPI_DOUBLE;
    case RM_WIRE_U8:
        return MPI_UINT8_T;
    default: /* MPI only moves f16 and bf16 */
        return MPI_UINT16_T;
    }
}

/* On processors with vector units, Open MPI 4.1 adds bytes with saturation (255 + 1 = 255); elsewhere it wraps around.
 * MPI_SUM is therefore not used for bytes. */
static void add_bytes(void *in, void *sum, int *count, MPI_Datatype *type) {
    const uint8_t *x = in;
    uint8_t *y = sum;
    (void)type;
    for (int i = 0; i < *count; i++) y[i] = (uint8_t)(y[i] + x[i]);
}

static MPI_Op sum_of(const mpi_group *g, rm_wire wire) { return wire == RM_WIRE_U8 ? g->add_bytes : MPI_SUM; }

static remat_status all_reduce(mpi_group *g, const rm_collective *what) {
    const uint64_t width = rm_wire_bytes(what->wire);
    rm_contribute(what, g->config.size, what->out);
    for (int64_t at = 0; at < what->count; at += PART) {
        int n = (int)(what->count - at < PART ? what->count - at : PART);
        char *part = (char *)what->out + (uint64_t)at * width;
        MPI_Datatype type = type_of(what->wire);
        TRY(check_mpi(MPI_Allreduce(MPI_IN_PLACE, part, n, type, sum_of(g, what->wire), g->comm), "MPI_Allreduce"));
    }
    return REMAT_OK;
}

static remat_status broadcast(mpi_group *g, const rm_collective *what) {
    const uint64_t width = rm_wire_bytes(what->wire);
    for (int64_t at = 0; at < what->count; at += PART) {
        int n = (int)(what->count - at < PART ? what->count - at : PART);
        char *part = (char *)what->out + (uint64_t)at * width;
        TRY(check_mpi(MPI_Bcast(part, n, type_of(what->wire), what->root, g->comm), "MPI_Bcast"));
    }
    return REMAT_OK;
}

static remat_status all_gather(mpi_group *g, const rm_collective *what) {
    MPI_Datatype type = type_of(what->wire);
    const char *row = (const char *)what->out + rm_collective_in_bytes(what, g->config.size) * (uint64_t)g->config.rank;
    const void *from = what->in == row ? MPI_IN_PLACE : what->in;
    int n = (int)what->count;
    return check_mpi(MPI_Allgather(from, n, type, what->out, n, type, g->comm), "MPI_Allgather");
}

/* Works on a copy: MPI's in-place form puts the row elsewhere, and a mean must not scale the caller's data. */
static remat_status reduce_scatter(mpi_group *g, const rm_collective *what) {
    MPI_Datatype type = type_of(what->wire);
    TRY(rm_scratch_take(&g->scratch, rm_collective_in_bytes(what, g->config.size)));
    rm_contribute(what, g->config.size, g->scratch.block);
    return check_mpi(
        MPI_Reduce_scatter_block(g->scratch.block, what->out, (int)what->count, type, sum_of(g, what->wire), g->comm),
        "MPI_Reduce_scatter_block");
}

static remat_status exchange(void *context, const void *from, void *to, uint64_t bytes) {
    mpi_group *g = context;
    int n = (int)bytes;
    return check_mpi(MPI_Alltoall(from, n, MPI_BYTE, to, n, MPI_BYTE, g->comm), "MPI_Alltoall");
}
static remat_status gather_rows(void *context, const void *from, void *to, uint64_t bytes) {
    mpi_group *g = context;
    int n = (int)bytes;
    return check_mpi(MPI_Allgather(from, n, MPI_BYTE, to, n, MPI_BYTE, g->comm), "MPI_Allgather");
}

static remat_status do_it(mpi_group *g, const rm_collective *what) {
    const bool reduces = what->kind == RM_ALL_REDUCE || what->kind == RM_REDUCE_SCATTER;
    if (what->kind == RM_BARRIER || what->count == 0) return REMAT_OK; /* the ranks have already met to agree */
    if (reduces && rm_is_sliced(what)) return rm_slices_reduce(&g->slices, what);
    if (what->kind == RM_ALL_REDUCE) return all_reduce(g, what);
    if (what->kind == RM_BROADCAST) return broadcast(g, what);
    REQUIRE(what->count <= PART, MISSING,
            "%s of %lld elements per rank is too large for MPI, which counts to 2^31; use smaller buckets",
            rm_kind_text(what->kind), (long long)what->count);
    return what->kind == RM_ALL_GATHER ? all_gather(g, what) : reduce_scatter(g, what);
}

static remat_status run(void *engine, uint64_t call, const rm_collective *what) {
    mpi_group *g = engine;
    rm_fingerprint mine = rm_fingerprint_of(call, what);
    rm_exchange exchange = {.maximum = maximum, .gather = gather, .context = g};
    enter_mpi();
    remat_status status = rm_agree(&g->config, &exchange, &mine);
    if (!status) status = do_it(g, what);
    if (status) g->failed = true;
    leave_mpi();
    return status;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

enum { MESSAGES, ANSWERS }; /* MPI's tags */

/* Frees what the other ranks have received: the oldest first, because they are received in order. */
static bool forget_received(outbox *box) {
    int received = 1, sent = 1;
    while (box->first && MPI_Test(&box->first->received, &received, MPI_STATUS_IGNORE) == MPI_SUCCESS && received &&
           MPI_Test(&box->first->sent, &sent, MPI_STATUS_IGNORE) == MPI_SUCCESS && sent) {
        message *oldest = box->first;
        box->first = oldest->next;
        box->bytes -= oldest->bytes;
        rm_free(oldest);
    }
    return !box->first;
}

/* Large messages move only while their sender calls MPI, which may compute for long, or wait by another engine. */
static void *move_on(void *context) {
    mpi_group *g = context;
    bool empty = true;
    rm_side_thread_lock(&g->side);
    while (rm_side_thread_doze(&g->side, 1e-9 * (double)rm_now_ns() + (empty ? 0.01 : 0.001))) {
        enter_mpi();
        empty = true;
        for (int32_t r = 0; r < g->config.size && !g->failed && !g->waits; r++) empty &= forget_received(&g->sent[r]);
        leave_mpi();
    }
    rm_side_thread_unlock(&g->side);
    return NULL;
}

static remat_status begin_sending(mpi_group *g) {
    if (g->sent) return REMAT_OK;
    g->sent = rm_calloc((size_t)g->config.size, sizeof *g->sent);
    REQUIRE(g->sent, MEMORY, "out of memory for messages");
    return rm_side_thread_start(&g->side, move_on, g, "move messages on");
}

static remat_status wait_for_message(mpi_group *g, int32_t rank, bool sending, MPI_Request *request) {
    char why[64];
    bool late;
    TRY(rm_failure_wait(&g->failure, rank));
    g->waits = sending;
    remat_status status = test_until(g, NULL, request, &late);
    g->waits = false;
    TRY(status);
    if (late) return rm_failure_find_rank(&g->failure, rank, sending, time_is_over(g, why));
    rm_failure_waited(&g->failure);
    return REMAT_OK;
}

/* The request of a part that is to be waited for. */
static MPI_Request *unfinished(message *part) {
    return part->received != MPI_REQUEST_NULL ? &part->received : &part->sent;
}

static remat_status start_sending(mpi_group *g, int32_t to, message *part) {
    TRY(check_mpi(MPI_Irecv(NULL, 0, MPI_BYTE, to, ANSWERS, g->comm, &part->received), "MPI_Irecv"));
    int code = MPI_Isend(part->data, (int)part->bytes, MPI_BYTE, to, MESSAGES, g->comm, &part->sent);
    if (code) MPI_Cancel(&part->received), MPI_Request_free(&part->received);
    return check_mpi(code, "MPI_Isend");
}

/* Parts are answered, so that what MPI itself buffers is bounded, too. Synchronous sends would do the same, but Open MPI 5.0
 * loses some of their acknowledgements (docs/notes/ranks.md). */
static remat_status send_part(mpi_group *g, int32_t to, const void *data, uint64_t bytes) {
    outbox *box = &g->sent[to];
    while (!forget_received(box) && box->bytes + bytes > RM_MESSAGE_ROOM)
        TRY(wait_for_message(g, to, true, unfinished(box->first)));
    message *part = rm_malloc(sizeof *part + bytes);
    REQUIRE(part, MEMORY, "out of memory for a message");
    part->next = NULL;
    part->bytes = bytes;
    memcpy(part->data, data, bytes);
    remat_status status = start_sending(g, to, part);
    if (status) rm_free(part);
    TRY(status);
    if (box->first)
        box->last->next = part;
    else
        box->first = part;
    box->last = part;
    box->bytes += bytes;
    return REMAT_OK;
}

static remat_status receive_part(mpi_group *g, int32_t from, void *data, uint64_t bytes) {
    MPI_Request request;
    TRY(check_mpi(MPI_Irecv(data, (int)bytes, MPI_BYTE, from, MESSAGES, g->comm, &request), "MPI_Irecv"));
    TRY(wait_for_message(g, from, false, &request));
    TRY(check_mpi(MPI_Isend(NULL, 0, MPI_BYTE, from, ANSWERS, g->comm, &request), "MPI_Isend"));
    return check_mpi(MPI_Request_free(&request), "MPI_Request_free");
}

static uint64_t part_of(uint64_t left) { return left < RM_MESSAGE_PART ? left : RM_MESSAGE_PART; }

static remat_status send_to(void *engine, int32_t to, const void *data, uint64_t bytes) {
    mpi_group *g = engine;
    enter_mpi();
    remat_status status = begin_sending(g);
    for (uint64_t at = 0; at < bytes && !status; at += part_of(bytes - at))
        status = send_part(g, to, (const char *)data + at, part_of(bytes - at));
    if (status) g->failed = true;
    leave_mpi();
    return status;
}

static remat_status receive_from(void *engine, int32_t from, void *data, uint64_t bytes) {
    mpi_group *g = engine;
    remat_status status = REMAT_OK;
    enter_mpi();
    for (uint64_t at = 0; at < bytes && !status; at += part_of(bytes - at))
        status = receive_part(g, from, (char *)data + at, part_of(bytes - at));
    if (status) g->failed = true;
    leave_mpi();
    return status;
}

/* Waits until all is received, unless the group has failed: then MPI may still read the messages, which stay. */
static void end_messages(mpi_group *g) {
    if (!g->sent) return;
    rm_side_thread_end(&g->side);
    enter_mpi();
    for (int32_t r = 0; r < g->config.size && !g->failed; r++)
        while (!g->failed && !forget_received(&g->sent[r]))
            if (wait_for_message(g, r, true, unfinished(g->sent[r].first))) g->failed = true;
    leave_mpi();
    rm_free(g->sent);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static remat_status begin_mpi(void) {
    int begun = 0, ended = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    REQUIRE(!ended, INVALID, "MPI has ended in this process and cannot be started again; keep one group open");
    if (begun) {
        MPI_Query_thread(&level);
    } else {
        TRY(check_mpi(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread"));
        begun_here = true;
    }
    REQUIRE(level >= MPI_THREAD_SERIALIZED, MISSING,
            "this MPI allows calls from one thread only (level %d), but Remat needs MPI_THREAD_SERIALIZED; use an MPI "
            "built with threads",
            level);
    return REMAT_OK;
}

static void end_mpi(bool failed) {
    if (--groups_open == 0 && begun_here && !failed) MPI_Finalize();
}

/* "Open MPI v4.1.4"; the rest says who built it. */
static void version_of_mpi(char text[MPI_MAX_LIBRARY_VERSION_STRING]) {
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = 0;
}

/* MPI's launchers, and batch systems that can start it, leave variables. Without any, MPI would start and be a world of
 * this process alone. */
static bool has_launcher(void) {
    static const char *const prefixes[] = {"OMPI_", "PMI",   "MPI",  "MV2_", "SLURM_", "PALS_",
                                           "ALPS_", "FLUX_", "JSM_", "LSB_", "PBS_"};
    for (char **variable = environ; *variable; variable++)
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
            if (!strncmp(*variable, prefixes[i], strlen(prefixes[i]))) return true;
    return false;
}

static remat_status check_launcher(const rm_group_config *config) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    version_of_mpi(version);
    REQUIRE(config->size == 1 || has_launcher(), INVALID,
            "this is rank %d of %d, but no launcher of MPI started it; with {backend}=mpi, start the ranks with the "
            "mpirun that belongs to the library (%s) or with srun --mpi=pmix",
            config->rank, config->size, version);
    return REMAT_OK;
}

static remat_status check_ranks(const rm_group_config *config) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    version_of_mpi(version);
    if (config->stride) return REMAT_OK; /* some ranks of a world that was checked */
    REQUIRE(rank == config->rank && size == config->size, INVALID,
            "this is rank %d of %d, but MPI says %d of %d; with {backend}=mpi, start the ranks with the mpirun that "
            "belongs to the library (%s) or with srun --mpi=pmix, and keep its numbers",
            config->rank, config->size, rank, size, version);
    return REMAT_OK;
}

/* OK if all ranks succeeded; otherwise the message of the first rank that did not, on all ranks. */
static remat_status all_or_none(mpi_group *g, remat_status mine) {
    char sentence[900];
    int first = mine ? g->config.rank : g->config.size;
    snprintf(sentence, sizeof sentence, "%s", mine ? remat_last_error() : "");
    TRY(check_mpi(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, g->comm), "MPI_Allreduce"));
    if (first == g->config.size) return REMAT_OK;
    TRY(check_mpi(MPI_Bcast(sentence, sizeof sentence, MPI_BYTE, first, g->comm), "MPI_Bcast"));
    FAIL(PEER, "%s", sentence);
}

/* mpirun gives ranks on several hosts no address of rank 0, but MPI can carry one. */
static remat_status open_own_store(mpi_group *g) {
    rm_bootstrap_address address = {0};
    remat_status status = REMAT_OK;
    if (g->config.store || g->config.size == 1) return REMAT_OK;
    if (g->config.rank == 0) status = rm_bootstrap_serve(g->config.size, &g->own_store, &address);
    TRY(check_mpi(MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, g->comm), "MPI_Bcast"));
    if (g->config.rank > 0) status = rm_bootstrap_join(&address, g->config.rank, g->config.size, &g->own_store);
    TRY(all_or_none(g, status));
    g->config.store = g->own_store;
    return REMAT_OK;
}

/* MPI's numbers of the ranks are those of the world. */
static remat_status make_comm(mpi_group *g) {
    const rm_group_config *config = &g->config;
    if (!config->stride) return check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &g->comm), "MPI_Comm_dup");
    MPI_Group all, some;
    int range[1][3] = {{config->first, rm_group_number(config, config->size - 1), config->stride}};
    TRY(check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &all), "MPI_Comm_group"));
    remat_status status = check_mpi(MPI_Group_range_incl(all, 1, range, &some), "MPI_Group_range_incl");
    MPI_Group_free(&all);
    TRY(status);
    status = check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, some, config->first, &g->comm), "MPI_Comm_create_group");
    MPI_Group_free(&some);
    return status;
}

static remat_status enter(mpi_group *g) {
    TRY(check_ranks(&g->config));
    TRY(make_comm(g));
    MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
    TRY(check_mpi(MPI_Op_create(add_bytes, 1, &g->add_bytes), "MPI_Op_create"));
    rm_joining_step(g->config.joining, "meeting by MPI");
    TRY(open_own_store(g));
    return rm_failure_begin(&g->failure, &g->config);
}

static void close_group(void *engine) {
    mpi_group *g = engine;
    end_messages(g);
    rm_failure_end(&g->failure);
    enter_mpi();
    if (g->add_bytes != MPI_OP_NULL) MPI_Op_free(&g->add_bytes);
    if (g->comm != MPI_COMM_NULL && !g->failed) MPI_Comm_free(&g->comm);
    end_mpi(g->failed);
    leave_mpi();
    rm_kv_close(g->own_store);
    rm_scratch_free(&g->scratch);
    rm_free(g);
}

static remat_status begin(mpi_group *g) {
    enter_mpi();
    remat_status status = enter(g);
    leave_mpi();
    return status;
}

static remat_status open_group(const rm_group_config *config, void **engine) {
    /* Nothing can interrupt MPI's own waits; rm_group_config.stuck is called instead */
    rm_joining_step(config->joining, "starting MPI");
    TRY(check_launcher(config));
    TRY(begin_mpi());
    groups_open++;
    mpi_group *g = rm_calloc(1, sizeof *g);
    if (!g) {
        end_mpi(false);
        FAIL(MEMORY, "out of memory for a group");
    }
    g->config = *config;
    g->comm = MPI_COMM_NULL;
    g->add_bytes = MPI_OP_NULL;
    g->slices = (rm_slices){.exchange = exchange,
                            .gather = gather_rows,
                            .context = g,
                            .rank = config->rank,
                            .size = config->size,
                            .scratch = &g->scratch};
    remat_status status = begin(g);
    if (status)
        close_group(g);
    else
        *engine = g;
    return status;
}

static remat_status poll_group(void *engine) {
    mpi_group *g = engine;
    remat_status status = rm_failure_look(&g->failure, NULL);
    if (status) g->failed = true;
    return status;
}

static rm_kv *store_of(void *engine) { return ((mpi_group *)engine)->config.store; }

static void abort_group(void *engine, const char *reason) {
    mpi_group *g = engine;
    g->failed = true;
    rm_failure_abort(&g->failure, reason);
}

static remat_status library(char *text, size_t bytes) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    version_of_mpi(version);
    snprintf(text, bytes, "%s", version);
    return REMAT_OK;
}

static const rm_group_api rm_group_mpi = {
    .name = "mpi",
    .library = library,
    .open = open_group,
    .close = close_group,
    .run = run,
    .send = send_to,
    .receive = receive_from,
    .poll = poll_group,
    .abort = abort_group,
    .store = store_of,
};
RM_GROUP_MODULE(mpi);

/* group.c: common to all engines: argument checks, call numbers, the queue and its thread, and the first failure.
 * group_auto.c chooses the engine for `auto`. */
#include "dist/group/group.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dist/group/fingerprint.h"
#include "dist/group/group_auto.h"
#include "dist/group/joining.h"
#include "dist/group/reduce.h"
#include "dist/launch/process.h"
#include "engine/report/observe.h"
#include "memory/clock.h"
#include "memory/host.h"

enum { QUEUE = 256 }; /* the most unfinished collectives; issuing another one waits */

/* Calls are numbered from 1 and run in that order: done <= issued. The thread that runs one holds `busy`. */
struct rm_group {
    const rm_group_api *api;
    void *engine;
    rm_group_config config;
    char name[64];
    pthread_mutex_t lock; /* protects all members below */
    pthread_cond_t change;
    remat_observer observer;
    rm_collective queue[QUEUE];
    uint64_t issued_ns[QUEUE]; /* if there is an observer */
    rm_ticket issued, done;
    bool busy, closing, has_thread;
    uint64_t busy_ns;    /* busy time of the thread so far */
    uint64_t blocked_ns; /* and of callers, in calls that wait */
    pthread_t thread;
    remat_status status; /* the first failure */
    char sentence[900];
    /* Descriptor that polls readable when the process that started this rank is gone; -1: none, or its end cannot be
     * seen */
    int launcher;
    pid_t launcher_pid;
    char launcher_who[100];
};

uint64_t rm_wire_bytes(rm_wire wire) {
    static const uint8_t bytes[RM_WIRES] = {
        [RM_WIRE_F32] = 4, [RM_WIRE_I32] = 4, [RM_WIRE_U8] = 1,
        [RM_WIRE_F64] = 8, [RM_WIRE_F16] = 2, [RM_WIRE_BF16] = 2,
    };
    return bytes[wire];
}

uint64_t rm_collective_in_bytes(const rm_collective *what, int32_t size) {
    if (what->kind == RM_BARRIER || what->kind == RM_BROADCAST) return 0;
    return (uint64_t)what->count * rm_wire_bytes(what->wire) * (what->kind == RM_REDUCE_SCATTER ? (uint64_t)size : 1);
}
uint64_t rm_collective_out_bytes(const rm_collective *what, int32_t size) {
    if (what->kind == RM_BARRIER) return 0;
    return (uint64_t)what->count * rm_wire_bytes(what->wire) * (what->kind == RM_ALL_GATHER ? (uint64_t)size : 1);
}

/* ---- Arguments -------------------------------------------------------------------------------------------------- */

static remat_status check_overlap(const rm_group *group, const rm_collective *what) {
    const int32_t size = group->config.size;
    uint64_t in_bytes = rm_collective_in_bytes(what, size), out_bytes = rm_collective_out_bytes(what, size);
    uint64_t row = (uint64_t)what->count * rm_wire_bytes(what->wire) * (uint64_t)group->config.rank;
    uintptr_t in = (uintptr_t)what->in, out = (uintptr_t)what->out;
    if (in_bytes == 0 || in + in_bytes <= out || out + out_bytes <= in) return REMAT_OK;
    uintptr_t allowed = what->kind == RM_ALL_GATHER ? out + row : what->kind == RM_REDUCE_SCATTER ? out - row : out;
    REQUIRE(in == allowed, INVALID, "%s: `in` and `out` overlap, but are not the same buffer",
            rm_kind_text(what->kind));
    return REMAT_OK;
}

static remat_status check_reduction(const rm_group *group, const rm_collective *what) {
    const char *name = rm_kind_text(what->kind);
    const int32_t size = group->config.size;
    if (what->kind != RM_ALL_REDUCE && what->kind != RM_REDUCE_SCATTER) return REMAT_OK;
    REQUIRE((unsigned)what->reduction < RM_REDUCTIONS, INVALID, "%s: %d is not a reduction", name,
            (int)what->reduction);
    REQUIRE(rm_can_reduce(what->wire, what->reduction), INVALID,
            "%s: %s of %s is not supported; use f32, f16 or bf16 for a mean, f32 or f64 for a tree", name,
            rm_reduction_text(what->reduction), rm_wire_text(what->wire));
    REQUIRE(what->reduction != RM_TREE || !(size & (size - 1)), INVALID,
            "%s: a tree of %d ranks is not possible; use a power of two", name, size);
    return REMAT_OK;
}

static remat_status check(const rm_group *group, const rm_collective *what) {
    REQUIRE((unsigned)what->kind < RM_KINDS, INVALID, "%d is not a kind of collective", (int)what->kind);
    if (what->kind == RM_BARRIER) return REMAT_OK;
    const char *name = rm_kind_text(what->kind);
    REQUIRE((unsigned)what->wire < RM_WIRES, INVALID, "%s: %d is not a type", name, (int)what->wire);
    REQUIRE(what->count >= 0 && what->count <= INT64_MAX / 8 / group->config.size, INVALID,
            "%s: the count %lld is negative or too large", name, (long long)what->count);
    REQUIRE(what->kind != RM_BROADCAST || (what->root >= 0 && what->root < group->config.size), INVALID,
            "broadcast from rank %d, but there are %d ranks", what->root, group->config.size);
    TRY(check_reduction(group, what));
    REQUIRE(what->count == 0 || (what->out && (what->in || what->kind == RM_BROADCAST)), INVALID,
            "%s of %lld elements has no buffer; set `in` and `out`", name, (long long)what->count);
    return check_overlap(group, what);
}

/* ---- Observing -------------------------------------------------------------------------------------------------- */

/* Called without the lock. */
static void observed(const rm_group *group, uint64_t begin_ns, remat_event_kind kind, const rm_collective *what) {
    if (!group->observer.event) return;
    const char *name = group->config.tag_name ? group->config.tag_name(group->config.context, what->tag) : NULL;
    uint64_t bytes = rm_collective_in_bytes(what, group->config.size);
    remat_event event = {.kind = kind, .bytes = bytes, .name = name ? name : rm_kind_text(what->kind)};
    rm_observed(&group->observer, begin_ns, event);
}

/* By the group's thread a collective is part of an exchange that began when it was issued; its caller waits in it. */
static void observed_run(const rm_group *group, uint64_t call, uint64_t begin_ns, bool in_thread) {
    const rm_collective *what = &group->queue[call % QUEUE];
    observed(group, begin_ns, in_thread ? REMAT_EVENT_COLLECTIVE : REMAT_EVENT_WAIT, what);
    if (in_thread) observed(group, group->issued_ns[call % QUEUE], REMAT_EVENT_BUCKET, what);
}

/* ---- Running a collective --------------------------------------------------------------------------------------- */

static remat_status repeat_failure(const rm_group *group) {
    return group->status ? rm_fail(group->status, "%s", group->sentence) : REMAT_OK;
}

static void remember(rm_group *group, remat_status status) {
    if (!status || group->status) return;
    group->status = status;
    snprintf(group->sentence, sizeof group->sentence, "%s", remat_last_error());
}

/* Runs call done + 1 from the queue. The caller holds the lock, which is released meanwhile. */
static void run_next(rm_group *group, bool in_thread) {
    uint64_t call = group->done + 1;
    rm_collective what = group->queue[call % QUEUE];
    remat_status status = group->status;
    group->busy = true;
    if (!status) {
        pthread_mutex_unlock(&group->lock);
        uint64_t begin_ns = rm_observe(&group->observer);
        status = group->api->run(group->engine, call, &what);
        observed_run(group, call, begin_ns, in_thread);
        pthread_mutex_lock(&group->lock);
    }
    remember(group, status);
    group->busy = false;
    group->done = call;
    pthread_cond_broadcast(&group->change);
}

static void *run_queue(void *context) {
    rm_group *group = context;
    pthread_mutex_lock(&group->lock);
    for (;;) {
        if (!group->busy && group->done < group->issued) {
            uint64_t start = rm_now_ns();
            run_next(group, true);
            group->busy_ns += rm_now_ns() - start;
        } else if (group->closing && group->done == group->issued)
            break;
        else
            pthread_cond_wait(&group->change, &group->lock);
    }
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

/* Started at the first issue, so that callers of rm_group_run alone have no extra thread. Blocks signals there: they
 * are for the program's own threads. */
static remat_status need_thread(rm_group *group) {
    if (group->has_thread) return REMAT_OK;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&group->thread, NULL, run_queue, group);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    REQUIRE(!failed, MEMORY, "cannot start a thread for collectives: %s", strerror(failed));
    group->has_thread = true;
    return REMAT_OK;
}

static rm_ticket enqueue(rm_group *group, const rm_collective *what) {
    while (group->issued - group->done == QUEUE) pthread_cond_wait(&group->change, &group->lock);
    rm_ticket ticket = ++group->issued;
    group->queue[ticket % QUEUE] = *what;
    group->issued_ns[ticket % QUEUE] = rm_observe(&group->observer);
    return ticket;
}

remat_status rm_group_issue(rm_group *group, const rm_collective *what, rm_ticket *ticket) {
    TRY(check(group, what));
    pthread_mutex_lock(&group->lock);
    remat_status status = repeat_failure(group);
    if (!status) status = need_thread(group);
    if (!status) {
        *ticket = enqueue(group, what);
        pthread_cond_broadcast(&group->change);
    }
    pthread_mutex_unlock(&group->lock);
    return status;
}

remat_status rm_group_wait(rm_group *group, rm_ticket ticket) {
    uint64_t begin_ns = rm_now_ns();
    pthread_mutex_lock(&group->lock);
    remat_status status = REMAT_OK;
    bool waits = ticket <= group->issued && group->done < ticket;
    rm_collective what = group->queue[ticket % QUEUE]; /* of a ticket that is not done */
    if (ticket > group->issued)
        status = rm_fail(REMAT_INVALID, "cannot wait for collective %llu: only %llu have been issued",
                         (unsigned long long)ticket, (unsigned long long)group->issued);
    while (!status && group->done < ticket) pthread_cond_wait(&group->change, &group->lock);
    if (!status) status = repeat_failure(group);
    group->blocked_ns += rm_now_ns() - begin_ns;
    pthread_mutex_unlock(&group->lock);
    if (waits) observed(group, begin_ns, REMAT_EVENT_WAIT, &what);
    return status;
}

bool rm_group_done(rm_group *group, rm_ticket ticket) {
    pthread_mutex_lock(&group->lock);
    bool done = group->done >= ticket || group->status;
    pthread_mutex_unlock(&group->lock);
    return done;
}

remat_status rm_group_run(rm_group *group, const rm_collective *what) {
    TRY(check(group, what));
    bool waits = false;
    uint64_t begin_ns = rm_now_ns();
    pthread_mutex_lock(&group->lock);
    remat_status status = repeat_failure(group);
    if (!status) {
        rm_ticket ticket = enqueue(group, what);
        if (!group->busy && group->done + 1 == ticket)
            run_next(group, false);
        else
            for (waits = true; group->done < ticket;) pthread_cond_wait(&group->change, &group->lock);
        status = repeat_failure(group);
    }
    group->blocked_ns += rm_now_ns() - begin_ns;
    pthread_mutex_unlock(&group->lock);
    if (waits) observed(group, begin_ns, REMAT_EVENT_WAIT, what);
    return status;
}

static remat_status check_peer(rm_group *group, int32_t rank) {
    REQUIRE(rank >= 0 && rank < group->config.size && rank != group->config.rank, INVALID,
            "rank %d exchanges messages with rank %d of %d; use another rank", group->config.rank, rank,
            group->config.size);
    REQUIRE(group->api->send && group->api->receive, MISSING,
            "the engine %s has no messages between two ranks; use {backend}=local", group->api->name);
    pthread_mutex_lock(&group->lock);
    remat_status status = repeat_failure(group);
    pthread_mutex_unlock(&group->lock);
    return status;
}

static remat_status end_message(rm_group *group, uint64_t begin_ns, remat_event event, remat_status status) {
    rm_observed(&group->observer, begin_ns, event);
    pthread_mutex_lock(&group->lock);
    group->blocked_ns += rm_now_ns() - begin_ns;
    remember(group, status);
    pthread_mutex_unlock(&group->lock);
    return status;
}

remat_status rm_group_send(rm_group *group, int32_t to, const void *data, uint64_t bytes) {
    TRY(check_peer(group, to));
    uint64_t begin_ns = rm_now_ns();
    remat_event event = {.kind = REMAT_EVENT_SEND, .peer = to, .bytes = bytes};
    return end_message(group, begin_ns, event, group->api->send(group->engine, to, data, bytes));
}

remat_status rm_group_receive(rm_group *group, int32_t from, void *data, uint64_t bytes) {
    TRY(check_peer(group, from));
    uint64_t begin_ns = rm_now_ns();
    remat_event event = {.kind = REMAT_EVENT_RECEIVE, .peer = from, .bytes = bytes};
    return end_message(group, begin_ns, event, group->api->receive(group->engine, from, data, bytes));
}

/* ---- Messages of streams ---------------------------------------------------------------------------------------- */

static remat_status give(rm_group *group, void *stream, int32_t peer, bool sending, void *data, uint64_t bytes) {
    TRY(check_peer(group, peer));
    REQUIRE(group->api->give, MISSING, "the engine %s has no messages of streams; use {backend}=nccl",
            group->api->name);
    uint64_t begin_ns = rm_now_ns();
    remat_event event = {.kind = sending ? REMAT_EVENT_SEND : REMAT_EVENT_RECEIVE, .peer = peer, .bytes = bytes};
    return end_message(group, begin_ns, event, group->api->give(group->engine, stream, peer, sending, data, bytes));
}

remat_status rm_group_give_send(rm_group *group, void *stream, int32_t to, const void *data, uint64_t bytes) {
    return give(group, stream, to, true, (void *)(uintptr_t)data, bytes);
}
remat_status rm_group_give_receive(rm_group *group, void *stream, int32_t from, void *data, uint64_t bytes) {
    return give(group, stream, from, false, data, bytes);
}

/* Asks the engine also after a failure that it does not know of: only it can free the stream. */
remat_status rm_group_attend(rm_group *group) {
    remat_status status = group->api->attend ? group->api->attend(group->engine) : REMAT_OK;
    pthread_mutex_lock(&group->lock);
    remember(group, status);
    status = repeat_failure(group);
    pthread_mutex_unlock(&group->lock);
    return status;
}

uint64_t rm_group_device_bytes(const rm_group *group) {
    return group->api->device_bytes ? group->api->device_bytes(group->engine) : 0;
}

uint64_t rm_group_busy_ns(rm_group *group) {
    pthread_mutex_lock(&group->lock);
    uint64_t busy = group->busy_ns;
    pthread_mutex_unlock(&group->lock);
    return busy;
}

uint64_t rm_group_blocked_ns(rm_group *group) {
    pthread_mutex_lock(&group->lock);
    uint64_t blocked = group->blocked_ns;
    pthread_mutex_unlock(&group->lock);
    return blocked;
}

/* ---- Calls from other threads ----------------------------------------------------------------------------------- */

/* A killed mpirun ends no ranks. Each rank notices it here, where all ranks check often. */
static void look_at_launcher(rm_group *group) {
    char end[96], reason[300];
    if (group->launcher < 0 || poll(&(struct pollfd){.fd = group->launcher, .events = POLLIN}, 1, 0) <= 0) return;
    rm_process_end(group->launcher_pid, group->launcher, end, sizeof end);
    snprintf(reason, sizeof reason, "%s, which started this rank, %s, so this rank stops", group->launcher_who, end);
    rm_group_abort(group, reason);
}

remat_status rm_group_poll(rm_group *group) {
    pthread_mutex_lock(&group->lock);
    remat_status status = repeat_failure(group);
    pthread_mutex_unlock(&group->lock);
    if (status) return status;
    if (group->api->poll) status = group->api->poll(group->engine); /* an engine may look only now and then */
    if (!status) look_at_launcher(group);
    pthread_mutex_lock(&group->lock);
    remember(group, status);
    status = repeat_failure(group);
    pthread_mutex_unlock(&group->lock);
    return status;
}

bool rm_group_notice(rm_group *group, rm_notice *out) {
    return group->api->notice && group->api->notice(group->engine, out);
}

void rm_group_abort(rm_group *group, const char *reason) {
    if (group->api->abort) group->api->abort(group->engine, reason);
    pthread_mutex_lock(&group->lock);
    if (!group->status) {
        (void)rm_fail(REMAT_PEER, "rank %d ended the group: %.700s",
                      rm_group_number(&group->config, group->config.rank), reason);
        remember(group, REMAT_PEER);
    }
    pthread_cond_broadcast(&group->change);
    pthread_mutex_unlock(&group->lock);
}

/* ---- Buffers ---------------------------------------------------------------------------------------------------- */

/* For engines without memory of their own: a block with its size in front, and the buffer aligned to a page. */
static void *alloc_host(uint64_t bytes) {
    char *block = rm_block_alloc(bytes + 4096, 4096);
    if (!block) {
        (void)rm_fail(REMAT_MEMORY, "out of memory for a buffer of %llu bytes", (unsigned long long)bytes);
        return NULL;
    }
    memset(block, 0, bytes + 4096);
    memcpy(block, &bytes, sizeof bytes);
    return block + 4096;
}

static void free_host(void *buffer) {
    char *block = (char *)buffer - 4096;
    uint64_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    rm_block_free(block, bytes + 4096);
}

void *rm_group_alloc(rm_group *group, uint64_t bytes) {
    return group->api->alloc ? group->api->alloc(group->engine, bytes) : alloc_host(bytes);
}
void rm_group_free(rm_group *group, void *buffer) {
    if (!buffer) return;
    if (group->api->alloc)
        group->api->free(group->engine, buffer);
    else
        free_host(buffer);
}

/* An engine without a better implementation leaves the caller's memory in place. */
remat_status rm_group_map(rm_group *group, void *address, uint64_t bytes) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    REQUIRE((uintptr_t)address % page == 0 && bytes % page == 0, INVALID,
            "%llu bytes at %p are not whole pages of %llu bytes", (unsigned long long)bytes, address,
            (unsigned long long)page);
    if (bytes == 0) return REMAT_OK;
    if (group->api->map) return group->api->map(group->engine, address, bytes);
    memset(address, 0, bytes);
    return REMAT_OK;
}
void rm_group_unmap(rm_group *group, void *address) {
    if (group->api->unmap) group->api->unmap(group->engine, address);
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

int32_t rm_group_rank(const rm_group *group) { return group->config.rank; }
int32_t rm_group_size(const rm_group *group) { return group->config.size; }
int32_t rm_group_first(const rm_group *group) { return rm_group_number(&group->config, 0); }
const char *rm_group_engine(const rm_group *group) { return group->api->name; }
const remat_observer *rm_group_observer(const rm_group *group) { return group->config.observer; }
rm_kv *rm_group_store(const rm_group *group) {
    return group->api->store ? group->api->store(group->engine) : group->config.store;
}

bool rm_group_address(const rm_group *group, char *text, size_t bytes) {
    if (group->api->address) snprintf(text, bytes, "%s", group->api->address(group->engine));
    return group->api->address != NULL;
}

static remat_status fill_in(rm_group *group, const rm_group_config *config) {
    REQUIRE(config->size >= 1 && config->size <= INT16_MAX, INVALID,
            "a group cannot have %d ranks; it can have 1 to %d", config->size, INT16_MAX);
    REQUIRE(config->rank >= 0 && config->rank < config->size, INVALID, "there is no rank %d of %d; ranks count from 0",
            config->rank, config->size);
    REQUIRE(!config->name || strlen(config->name) < sizeof group->name - 24, INVALID,
            "the group's name is too long: %s", config->name);
    REQUIRE(config->timeout_ms >= 0 && config->silence_ms >= 0 && config->join_ms >= 0, INVALID,
            "the timeout is negative");
    group->config = *config;
    strcpy(group->name, config->name ? config->name : "world");
    group->config.name = group->name;
    TRY(rm_take_observer(config->observer, &group->observer));
    group->config.observer = &group->observer;
    if (!config->join_ms) group->config.join_ms = config->timeout_ms ? config->timeout_ms : 300000;
    if (!config->timeout_ms) group->config.timeout_ms = 600000;
    if (!config->silence_ms) group->config.silence_ms = 10000;
    return REMAT_OK;
}

/* A group that is reopened under the same name must not read what the earlier one left in the store. Keys therefore
 * contain how often this rank has opened it; the number is equal on all ranks, since opening is collective. */
static remat_status number_name(rm_group *group) {
    char key[RM_KV_KEY_BYTES];
    int64_t times;
    if (!group->config.store || group->config.size == 1) return REMAT_OK;
    snprintf(key, sizeof key, "%s/opened/%d", group->name, group->config.rank);
    TRY(rm_kv_add(group->config.store, key, 1, &times));
    size_t length = strlen(group->name);
    snprintf(group->name + length, sizeof group->name - length, "#%lld", (long long)times);
    return REMAT_OK;
}

static void free_group(rm_group *group) {
    if (group->launcher >= 0) close(group->launcher);
    rm_joining_free(group->config.joining);
    pthread_cond_destroy(&group->change);
    pthread_mutex_destroy(&group->lock);
    rm_free(group);
}

static remat_status open_engine(rm_group *group) {
    TRY(rm_group_choose(&group->config, &group->api));
    group->config.engine = group->api->name;
    return group->api->open(&group->config, &group->engine);
}

remat_status rm_group_open(const rm_group_config *config, rm_group **out) {
    rm_group *group = rm_calloc(1, sizeof *group);
    REQUIRE(group, MEMORY, "out of memory for a group");
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->change, NULL);
    group->launcher = -1;
    remat_status status;
    TRY_GOTO(status, done, fill_in(group, config));
    if (config->size > 1)
        group->launcher =
            rm_process_watch_launcher(&group->launcher_pid, group->launcher_who, sizeof group->launcher_who);
    TRY_GOTO(status, done, number_name(group));
    TRY_GOTO(status, done, rm_joining_begin(&group->config, &group->config.joining));
    uint64_t begin_ns = rm_observe(&group->observer);
    status = open_engine(group);
    if (!status)
        rm_observed(&group->observer, begin_ns,
                    (remat_event){.kind = REMAT_EVENT_JOIN, .number = config->rank, .peer = config->size});
    rm_joining_end(group->config.joining, status);
done:
    if (status)
        free_group(group);
    else
        *out = group;
    return status;
}

void rm_group_close(rm_group *group) {
    if (!group) return;
    if (group->has_thread) {
        pthread_mutex_lock(&group->lock);
        group->closing = true;
        pthread_cond_broadcast(&group->change);
        pthread_mutex_unlock(&group->lock);
        pthread_join(group->thread, NULL);
    }
    rm_reason why = rm_reason_kept();
    group->api->close(group->engine);
    (void)rm_reason_again(REMAT_OK, &why);
    free_group(group);
}

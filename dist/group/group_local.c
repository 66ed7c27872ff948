/* group_local.c: collectives among ranks of one host, over shared memory. The table rm_group_local is at the end.
 *
 * Each rank writes what it is about to do into its slot and meets the others (local_meeting.h). Depending on the size
 * and place of the buffers, there are three ways:
 *
 *   eager      Small data were written to the slot's eager block before the meeting; each rank sums them up by itself.
 *              One meeting. Blocks alternate, because a rank may be one call ahead of another that is still reading.
 *   in place   All buffers are in the arena: each rank sums its slice and writes it into every rank's out. Two meetings.
 *   staged     Anything else: parts are copied through blocks in the arena that are small enough to stay in a cache.
 *
 * Every sum is in the order of ranks, whichever rank computes it, so all ways give the same bits. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dist/group/joining.h"
#include "dist/group/local_meeting.h"
#include "dist/group/local_watch.h"
#include "dist/group/reduce.h"
#include "memory/bytes.h"
#include "memory/clock.h"
#include "memory/host.h"

typedef struct {
    rm_group_config config;
    rm_local_arena arena;
    rm_local_watch *watch;
    rm_local_meeting meeting;
    rm_slot *mine;
    const void **input; /* each rank's data, for rm_reduce */
    void **output;
} local_group;

static remat_status meet(local_group *g) { return rm_local_meet(&g->meeting); }

/* ---- Publishing and comparing ---------------------------------------------------------------------------------- */

/* The bytes that this rank contributes: its in, or the root's out for a broadcast. */
static uint64_t brought_bytes(const local_group *g, const rm_collective *what) {
    return what->kind == RM_BROADCAST ? rm_collective_out_bytes(what, g->config.size)
                                      : rm_collective_in_bytes(what, g->config.size);
}
static const void *brought(const rm_collective *what) { return what->kind == RM_BROADCAST ? what->out : what->in; }
static bool brings(const local_group *g, const rm_collective *what) {
    return what->kind != RM_BROADCAST || what->root == g->config.rank;
}

static bool is_eager(const local_group *g, const rm_collective *what) {
    uint64_t bytes = brought_bytes(g, what);
    return bytes <= RM_EAGER_BYTES && bytes * (uint64_t)g->config.size <= 4 * RM_EAGER_BYTES;
}

static void say(local_group *g, uint64_t call, const rm_collective *what) {
    rm_said *said = &g->mine->said[call % 2];
    *said = (rm_said){.print = rm_fingerprint_of(call, what), .in_at = -1, .out_at = -1};
    atomic_store_explicit(&g->mine->doing, call, memory_order_release);
    uint64_t bytes = brought_bytes(g, what);
    if (is_eager(g, what)) {
        if (bytes && brings(g, what)) memcpy(rm_local_eager(&g->arena, g->config.rank, call), brought(what), bytes);
        return;
    }
    said->in_at = rm_local_offset(&g->arena, brought(what), bytes);
    said->out_at = rm_local_offset(&g->arena, what->out, rm_collective_out_bytes(what, g->config.size));
}

typedef struct {
    const local_group *group;
    uint64_t call;
} in_call;

static const rm_fingerprint *print_of(void *context, int32_t rank) {
    const in_call *in = context;
    return &rm_local_slot(&in->group->arena, rank)->said[in->call % 2].print;
}
static const char *host_of(void *context, int32_t rank) {
    return rm_local_slot(&((const in_call *)context)->group->arena, rank)->host;
}

static remat_status compare(local_group *g, uint64_t call) {
    in_call in = {.group = g, .call = call};
    return rm_fingerprints_compare(
        &(rm_fingerprints){.config = &g->config, .at = print_of, .host = host_of, .context = &in});
}

/* ---- Eager ----------------------------------------------------------------------------------------------------- */

/* All ranks' data can be read at `input`: computes this rank's out from them. */
static void collect(local_group *g, const rm_collective *what) {
    uint64_t bytes = (uint64_t)what->count * rm_wire_bytes(what->wire);
    if (bytes == 0) return;
    if (what->kind == RM_REDUCE_SCATTER)
        for (int32_t r = 0; r < g->config.size; r++)
            g->input[r] = (const char *)g->input[r] + bytes * (uint64_t)g->config.rank;
    if (what->kind == RM_ALL_REDUCE || what->kind == RM_REDUCE_SCATTER)
        rm_reduce(what->wire, what->reduction, g->input, g->config.size, (void *const[]){what->out}, 1, what->count);
    else if (what->kind == RM_ALL_GATHER)
        for (int32_t r = 0; r < g->config.size; r++) {
            char *row = (char *)what->out + bytes * (uint64_t)r;
            if (row != g->input[r]) memcpy(row, g->input[r], bytes);
        }
    else if (!brings(g, what))
        memcpy(what->out, g->input[what->root], bytes);
}

static void collect_eager(local_group *g, uint64_t call, const rm_collective *what) {
    for (int32_t r = 0; r < g->config.size; r++) g->input[r] = rm_local_eager(&g->arena, r, call);
    collect(g, what);
}

/* ---- In place -------------------------------------------------------------------------------------------------- */

/* Finds all ranks' data, if every buffer needed is in the arena. All ranks decide alike, since they read the same
 * words. */
static bool find_in_place(local_group *g, uint64_t call, const rm_collective *what) {
    for (int32_t r = 0; r < g->config.size; r++) {
        const rm_said *said = &rm_local_slot(&g->arena, r)->said[call % 2];
        bool needed = what->kind != RM_BROADCAST || r == what->root;
        if (needed && (said->in_at < 0 || (what->kind == RM_ALL_REDUCE && said->out_at < 0))) return false;
        g->input[r] = g->arena.base + said->in_at;
        g->output[r] = g->arena.base + said->out_at;
    }
    return true;
}

/* The slice of `count` elements that this rank sums: whole cache lines, so that no two ranks share a line. */
static int64_t slice(const local_group *g, int64_t count, int64_t *at) {
    int64_t size = g->config.size, each = ((count + size - 1) / size + 63) / 64 * 64;
    *at = each * g->config.rank < count ? each * g->config.rank : count;
    return count - *at < each ? count - *at : each;
}

static remat_status do_in_place(local_group *g, const rm_collective *what) {
    if (what->kind != RM_ALL_REDUCE) {
        collect(g, what);
        return meet(g); /* after this, the others have read this rank's data */
    }
    int64_t at, n = slice(g, what->count, &at), offset = at * (int64_t)rm_wire_bytes(what->wire);
    for (int32_t r = 0; r < g->config.size; r++) {
        g->input[r] = (const char *)g->input[r] + offset;
        g->output[r] = (char *)g->output[r] + offset;
    }
    if (n > 0) rm_reduce(what->wire, what->reduction, g->input, g->config.size, g->output, g->config.size, n);
    return meet(g);
}

/* ---- Staged ---------------------------------------------------------------------------------------------------- */

static remat_status staged_all_reduce(local_group *g, const rm_collective *what) {
    const int64_t width = (int64_t)rm_wire_bytes(what->wire), part = RM_STAGE_BYTES / width;
    for (int64_t at = 0; at < what->count; at += part) {
        int64_t n = rm_fewer(part, what->count - at), from, own = slice(g, n, &from);
        memcpy(rm_local_stage(&g->arena, g->config.rank), (const char *)what->in + at * width, (size_t)(n * width));
        TRY(meet(g));
        for (int32_t r = 0; r < g->config.size; r++) g->input[r] = rm_local_stage(&g->arena, r) + from * width;
        void *sums = rm_local_sums(&g->arena) + from * width;
        if (own > 0) rm_reduce(what->wire, what->reduction, g->input, g->config.size, &sums, 1, own);
        /* The blocks copied out next are overwritten only after the next meeting, which every rank calls after this */
        TRY(meet(g));
        memcpy((char *)what->out + at * width, rm_local_sums(&g->arena), (size_t)(n * width));
    }
    return REMAT_OK;
}

static remat_status staged_all_gather(local_group *g, const rm_collective *what) {
    const int64_t width = (int64_t)rm_wire_bytes(what->wire), part = RM_STAGE_BYTES / width;
    for (int64_t at = 0; at < what->count; at += part) {
        size_t bytes = (size_t)(rm_fewer(part, what->count - at) * width);
        memcpy(rm_local_stage(&g->arena, g->config.rank), (const char *)what->in + at * width, bytes);
        TRY(meet(g));
        for (int32_t r = 0; r < g->config.size; r++)
            memcpy((char *)what->out + (r * what->count + at) * width, rm_local_stage(&g->arena, r), bytes);
        TRY(meet(g));
    }
    return REMAT_OK;
}

static remat_status staged_broadcast(local_group *g, const rm_collective *what) {
    const int64_t width = (int64_t)rm_wire_bytes(what->wire), part = RM_STAGE_BYTES / width;
    for (int64_t at = 0; at < what->count; at += part) {
        size_t bytes = (size_t)(rm_fewer(part, what->count - at) * width);
        char *here = (char *)what->out + at * width, *stage = rm_local_stage(&g->arena, what->root);
        if (brings(g, what)) memcpy(stage, here, bytes);
        TRY(meet(g));
        if (!brings(g, what)) memcpy(here, stage, bytes);
        TRY(meet(g));
    }
    return REMAT_OK;
}

/* A stage holds the same part of every row. In and out may overlap in this rank's own row; that part is in the stage
 * before it is overwritten. */
static remat_status staged_reduce_scatter(local_group *g, const rm_collective *what) {
    const int64_t width = (int64_t)rm_wire_bytes(what->wire), part = RM_STAGE_BYTES / width / g->config.size;
    for (int64_t at = 0; at < what->count; at += part) {
        int64_t n = rm_fewer(part, what->count - at);
        char *stage = rm_local_stage(&g->arena, g->config.rank);
        for (int32_t row = 0; row < g->config.size; row++)
            memcpy(stage + row * part * width, (const char *)what->in + (row * what->count + at) * width,
                   (size_t)(n * width));
        TRY(meet(g));
        for (int32_t r = 0; r < g->config.size; r++)
            g->input[r] = rm_local_stage(&g->arena, r) + g->config.rank * part * width;
        void *out = (char *)what->out + at * width;
        rm_reduce(what->wire, what->reduction, g->input, g->config.size, &out, 1, n);
        TRY(meet(g));
    }
    return REMAT_OK;
}

static remat_status do_staged(local_group *g, const rm_collective *what) {
    switch (what->kind) {
    case RM_ALL_REDUCE:
        return staged_all_reduce(g, what);
    case RM_ALL_GATHER:
        return staged_all_gather(g, what);
    case RM_BROADCAST:
        return staged_broadcast(g, what);
    case RM_REDUCE_SCATTER:
        return staged_reduce_scatter(g, what);
    default:
        return REMAT_OK;
    }
}

/* ---- The table ------------------------------------------------------------------------------------------------- */

static remat_status run(void *engine, uint64_t call, const rm_collective *what) {
    local_group *g = engine;
    TRY(rm_local_stopped(&g->arena));
    say(g, call, what);
    TRY(meet(g));
    TRY(compare(g, call));
    if (is_eager(g, what))
        collect_eager(g, call, what);
    else if (find_in_place(g, call, what))
        TRY(do_in_place(g, what));
    else
        TRY(do_staged(g, what));
    atomic_store_explicit(&g->mine->doing, 0, memory_order_release);
    return REMAT_OK;
}

static void close_group(void *engine) {
    local_group *g = engine;
    if (!g) return;
    if (g->mine) atomic_store(&g->mine->presence, RM_LEFT);
    rm_local_watch_stop(g->watch);
    rm_local_arena_close(&g->arena);
    rm_free(g->input);
    rm_free(g->output);
    rm_free(g);
}

static void come_in(local_group *g) {
    g->mine = rm_local_slot(&g->arena, g->config.rank);
    g->mine->pid = (int32_t)getpid();
    g->mine->number = rm_group_number(&g->config, g->config.rank);
    if (gethostname(g->mine->host, sizeof g->mine->host - 1)) strcpy(g->mine->host, "this host");
    atomic_store(&g->mine->beat_ns, rm_now_ns());
    atomic_store(&g->mine->presence, RM_HERE);
}

/* Waits until the rank has mapped the arena. */
static remat_status wait_for_presence(local_group *g, int32_t rank) {
    const rm_slot *slot = rm_local_slot(&g->arena, rank);
    for (int64_t pause = 0; atomic_load(&slot->presence) == RM_ABSENT;) {
        TRY(rm_local_stopped(&g->arena));
        TRY(rm_joining_pause(g->config.joining, &pause));
    }
    return REMAT_OK;
}

static remat_status enter(local_group *g) {
    rm_joining_step(g->config.joining, "mapping the shared memory");
    TRY(rm_local_arena_open(&g->config, &g->arena));
    come_in(g);
    rm_joining_step(g->config.joining, "waiting until all ranks have mapped the shared memory");
    for (int32_t r = 0; r < g->config.size; r++) TRY(wait_for_presence(g, r));
    if (g->config.size > 1) TRY(rm_local_watch_start(&g->config, &g->arena, &g->watch));
    rm_joining_step(g->config.joining, "meeting for the first time");
    TRY(meet(g)); /* now pidfds refer to the right processes: all ranks were alive after they had been opened */
    g->meeting.limit_ms = g->config.timeout_ms;
    return REMAT_OK;
}

static remat_status open_group(const rm_group_config *config, void **engine) {
    local_group *g = rm_calloc(1, sizeof *g);
    REQUIRE(g, MEMORY, "out of memory for a group of %d ranks", config->size);
    g->config = *config;
    g->arena.fd = -1;
    rm_local_meeting_init(&g->config, &g->arena, &g->meeting);
    g->input = rm_calloc((size_t)config->size, sizeof *g->input);
    g->output = rm_calloc((size_t)config->size, sizeof *g->output);
    remat_status status = g->input && g->output ? enter(g) : rm_fail(REMAT_MEMORY, "out of memory for a group");
    if (status)
        close_group(g);
    else
        *engine = g;
    return status;
}

static void *alloc(void *engine, uint64_t bytes) { return rm_local_alloc(&((local_group *)engine)->arena, bytes); }
static void free_buffer(void *engine, void *buffer) { rm_local_free(&((local_group *)engine)->arena, buffer); }
static remat_status map(void *engine, void *address, uint64_t bytes) {
    return rm_local_map(&((local_group *)engine)->arena, address, bytes);
}
static void unmap(void *engine, void *address) { rm_local_unmap(&((local_group *)engine)->arena, address); }
static remat_status poll_group(void *engine) { return rm_local_stopped(&((local_group *)engine)->arena); }

static bool notice(void *engine, rm_notice *out) {
    local_group *g = engine;
    if (g->watch && rm_local_silent(g->watch, out)) return true;
    return rm_local_waits(&g->meeting, out);
}

static void abort_group(void *engine, const char *reason) {
    local_group *g = engine;
    char who[RM_RANK_TEXT];
    (void)rm_local_announce(&g->arena, "%.130s ended the group: %.600s", rm_local_who(&g->arena, g->config.rank, who),
                            reason);
}

static remat_status library(char *text, size_t bytes) {
    snprintf(text, bytes, "shared memory, on one host");
    return REMAT_OK;
}

static remat_status send_to(void *engine, int32_t to, const void *data, uint64_t bytes) {
    return rm_local_send(&((local_group *)engine)->meeting, to, data, bytes);
}
static remat_status receive_from(void *engine, int32_t from, void *data, uint64_t bytes) {
    return rm_local_receive(&((local_group *)engine)->meeting, from, data, bytes);
}

const rm_group_api rm_group_local = {
    .name = "local",
    .library = library,
    .open = open_group,
    .close = close_group,
    .alloc = alloc,
    .free = free_buffer,
    .map = map,
    .unmap = unmap,
    .run = run,
    .send = send_to,
    .receive = receive_from,
    .poll = poll_group,
    .notice = notice,
    .abort = abort_group,
};

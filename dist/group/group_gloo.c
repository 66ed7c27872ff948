/* group_gloo.c: collectives by Gloo, over TCP, for several hosts without MPI. The table rm_group_gloo is at the end;
 * the C++ code is in gloo_shim.cc. Gloo has no fingerprints and never names a failed rank. Both are added here, through
 * Gloo's own exchanges and through the store. slices.c makes sums whose order is fixed, and sums of types that Gloo
 * does not support. This engine is a module: module.h. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/group/agree.h"
#include "dist/group/failure.h"
#include "dist/group/gloo_shim.h"
#include "dist/group/joining.h"
#include "dist/group/module.h"
#include "dist/group/contribute.h"
#include "dist/group/slices.h"
#include "memory/host.h"

#include "dist/group/module_calls.h" /* must be last */

typedef struct {
    rm_group_config config;
    rm_gloo *gloo;
    rm_failure failure;
    rm_scratch scratch;
    rm_slices slices;
    char address[256];         /* through which the others reach this rank, or an interface's name */
    const rm_fingerprint *now; /* the current collective, for messages from `slices` */
} gloo_group;

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

static remat_status check_gloo(gloo_group *g, const rm_fingerprint *now, bool fine, const char *why) {
    return fine ? REMAT_OK : rm_failure_find(&g->failure, now, why);
}

static remat_status maximum(void *context, const rm_fingerprint *now, uint64_t number[2]) {
    gloo_group *g = context;
    char why[RM_GLOO_WHY];
    return check_gloo(g, now, rm_gloo_all_reduce(g->gloo, RM_GLOO_MAX_U64, number, 2, why), why);
}

static remat_status gather(void *context, const rm_fingerprint *mine, rm_fingerprint *all) {
    gloo_group *g = context;
    char why[RM_GLOO_WHY];
    return check_gloo(g, mine, rm_gloo_all_gather(g->gloo, mine, all, sizeof *mine, why), why);
}

static rm_gloo_sum sum_of(rm_wire wire) {
    return wire == RM_WIRE_F32   ? RM_GLOO_F32
           : wire == RM_WIRE_F64 ? RM_GLOO_F64
           : wire == RM_WIRE_I32 ? RM_GLOO_I32
                                 : RM_GLOO_U8;
}

/* This version of Gloo has no reduce_scatter: computes the whole sum and keeps one row. */
static remat_status reduce_scatter(gloo_group *g, const rm_fingerprint *now, const rm_collective *what) {
    uint64_t bytes = rm_collective_in_bytes(what, g->config.size), row = rm_collective_out_bytes(what, g->config.size);
    char why[RM_GLOO_WHY];
    TRY(rm_scratch_take(&g->scratch, bytes));
    rm_contribute(what, g->config.size, g->scratch.block);
    bool fine = rm_gloo_all_reduce(g->gloo, sum_of(what->wire), g->scratch.block,
                                   (size_t)what->count * (size_t)g->config.size, why);
    TRY(check_gloo(g, now, fine, why));
    memcpy(what->out, (char *)g->scratch.block + row * (uint64_t)g->config.rank, row);
    return REMAT_OK;
}

static remat_status exchange(void *context, const void *from, void *to, uint64_t bytes) {
    gloo_group *g = context;
    char why[RM_GLOO_WHY];
    return check_gloo(g, g->now, rm_gloo_exchange(g->gloo, from, to, bytes, why), why);
}
static remat_status gather_rows(void *context, const void *from, void *to, uint64_t bytes) {
    gloo_group *g = context;
    char why[RM_GLOO_WHY];
    return check_gloo(g, g->now, rm_gloo_all_gather(g->gloo, from, to, bytes, why), why);
}

static remat_status do_it(gloo_group *g, const rm_fingerprint *now, const rm_collective *what) {
    char why[RM_GLOO_WHY];
    size_t bytes = (size_t)what->count * (size_t)rm_wire_bytes(what->wire);
    bool fine = true;
    const bool reduces = what->kind == RM_ALL_REDUCE || what->kind == RM_REDUCE_SCATTER;
    if (what->kind == RM_BARRIER || what->count == 0) return REMAT_OK; /* the ranks have already met to agree */
    g->now = now;
    if (reduces && rm_is_sliced(what)) return rm_slices_reduce(&g->slices, what);
    if (what->kind == RM_REDUCE_SCATTER) return reduce_scatter(g, now, what);
    if (what->kind == RM_ALL_REDUCE) {
        rm_contribute(what, g->config.size, what->out);
        fine = rm_gloo_all_reduce(g->gloo, sum_of(what->wire), what->out, (size_t)what->count, why);
    } else if (what->kind == RM_BROADCAST) {
        fine = rm_gloo_broadcast(g->gloo, what->out, bytes, what->root, why);
    } else {
        fine = rm_gloo_all_gather(g->gloo, what->in, what->out, bytes, why);
    }
    return check_gloo(g, now, fine, why);
}

static remat_status run(void *engine, uint64_t call, const rm_collective *what) {
    gloo_group *g = engine;
    rm_fingerprint mine = rm_fingerprint_of(call, what);
    rm_exchange exchange = {.maximum = maximum, .gather = gather, .context = g};
    TRY(rm_agree(&g->config, &exchange, &mine));
    return do_it(g, &mine, what);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

#define TRIES 5
#define CONNECT_MS 2000 /* of the first try; doubles with each further try, since all ranks have arrived by then */

typedef struct {
    const rm_group_config *config;
    int number; /* of this try; each try has its own keys and ports */
    const char *phase;
    bool published; /* the others know this rank's port and are connecting */
} attempt;

static const char *key_of(const attempt *a, const char *key, char named[RM_KV_KEY_BYTES + 1]) {
    snprintf(named, RM_KV_KEY_BYTES + 1, "%.60s/gloo/%d/%s/%.100s", a->config->name, a->number, a->phase, key);
    return named;
}
static bool set_key(void *context, const char *key, const void *value, uint32_t bytes) {
    attempt *a = context;
    char named[RM_KV_KEY_BYTES + 1];
    a->published = true;
    return !rm_kv_set(a->config->store, key_of(a, key, named), value, bytes);
}
static bool get_key(void *context, const char *key, void *value, uint32_t capacity, uint32_t *bytes) {
    const attempt *a = context;
    char named[RM_KV_KEY_BYTES + 1];
    return !rm_joining_get(a->config->joining, key_of(a, key, named), value, capacity, bytes);
}

/* Collective: have all ranks got this far? *why is "" or one rank's error. No rank may retry or continue on its own. */
static remat_status hear_all(attempt *a, const char *phase, bool fine, char *why) {
    char key[RM_KV_KEY_BYTES + 1];
    int64_t come;
    uint32_t length = 0;
    rm_kv *store = a->config->store;
    a->phase = phase;
    rm_joining_step(a->config->joining, "finding out whether Gloo has connected all ranks");
    if (!fine) TRY(rm_kv_set(store, key_of(a, "failed", key), why, (uint32_t)strlen(why)));
    TRY(rm_kv_add(store, key_of(a, "come", key), 1, &come));
    if (come == a->config->size) {
        if (rm_kv_get(store, key_of(a, "failed", key), why, RM_GLOO_WHY - 1, &length, -1)) length = 0;
        why[length] = 0;
        return rm_kv_set(store, key_of(a, "verdict", key), why, length);
    }
    TRY(rm_joining_get(a->config->joining, key_of(a, "verdict", key), why, RM_GLOO_WHY - 1, &length));
    why[length] = 0;
    return REMAT_OK;
}

/* Uses the local address of the connection to rank 0, since that one works. Rank 0 cannot see its own: rank 1 tells it
 * the address at which it found rank 0. A host's own name is the last resort, since many hosts resolve it to
 * 127.0.1.1. */
static remat_status find_address(const rm_group_config *config, char *text, uint32_t bytes) {
    char key[RM_KV_KEY_BYTES];
    uint32_t length;
    snprintf(key, sizeof key, "%s/address of rank 0", config->name);
    bool known = rm_kv_address(config->store, config->rank == 1, text, bytes);
    if (known && config->rank == 1) {
        TRY(rm_kv_set(config->store, key, text, (uint32_t)strlen(text)));
        known = rm_kv_address(config->store, false, text, bytes);
    } else if (known && config->rank == 0 && config->size > 1) {
        TRY(rm_joining_get(config->joining, key, text, bytes - 1, &length));
        text[length] = 0;
    }
    if (!known && gethostname(text, bytes - 1)) snprintf(text, bytes, "localhost");
    return REMAT_OK;
}

/* A stranger that connects to a port earlier than the expected rank takes that rank's place; all ranks then try other
 * ports. */
static remat_status enter(gloo_group *g) {
    char why[RM_GLOO_WHY], *address = g->address;
    attempt a = {.config = &g->config};
    rm_gloo_config config = {.rank = g->config.rank,
                             .size = g->config.size,
                             .timeout_ms = g->config.timeout_ms,
                             .interface = getenv("GLOO_SOCKET_IFNAME"),
                             .address = address,
                             .store = {.set = set_key, .get = get_key, .context = &a}};
    TRY(rm_failure_begin(&g->failure, &g->config));
    TRY(find_address(&g->config, address, sizeof g->address));
    if (config.interface) snprintf(address, sizeof g->address, "%s", config.interface);
    for (; a.number < TRIES; a.number++) {
        a.phase = "connect";
        rm_joining_step(g->config.joining, "connecting by Gloo");
        int64_t patience = CONNECT_MS << a.number, left = rm_joining_left_ms(g->config.joining);
        config.connect_ms = patience < left ? patience : left;
        bool fine = rm_gloo_open(&config, &g->gloo, why);
        if (!fine && !a.published) break;
        TRY(hear_all(&a, "connected", fine, why));
        if (!*why) {
            fine = rm_gloo_meet(g->gloo, &config, why);
            TRY(hear_all(&a, "met", fine, why));
            if (!*why) return REMAT_OK;
        }
        if (g->gloo) rm_gloo_close(g->gloo);
        g->gloo = NULL;
    }
    TRY(rm_joining_look(g->config.joining)); /* a dead rank is a better explanation than Gloo's message */
    REQUIRE(a.number < TRIES, PEER,
            "the ranks could not connect to each other through %s, %d times, each on new ports: %.350s. Check whether "
            "another program, such as a port scanner, connects to these ports; set GLOO_SOCKET_IFNAME=NAME to use "
            "another network interface",
            address, TRIES, why);
    FAIL(PEER,
         "rank %d could not connect to the other ranks through %s: %.350s. Set GLOO_SOCKET_IFNAME=NAME to use another "
         "network interface",
         g->config.rank, address, why);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static uint64_t part_of(uint64_t left) { return left < RM_MESSAGE_PART ? left : RM_MESSAGE_PART; }

static remat_status send_to(void *engine, int32_t to, const void *data, uint64_t bytes) {
    gloo_group *g = engine;
    char why[RM_GLOO_WHY];
    bool fine = true;
    TRY(rm_failure_wait(&g->failure, to));
    for (uint64_t at = 0; at < bytes && fine; at += part_of(bytes - at))
        fine = rm_gloo_send(g->gloo, to, (const char *)data + at, part_of(bytes - at), RM_MESSAGE_ROOM, why);
    if (!fine) return rm_failure_find_rank(&g->failure, to, true, why);
    rm_failure_waited(&g->failure);
    return REMAT_OK;
}

static remat_status receive_from(void *engine, int32_t from, void *data, uint64_t bytes) {
    gloo_group *g = engine;
    char why[RM_GLOO_WHY];
    bool fine = true;
    TRY(rm_failure_wait(&g->failure, from));
    for (uint64_t at = 0; at < bytes && fine; at += part_of(bytes - at))
        fine = rm_gloo_receive(g->gloo, from, (char *)data + at, part_of(bytes - at), why);
    if (!fine) return rm_failure_find_rank(&g->failure, from, false, why);
    rm_failure_waited(&g->failure);
    return REMAT_OK;
}

static void close_group(void *engine) {
    gloo_group *g = engine;
    rm_failure_end(&g->failure);
    if (g->gloo) rm_gloo_close(g->gloo);
    rm_scratch_free(&g->scratch);
    rm_free(g);
}

static remat_status open_group(const rm_group_config *config, void **engine) {
    REQUIRE(config->store, INVALID, "Gloo needs a store for its ranks to meet; set {init_method}");
    gloo_group *g = rm_calloc(1, sizeof *g);
    REQUIRE(g, MEMORY, "out of memory for a group");
    g->config = *config;
    g->slices = (rm_slices){.exchange = exchange,
                            .gather = gather_rows,
                            .context = g,
                            .rank = config->rank,
                            .size = config->size,
                            .scratch = &g->scratch};
    remat_status status = enter(g);
    if (status)
        close_group(g);
    else
        *engine = g;
    return status;
}

static remat_status poll_group(void *engine) { return rm_failure_look(&((gloo_group *)engine)->failure, NULL); }

static void abort_group(void *engine, const char *reason) {
    gloo_group *g = engine;
    rm_failure_abort(&g->failure, reason); /* first, so that the others find the reason when their connections close */
    rm_gloo_abort(g->gloo);
}

static remat_status library(char *text, size_t bytes) {
    snprintf(text, bytes, "Gloo %s, over TCP", rm_gloo_version());
    return REMAT_OK;
}

static const char *address_of(void *engine) { return ((gloo_group *)engine)->address; }

static const rm_group_api rm_group_gloo = {
    .name = "gloo",
    .library = library,
    .open = open_group,
    .close = close_group,
    .run = run,
    .send = send_to,
    .receive = receive_from,
    .poll = poll_group,
    .abort = abort_group,
    .address = address_of,
};
RM_GROUP_MODULE(gloo);

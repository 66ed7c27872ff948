/* arrivals.c: see arrivals.h. Rank 0 collects the arrivals of all others and publishes its decision in the store. */
#define _GNU_SOURCE
#include "dist/group/arrivals.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dist/group/joining.h"
#include "dist/store/boot_id.h"
#include "dist/store/store_kind.h"
#include "memory/host.h"

/* ---- Missing ranks ----------------------------------------------------------------------------------------------- */

void rm_missing_ranks(const bool *here, int32_t size, char *text, size_t bytes) {
    char list[400] = "";
    int32_t missing = 0;
    size_t used = 0, room = sizeof list - 40;
    for (int32_t r = 0, end; r < size; r = end) {
        for (end = r + 1; end < size && here[end] == here[r];) end++;
        if (here[r]) continue;
        missing += end - r;
        if (used >= room) continue; /* the final count covers the ranks that are left out */
        used += (size_t)snprintf(list + used, sizeof list - used, used ? ", %d" : "%d", r);
        if (end - r > 1)
            used += (size_t)snprintf(list + used, sizeof list - used, end - r > 2 ? "-%d" : ", %d", end - 1);
    }
    if (used >= room) snprintf(list + used, sizeof list - used, ", ... (%d in total)", missing);
    snprintf(text, bytes, "rank%s %s of %d", missing == 1 ? "" : "s", list, size);
}

/* ---- Choice of the engine ---------------------------------------------------------------------------------------- */

/* A text that is equal on two ranks if they can share memory: the running kernel and the process-ID namespace. */
static void place_of_this_process(char *text, size_t bytes) {
    char boot[RM_BOOT_ID_BYTES], pids[64] = "";
    rm_boot_id(boot);
    if (readlink("/proc/self/ns/pid", pids, sizeof pids - 1) < 0) pids[0] = 0;
    snprintf(text, bytes, "%s %s %u", boot, pids, (unsigned)geteuid());
}

void rm_arrival_fill(const char *engine, bool mpi, bool gloo, rm_arrival *out) {
    *out = (rm_arrival){.mpi = mpi, .gloo = gloo};
    snprintf(out->engine, sizeof out->engine, "%s", engine);
    place_of_this_process(out->place, sizeof out->place);
    rm_kv_who(out->who, sizeof out->who);
}

static remat_status choose(const char *name, char engine[16]) {
    snprintf(engine, 16, "%s", name);
    return REMAT_OK;
}

static remat_status check_alike(const rm_arrival *all, int32_t size) {
    for (int32_t r = 1; r < size; r++)
        REQUIRE(!strncmp(all[r].engine, all[0].engine, sizeof all[r].engine), INVALID,
                "rank 0 has {backend}=%.15s, but rank %d (%.95s) has {backend}=%.15s; give all ranks the same",
                all[0].engine, r, all[r].who, all[r].engine);
    return REMAT_OK;
}

remat_status rm_arrivals_choose(const rm_arrival *all, int32_t size, char engine[16]) {
    bool one_host = true, mpi = true;
    int32_t without_gloo = -1;
    TRY(check_alike(all, size));
    if (strcmp(all[0].engine, "auto")) return choose(all[0].engine, engine);
    for (int32_t r = size - 1; r >= 0; r--) {
        one_host &= !strncmp(all[r].place, all[0].place, sizeof all[r].place);
        mpi &= all[r].mpi;
        if (!all[r].gloo) without_gloo = r;
    }
    if (one_host || mpi) return choose(one_host ? "local" : "mpi", engine);
    REQUIRE(without_gloo < 0, MISSING,
            "the ranks are on several hosts, where they need Gloo, but the Remat of rank %d (%.95s) was built without "
            "it; install libgloo-dev there and rebuild Remat",
            without_gloo, all[without_gloo].who);
    return choose("gloo", engine);
}

/* ---- Arrival ----------------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t status;
    char engine[16], why[700];
} verdict;

static void key_of(const rm_group_config *config, const char *what, char key[RM_KV_KEY_BYTES]) {
    snprintf(key, RM_KV_KEY_BYTES, "%s/%s", config->name, what);
}

static void key_of_rank(const rm_group_config *config, int32_t rank, char key[RM_KV_KEY_BYTES]) {
    snprintf(key, RM_KV_KEY_BYTES, "%s/here/%d", config->name, rank);
}

static remat_status hear_all(const rm_group_config *config, rm_arrival *all) {
    char key[RM_KV_KEY_BYTES];
    uint32_t bytes;
    for (int32_t r = 0; r < config->size; r++) {
        key_of_rank(config, r, key);
        TRY(rm_joining_get(config->joining, key, &all[r], sizeof all[r], &bytes));
        REQUIRE(bytes == sizeof all[r], PEER, "rank %d runs another build of Remat; all ranks must run the same", r);
        all[r].engine[sizeof all[r].engine - 1] = all[r].who[sizeof all[r].who - 1] = 0;
    }
    return REMAT_OK;
}

/* Runs on rank 0. */
static remat_status decide(const rm_group_config *config, const char *key, verdict *out) {
    rm_arrival *all = rm_calloc((size_t)config->size, sizeof *all);
    REQUIRE(all, MEMORY, "out of memory for the arrivals of %d ranks", config->size);
    remat_status status = hear_all(config, all);
    if (!status) {
        out->status = (int32_t)rm_arrivals_choose(all, config->size, out->engine);
        if (out->status) snprintf(out->why, sizeof out->why, "%s", remat_last_error());
        status = rm_kv_set(config->store, key, out, sizeof *out);
    }
    rm_free(all);
    return status;
}

remat_status rm_wait_for_ranks(const rm_group_config *config, const rm_arrival *mine, char engine[16]) {
    char here[RM_KV_KEY_BYTES], key[RM_KV_KEY_BYTES];
    verdict end = {0};
    uint32_t bytes;
    key_of_rank(config, config->rank, here);
    key_of(config, "engine", key);
    TRY(rm_kv_set(config->store, here, mine, sizeof *mine));
    if (config->rank == 0)
        TRY(decide(config, key, &end));
    else
        TRY(rm_joining_get(config->joining, key, &end, sizeof end, &bytes));
    if (end.status) return rm_fail((remat_status)end.status, "%.690s", end.why);
    return choose(end.engine, engine);
}

/* group_auto.c: the list of engines, and the choice among them. */
#define _GNU_SOURCE
#include "dist/group_auto.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/module.h"

/* mpi and gloo are modules: module.h. */
static const rm_group_api *const engines[] = {
    &rm_group_local,
#ifdef REMAT_HAVE_NCCL
    &rm_group_nccl,
#endif
};
enum { ENGINES = sizeof engines / sizeof *engines };

static remat_status find(const char *name, const rm_group_api **out) {
    for (int i = 0; i < ENGINES; i++)
        if (!strcmp(engines[i]->name, name)) {
            *out = engines[i];
            return REMAT_OK;
        }
    if (!strcmp(name, "mpi")) {
#ifdef REMAT_HAVE_MPI
        return rm_module_open(name, out);
#endif
        FAIL(MISSING, "this Remat was built without MPI: install libopenmpi-dev (or MPICH), and build it again");
    }
    if (!strcmp(name, "gloo")) {
#ifdef REMAT_HAVE_GLOO
        return rm_module_open(name, out);
#endif
        FAIL(MISSING, "this Remat was built without Gloo: install libgloo-dev and a C++ compiler, and build it again");
    }
    if (!strcmp(name, "nccl"))
        FAIL(MISSING,
             "this Remat was built without NCCL: install it with CUDA, and build Remat again; for ranks without "
             "GPUs, use local, mpi or gloo");
    FAIL(INVALID, "there is no way called '%s' to reach other ranks; there are auto, local, mpi, gloo and nccl", name);
}

/* What two ranks have in common when they can share memory: the running kernel and the numbering of processes. */
static void place_of_this_process(char *text, size_t bytes) {
    char boot[64] = "", pids[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(boot, sizeof boot, file)) boot[0] = 0;
        fclose(file);
    }
    if (readlink("/proc/self/ns/pid", pids, sizeof pids - 1) < 0) pids[0] = 0;
    boot[strcspn(boot, "\n")] = 0;
    snprintf(text, bytes, "%s %s %u", boot, pids, (unsigned)geteuid());
}

/* Everybody compares with rank 0 and adds to the count of those elsewhere; the answer is out when all have. */
static remat_status on_one_host(const rm_group_config *config, bool *one_host) {
    char key[RM_KV_KEY_BYTES], mine[160], first[160] = "";
    uint32_t bytes;
    int64_t sum;
    place_of_this_process(mine, sizeof mine);
    snprintf(key, sizeof key, "%s/place", config->name);
    if (config->rank == 0) TRY(rm_kv_set(config->store, key, mine, (uint32_t)strlen(mine)));
    TRY(rm_kv_get(config->store, key, first, sizeof first - 1, &bytes, config->timeout_ms));
    snprintf(key, sizeof key, "%s/places", config->name);
    TRY(rm_kv_add(config->store, key, strcmp(mine, first) ? 1000001 : 1, &sum));
    char all[RM_KV_KEY_BYTES];
    snprintf(all, sizeof all, "%s/all places", config->name);
    if (sum % 1000000 == config->size) TRY(rm_kv_set(config->store, all, &sum, sizeof sum));
    TRY(rm_kv_get(config->store, all, &sum, sizeof sum, &bytes, config->timeout_ms));
    *one_host = sum < 1000000;
    return REMAT_OK;
}

static bool under_mpi(void) { return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK"); }

remat_status rm_group_choose(const rm_group_config *config, const rm_group_api **out) {
    bool one_host = true;
    if (config->engine && strcmp(config->engine, "auto")) return find(config->engine, out);
    if (config->gpu) return find("nccl", out); /* no other engine reads a GPU's memory */
    if (config->size > 1) {
        if (!config->store && under_mpi()) return find("mpi", out);
        REQUIRE(config->store, INVALID, "%d ranks without a way to meet: --init-method is missing", config->size);
        TRY(on_one_host(config, &one_host));
    }
    if (!one_host && under_mpi() && !find("mpi", out)) return REMAT_OK;
    return find(one_host ? "local" : "gloo", out);
}

/* group_auto.c: the list of engines, and the choice among them. */
#include "dist/group/group_auto.h"

#include <stdlib.h>
#include <string.h>

#include "dist/group/module.h"
#include "dist/store/arrivals.h"

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

const char *const rm_engine_names[] = {"local", "mpi", "gloo", "nccl", NULL};

remat_status rm_engine_library(const char *name, char *text, size_t bytes) {
    const rm_group_api *api;
    TRY(find(name, &api));
    return api->library(text, bytes);
}

static bool under_mpi(void) { return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK"); }

/* Where somebody listens, ranks are awaited here whatever the engine: it would do so in silence. */
remat_status rm_group_choose(const rm_group_config *config, const rm_group_api **out) {
    bool one_host = true, automatic = !config->engine || !strcmp(config->engine, "auto");
    bool chooses = automatic && !config->gpu;
    if (!automatic) TRY(find(config->engine, out));
    if (config->size > 1 && config->store && (chooses || config->say)) TRY(rm_wait_for_ranks(config, &one_host));
    if (!automatic) return REMAT_OK;
    if (config->gpu) return find("nccl", out); /* no other engine reads a GPU's memory */
    if (config->size > 1 && !config->store && under_mpi()) return find("mpi", out);
    REQUIRE(config->size == 1 || config->store, INVALID, "%d ranks without a way to meet: --init-method is missing",
            config->size);
    if (!one_host && under_mpi() && !find("mpi", out)) return REMAT_OK;
    return find(one_host ? "local" : "gloo", out);
}

/* group_auto.c: the list of engines, and the choice of one. */
#include "dist/group/group_auto.h"

#include <stdlib.h>
#include <string.h>

#include "dist/group/module.h"
#include "dist/group/arrivals.h"

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
        FAIL(MISSING, "this Remat was built without MPI; install libopenmpi-dev (or MPICH) and rebuild it");
    }
    if (!strcmp(name, "gloo")) {
#ifdef REMAT_HAVE_GLOO
        return rm_module_open(name, out);
#endif
        FAIL(MISSING, "this Remat was built without Gloo; install libgloo-dev and a C++ compiler, and rebuild it");
    }
    if (!strcmp(name, "nccl"))
        FAIL(MISSING, "this Remat was built without NCCL; install it with CUDA and rebuild Remat, or use local, mpi or "
                      "gloo for ranks without GPUs");
    FAIL(INVALID, "there is no engine '%s'; use auto, local, mpi, gloo or nccl", name);
}

const char *const rm_engine_names[] = {"local", "mpi", "gloo", "nccl", NULL};

remat_status rm_engine_library(const char *name, char *text, size_t bytes) {
    const rm_group_api *api;
    TRY(find(name, &api));
    return api->library(text, bytes);
}

const char *rm_engine_reason(const char *wanted, const char *engine) {
    if (strcmp(wanted, "auto")) return "as requested";
    if (!strcmp(engine, "local")) return "chosen by auto, because all ranks are on one host";
    if (!strcmp(engine, "mpi")) return "chosen by auto, because MPI's launcher started the ranks, on several hosts";
    return "chosen by auto, because the ranks are on several hosts and MPI's launcher did not start all of them";
}

static bool under_mpi(void) { return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK"); }

/* Fills in the engines of this build that reach other hosts. MPI opens a group of some ranks if it connects all. */
static void arrive(const char *engine, const char *part_of, rm_arrival *out) {
    bool mpi = false, gloo = false;
    (void)part_of; /* without MPI */
#ifdef REMAT_HAVE_MPI
    mpi = under_mpi() && (!part_of || !strcmp(part_of, "mpi")) && rm_module_is_there("mpi");
#endif
#ifdef REMAT_HAVE_GLOO
    gloo = rm_module_is_there("gloo");
#endif
    rm_arrival_fill(engine, mpi, gloo, out);
}

static remat_status choose_with_the_others(const rm_group_config *config, const char *wanted,
                                           const rm_group_api **out) {
    rm_arrival mine;
    char engine[16];
    arrive(wanted, config->part_of, &mine);
    TRY(rm_wait_for_ranks(config, &mine, engine));
    return find(engine, out);
}

/* Only NCCL can access GPU memory. */
remat_status rm_group_choose(const rm_group_config *config, const rm_group_api **out) {
    const char *wanted = config->engine ? config->engine : "auto";
    if (!strcmp(wanted, "auto") && config->gpu) wanted = "nccl";
    if (strcmp(wanted, "auto")) TRY(find(wanted, out));
    if (config->size > 1 && config->store) return choose_with_the_others(config, wanted, out);
    if (strcmp(wanted, "auto")) return REMAT_OK;
    if (config->size > 1 && under_mpi()) return find("mpi", out);
    REQUIRE(config->size == 1, INVALID, "%d ranks cannot find each other; set {init_method}", config->size);
    return find("local", out);
}

/* pipe.c: see pipe.h. */
#include "dist/group/pipe.h"

#include <stdio.h>
#include <string.h>

#include "memory/host.h"

struct rm_pipe {
    rm_group *group;
    remat_pipeline table;
};

static remat_status send_to(void *context, int to, const void *data, uint64_t bytes) {
    return rm_group_send(((rm_pipe *)context)->group, to, data, bytes);
}
static remat_status receive_from(void *context, int from, void *data, uint64_t bytes) {
    return rm_group_receive(((rm_pipe *)context)->group, from, data, bytes);
}

/* A group of some of the world's ranks, which meet in its store. */
static remat_status open_part(rm_group *world, const char *engine, const char *kind, int32_t number, int32_t rank,
                              int32_t size, int64_t timeout_ms, rm_group **out) {
    char name[32];
    snprintf(name, sizeof name, "%s%d", kind, number);
    rm_group_config config = {.engine = engine,
                              .rank = rank,
                              .size = size,
                              .store = rm_group_store(world),
                              .name = name,
                              .timeout_ms = timeout_ms};
    return rm_group_open(&config, out);
}

remat_status rm_pipe_open(rm_group *world, int32_t ranks, int64_t timeout_ms, rm_pipe **out, rm_group **replicas) {
    int32_t rank = rm_group_rank(world), size = rm_group_size(world);
    const char *engine = rm_group_engine(world);
    *out = NULL;
    *replicas = world;
    if (ranks == 1) return REMAT_OK;
    *replicas = NULL;
    REQUIRE(strcmp(engine, "mpi"), MISSING, "a pipeline divides the ranks, which the engine mpi cannot; use {backend}=local or gloo");
    rm_pipe *pipe = rm_calloc(1, sizeof *pipe);
    REQUIRE(pipe, MEMORY, "out of memory for a pipeline");
    *out = pipe;
    TRY(open_part(world, "local", "pipeline", rank / ranks, rank % ranks, ranks, timeout_ms, &pipe->group));
    pipe->table = (remat_pipeline){.struct_bytes = sizeof pipe->table,
                                   .rank = rank % ranks,
                                   .size = ranks,
                                   .context = pipe,
                                   .send = send_to,
                                   .receive = receive_from};
    if (size == ranks) return REMAT_OK;
    return open_part(world, engine, "replicas", rank % ranks, rank / ranks, size / ranks, timeout_ms, replicas);
}

void rm_pipe_close(rm_pipe *pipe) {
    if (!pipe) return;
    rm_group_close(pipe->group);
    rm_free(pipe);
}

const remat_pipeline *rm_pipe_table(const rm_pipe *pipe) { return &pipe->table; }
rm_group *rm_pipe_group(const rm_pipe *pipe) { return pipe->group; }

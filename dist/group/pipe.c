/* pipe.c: see pipe.h. */
#include "dist/group/pipe.h"

#include <stdio.h>
#include <string.h>

#include "memory/host.h"

struct rm_pipe {
    rm_group *group;
    rm_group *gpus; /* the same ranks, over NCCL; NULL: the sessions are not on GPUs */
    remat_pipeline table;
};

static remat_status send_to(void *context, int to, const void *data, uint64_t bytes) {
    return rm_group_send(((rm_pipe *)context)->group, to, data, bytes);
}
static remat_status receive_from(void *context, int from, void *data, uint64_t bytes) {
    return rm_group_receive(((rm_pipe *)context)->group, from, data, bytes);
}

static remat_status give_send(void *context, void *stream, int to, const void *data, uint64_t bytes) {
    return rm_group_give_send(((rm_pipe *)context)->gpus, stream, to, data, bytes);
}
static remat_status give_receive(void *context, void *stream, int from, void *data, uint64_t bytes) {
    return rm_group_give_receive(((rm_pipe *)context)->gpus, stream, from, data, bytes);
}

/* A stream that waits for a rank is not freed by the hosts' group, which may be the one that notices a loss. */
static remat_status poll_streams(void *context) {
    rm_pipe *pipe = context;
    remat_status status = rm_group_poll(pipe->group);
    if (!status) return rm_group_attend(pipe->gpus);
    rm_reason why = rm_reason_kept();
    if (!rm_group_poll(pipe->gpus)) rm_group_abort(pipe->gpus, why.text);
    (void)rm_group_attend(pipe->gpus);
    return rm_reason_again(status, &why);
}

/* A group of some of the world's ranks, which meet in its store: those from `first` on, `stride` apart. */
static remat_status open_part(rm_group *world, rm_group_config config, const char *kind, int32_t first, int32_t stride,
                              rm_group **out) {
    char name[32];
    snprintf(name, sizeof name, "%s%d", kind, first);
    config.store = rm_group_store(world);
    config.name = name;
    config.rank = (rm_group_rank(world) - first) / stride;
    config.first = first;
    config.stride = stride;
    return rm_group_open(&config, out);
}

remat_status rm_pipe_open(rm_group *world, int32_t ranks, const rm_group_config *like, rm_pipe **out,
                          rm_group **replicas) {
    int32_t rank = rm_group_rank(world), size = rm_group_size(world);
    const char *engine = rm_group_engine(world);
    *out = NULL;
    *replicas = world;
    if (ranks == 1) return REMAT_OK;
    *replicas = NULL;
    rm_pipe *pipe = rm_calloc(1, sizeof *pipe);
    REQUIRE(pipe, MEMORY, "out of memory for a pipeline");
    *out = pipe;
    rm_group_config part = *like;
    part.engine = "auto"; /* local, if they are on one host */
    part.part_of = engine;
    part.size = ranks;
    TRY(open_part(world, part, "pipeline", rank / ranks * ranks, 1, &pipe->group));
    pipe->table = (remat_pipeline){.struct_bytes = sizeof pipe->table,
                                   .rank = rank % ranks,
                                   .size = ranks,
                                   .context = pipe,
                                   .send = send_to,
                                   .receive = receive_from};
    if (size == ranks) return REMAT_OK;
    part.engine = engine;
    part.size = size / ranks;
    return open_part(world, part, "replicas", rank % ranks, ranks, replicas);
}

remat_status rm_pipe_open_gpus(rm_pipe *pipe, rm_group_config like, rm_kv *store) {
    char name[40];
    int32_t first = rm_group_first(pipe->group);
    snprintf(name, sizeof name, "pipeline%d on GPUs", first);
    like.engine = "nccl";
    like.store = store;
    like.name = name;
    like.rank = pipe->table.rank;
    like.size = pipe->table.size;
    like.first = first;
    like.stride = 1;
    like.messages = true;
    TRY(rm_group_open(&like, &pipe->gpus));
    pipe->table.device = "cuda";
    pipe->table.device_bytes = rm_group_device_bytes(pipe->gpus);
    pipe->table.give_send = give_send;
    pipe->table.give_receive = give_receive;
    pipe->table.poll = poll_streams;
    return REMAT_OK;
}

void rm_pipe_close(rm_pipe *pipe) {
    if (!pipe) return;
    rm_group_close(pipe->gpus);
    rm_group_close(pipe->group);
    rm_free(pipe);
}

const remat_pipeline *rm_pipe_table(const rm_pipe *pipe) { return &pipe->table; }
rm_group *rm_pipe_group(const rm_pipe *pipe) { return pipe->group; }

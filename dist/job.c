/* job.c: how a program joins a job of several ranks: remat_join and related functions (engine/remat.h). It combines
 * rendezvous, store, group and ddp, each with its defaults. `remat train` needs more options and does this in
 * train/ranks/ranks.c. Main entry: remat_join. */
#include <string.h>

#include "dist/ddp/ddp.h"
#include "dist/group/pipe.h"
#include "dist/launch/world.h"
#include "dist/store/rendezvous.h"
#include "engine/abi.h"
#include "memory/host.h"

struct remat_job {
    int32_t rank, size; /* of the replicas */
    rm_kv *store;       /* NULL: single rank, or the group has its own */
    rm_group *world;    /* NULL: single rank */
    rm_group *group;    /* of the replicas: the world, without a pipeline; NULL: one replica */
    rm_pipe *pipe;      /* NULL: no pipeline */
    rm_ddp *ddp;        /* NULL: single rank, or not opened yet */
};

static remat_status compress_of(const char *name, rm_compress *out) {
    static const char *const names[] = {"none", "fp16", "bf16"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name ? name : "none", names[i])) {
            *out = (rm_compress)i;
            return REMAT_OK;
        }
    FAIL(INVALID, "grad_compress is \"%s\"; it must be none, fp16 or bf16", name);
}

static remat_status find_place(const remat_job_config *c, rm_rendezvous *where) {
    rm_rendezvous_flags flags = {.init_method = c->init_method, .world_size = -1, .rank = -1, .local_rank = -1};
    if (c->world_size) {
        flags.world_size = c->world_size;
        flags.rank = c->rank;
    }
    REQUIRE(c->world_size > 0 || (c->world_size == 0 && c->rank == 0), INVALID,
            "rank is %d and world_size is %d; set both, or leave both 0 if a launcher's variables give them", c->rank,
            c->world_size);
    return rm_rendezvous_resolve(&flags, rm_environment_of_process, NULL, where);
}

static remat_status meet(remat_job *job, const remat_job_config *c, const rm_rendezvous *where, int ranks) {
    REQUIRE(!c->backend || strcmp(c->backend, "nccl"), INVALID,
            "the backend nccl is for GPUs, which remat_join does not support yet; use auto, local, mpi or gloo");
    const int64_t join_ms = c->join_timeout_ms ? c->join_timeout_ms : c->timeout_ms;
    TRY(rm_rendezvous_store(where, join_ms, NULL, NULL, &job->store));
    rm_group_config group = {.engine = c->backend,
                             .rank = where->rank,
                             .size = where->size,
                             .store = job->store,
                             .timeout_ms = c->timeout_ms,
                             .join_ms = join_ms,
                             .join_name = c->join_timeout_ms ? "join_timeout_ms" : NULL,
                             .tag_name = rm_ddp_tag_name,
                             .context = &job->ddp,
                             .observer = c->observer};
    TRY(rm_group_open(&group, &job->world));
    return rm_pipe_open(job->world, ranks, &group, &job->pipe, &job->group);
}

static remat_status connect_sessions(remat_job *job, const remat_job_config *c, rm_compress compress) {
    rm_ddp_config ddp = {.group = job->group,
                         .first_bucket_bytes = c->first_bucket_bytes,
                         .bucket_bytes = c->bucket_bytes,
                         .compress = compress,
                         .deterministic_world = c->deterministic_world,
                         .shard_optimizer = c->shard_optimizer,
                         .fused_update = c->fused_update,
                         .rows = c->rows ? c->rows : 1};
    return rm_ddp_open(&ddp, &job->ddp);
}

static remat_status join(remat_job *job, const remat_job_config *c) {
    rm_rendezvous where;
    rm_compress compress = RM_COMPRESS_NONE;
    REQUIRE(c->rows >= 0, INVALID, "this rank's batch has %lld rows; 0 means as many as on every other rank",
            (long long)c->rows);
    REQUIRE(c->timeout_ms >= 0 && c->join_timeout_ms >= 0, INVALID,
            "timeout_ms is %lld and join_timeout_ms %lld; use 0 or more", (long long)c->timeout_ms,
            (long long)c->join_timeout_ms);
    TRY(compress_of(c->grad_compress, &compress));
    TRY(find_place(c, &where));
    int ranks = c->pipeline > 1 ? c->pipeline : 1;
    REQUIRE(c->pipeline >= 0 && where.size % ranks == 0, INVALID,
            "pipeline is %d, and there are %d ranks; use a number that divides them", c->pipeline, where.size);
    job->rank = where.rank / ranks;
    job->size = where.size / ranks;
    if (where.size == 1) return REMAT_OK;
    TRY(meet(job, c, &where, ranks));
    return job->group ? connect_sessions(job, c, compress) : REMAT_OK;
}

remat_status remat_join(const remat_job_config *config, remat_job **out) {
    remat_job_config ours;
    NEED(config, "a config");
    NEED(out, "a place for the job");
    TRY(rm_take(&ours, sizeof ours, config, "remat_job_config"));
    REQUIRE(
        !rm_world_exists(), INVALID,
        "remat_join does not support jobs whose number of ranks changes; give `remat launch` one number in --nnodes");
    remat_job *job = rm_calloc(1, sizeof *job);
    REQUIRE(job, MEMORY, "out of memory for a job");
    remat_status status = join(job, &ours);
    if (status)
        remat_leave(job);
    else
        *out = job;
    return status;
}

void remat_leave(remat_job *job) {
    if (!job) return;
    rm_ddp_close(job->ddp);
    if (job->group != job->world) rm_group_close(job->group);
    rm_pipe_close(job->pipe);
    rm_group_close(job->world);
    rm_kv_close(job->store);
    rm_free(job);
}

int remat_job_rank(const remat_job *job) { return job ? job->rank : 0; }
int remat_job_size(const remat_job *job) { return job ? job->size : 0; }
const remat_ranks *remat_job_ranks(const remat_job *job) { return job && job->ddp ? rm_ddp_ranks(job->ddp) : NULL; }

const remat_pipeline *remat_job_pipeline(const remat_job *job) {
    return job && job->pipe ? rm_pipe_table(job->pipe) : NULL;
}

remat_status remat_job_begin(remat_job *job, remat_session *session) {
    NEED(job, "a job");
    NEED(session, "a session");
    return job->ddp ? rm_ddp_broadcast(job->ddp, session) : REMAT_OK;
}

remat_status remat_job_share_buffers(remat_job *job, remat_session *session) {
    NEED(job, "a job");
    NEED(session, "a session");
    return job->ddp ? rm_ddp_broadcast_buffers(job->ddp, session) : REMAT_OK;
}

remat_status remat_job_sum(remat_job *job, double *values, int64_t count) {
    const remat_ranks *ranks = remat_job_ranks(job);
    NEED(job, "a job");
    NEED(values || !count, "numbers");
    return ranks ? ranks->sum(ranks->context, values, count) : REMAT_OK;
}

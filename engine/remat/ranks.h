/* ranks.h: data-parallel training: who the other ranks are, what a session asks of them, which samples a rank sees.
 * Part of remat.h. docs/distributed.md has the picture. */
#ifndef REMAT_RANKS_H
#define REMAT_RANKS_H

#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

struct remat_ranks;

/* ---- Jobs --------------------------------------------------------------------------------------- */

/* Joins the other ranks, in a process that `remat launch`, torchrun, srun or mpirun started (examples/06_two_ranks.c):
 *
 *     remat_job *job;
 *     remat_job_config job_config = {.struct_bytes = sizeof job_config};
 *     remat_join(&job_config, &job);
 *     config.ranks = remat_job_ranks(job);
 *     remat_session_create(graph, loss, &config, &session);
 *     remat_job_begin(job, session);           // checks network and settings; copies the parameters of rank 0
 *     ...                                      // each rank writes its own rows and calls remat_step
 *     remat_session_free(session);             // first: after remat_leave its steps are refused
 *     remat_leave(job);
 *
 * A program that was started without a launcher is a job of one rank, with the same code. If a rank fails it leaves, or
 * exits; the next call of the others returns PEER and names it. Calls marked "collective" must be made by all ranks. */
typedef struct remat_job remat_job;

typedef struct {
    size_t struct_bytes;       /* sizeof(remat_job_config) */
    int64_t rows;              /* of this rank's batch: its weight in the mean; 0: all ranks have as many */
    const char *backend;       /* "local" (one host), "mpi", "gloo"; NULL, "auto": chosen */
    const char *init_method;   /* where ranks meet: "env://", "tcp://HOST:PORT", "file:///PATH"; NULL: "env://" */
    int world_size, rank;      /* 0, 0: from the launcher's variables */
    int64_t timeout_ms;        /* for a rank that is alive but does not arrive; 0: ten minutes */
    const char *grad_compress; /* send gradients as "fp16" or "bf16"; NULL, "none": as they are */
    bool deterministic_world;  /* as in remat_config; set both or neither */
    bool shard_optimizer, fused_update;        /* as in remat_ranks */
    uint64_t first_bucket_bytes, bucket_bytes; /* as in remat_ranks */
    int pipeline;              /* ranks that share one network (remat_job_pipeline); 0: 1. The job then has
                                  world_size / pipeline replicas, for remat_job_rank and remat_job_size */
    int64_t join_timeout_ms; /* for ranks that remat_join waits for; 0: timeout_ms, or five minutes if that is 0 */
} remat_job_config;

/* Collective: returns when all ranks are there. INVALID, MISSING: the config cannot work, or this build lacks the
 * backend; IO, PEER: the ranks do not meet. */
remat_status remat_join(const remat_job_config *config, remat_job **out);
void remat_leave(REMAT_OPTIONAL remat_job *job); /* does not wait for other ranks */

int remat_job_rank(const remat_job *job);
int remat_job_size(const remat_job *job);
/* For remat_config.pipeline: rank world_rank % pipeline; NULL without a pipeline. Set `cut` in a copy. On one host. */
const struct remat_pipeline *remat_job_pipeline(const remat_job *job);
const struct remat_ranks *remat_job_ranks(const remat_job *job); /* for remat_config.ranks; NULL if there is one rank */

/* Collective: compares parameters (name, shape, type) and remat_settings_text, then copies rank 0's parameters and
 * buffers to every session. PEER on all ranks if two differ; the message names them and the first difference. */
remat_status remat_job_begin(remat_job *job, remat_session *session);
/* Collective: copies rank 0's buffers to every session. Each rank keeps running statistics of its own batches (of all,
 * for `sync` layers), and steps do not read them; share them before an evaluation that several ranks take part in. */
remat_status remat_job_share_buffers(remat_job *job, remat_session *session);
/* Collective: sums `count` numbers over ranks, in place; the same bits on all. */
remat_status remat_job_sum(remat_job *job, double *values, int64_t count);

/* ---- Samples ------------------------------------------------------------------------------------ */

/* Which samples a rank sees, in which order: PyTorch's DistributedSampler, index for index. `order` is a permutation of
 * 0 .. n-1 drawn from seed + epoch, or 0 .. n-1 itself. It is repeated from the start until all ranks have the same
 * number (or cut off, with drop_last). Rank r of W has order[r], order[r + W], order[r + 2 W], .. */
typedef struct remat_sampler remat_sampler;

typedef struct {
    size_t struct_bytes;    /* sizeof(remat_sampler_config) */
    int64_t n;              /* samples in the data set, 1 .. 2^32-1 */
    int64_t replicas, rank; /* remat_job_size, remat_job_rank */
    bool shuffle, drop_last;
    int64_t seed;
} remat_sampler_config;

/* Starts with epoch 0. MEMORY: it needs 4 bytes a sample. */
remat_status remat_sampler_create(const remat_sampler_config *config, remat_sampler **out);
void remat_sampler_free(REMAT_OPTIONAL remat_sampler *sampler);
void remat_sampler_set_epoch(remat_sampler *sampler, int64_t epoch); /* epoch >= 0; draws the order anew */
int64_t remat_sampler_count(const remat_sampler *sampler);           /* samples of this rank in an epoch; may be 0 */
int64_t remat_sampler_at(const remat_sampler *sampler, int64_t k);   /* the k-th sample of this rank, 0 <= k < count */

/* ---- What a session asks of its ranks ------------------------------------------------------------ */

/* Parameters, and in the same order their gradients, lie one after the other in the order in which the backward pass
 * finishes gradients (a property of the graph, the same for every plan). They are cut into buckets by PyTorch's rule: a
 * bucket is closed as soon as it holds its limit, first_bucket_bytes for the first, bucket_bytes for the others. A
 * bucket's count is a multiple of 16 * size floats; past its arrays it holds zeros; rank r owns the r-th of `size`
 * equal parts. Every rank asks for the same buckets in the same order. */
typedef struct {
    int32_t index;                 /* from 0 */
    float *parameters, *gradients; /* `count` of each, in the session's block (device memory on a GPU); NULL if nothing
                                      is allocated or an array is external. Parameters written here count from the next
                                      pass on */
    int64_t count;
    const char *first;     /* name of its first parameter */
    void *ready;           /* a cudaEvent_t that is reached when the GPU is done with it; NULL: it is done */
    uint64_t reserved[10]; /* zeros */
} remat_bucket;

/* All that a session knows of other ranks. remat_join fills it in; so does dist/ddp.
 *
 * Every slot returns a status, with its message recorded, and the session returns it. After a failure in the middle of
 * a step ranks are out of step: end the job. Slots are called by the thread that called the session, and only where the
 * comment says; sessions with plan_only or inference call none. agree, map, unmap, prepare and poll may be NULL; gather
 * and gathered are needed with shard_optimizer. */
typedef struct remat_ranks {
    size_t struct_bytes; /* sizeof(remat_ranks); set it anew in a copy of a library's table */
    void *context;
    int rank, size;
    uint64_t first_bucket_bytes, bucket_bytes; /* 0: 1 MiB, 25 MiB */
    double weight; /* this rank's share of the batch times `size`: 1 if all ranks have as many rows; 0: 1. Not used
                              if parts of a batch are weighted by what counts in them (remat_config.loss_mean) */
    bool shard_optimizer;  /* ZeRO stage 1: a rank keeps the optimizer state of its part of each bucket only */
    bool fused_update;     /* remat_step updates a bucket when it arrives, not after the last (without clipping) */
    const char *device;    /* whose memory the buckets lie in: "cuda"; NULL: the host's. The session's device */
    bool heeds_events;     /* reduce and gather accept buckets that a GPU is not done with, and touch one only after
                              `ready`; false: the session waits before it calls them */
    uint64_t device_bytes; /* device memory that collectives take beside the session: part of the budget */
    int wire_bytes; /* of a gradient on its way if it is converted: 2; 0: it is not. Counted in workspace_bytes, in
                              whole pages a bucket */

    /* In remat_session_create, once each, in this order. agree: `order` has the parameters' indices by when their
     * gradients are final, `used` 1 where the loss depends on one; rank 0's order and the maximum of `used` replace
     * them. map: whole pages of gradients (and, with shard_optimizer, of parameters), which may become other,
     * zero-filled memory in place. unmap: for each mapped address, before that memory is freed in remat_session_free,
     * or when create fails. prepare: for each bucket in order; allocates what `reduce` needs. */
    remat_status (*agree)(void *context, int32_t *order, uint8_t *used, int64_t n_parameters);
    remat_status (*map)(void *context, void *address, uint64_t bytes);
    void (*unmap)(void *context, void *address);
    remat_status (*prepare)(void *context, const remat_bucket *bucket);

    /* In the last micro step of remat_gradients, for each bucket in order. reduce: the gradients are final here (but
     * for heeds_events) and do not change until wait. wait: afterwards they are the mean over ranks, with
     * shard_optimizer in this rank's part only. */
    remat_status (*reduce)(void *context, const remat_bucket *bucket);
    remat_status (*wait)(void *context, const remat_bucket *bucket);

    /* In remat_update with shard_optimizer: this rank's part of the parameters is new; after `gathered` all parts are.
     */
    remat_status (*gather)(void *context, const remat_bucket *bucket);
    remat_status (*gathered)(void *context, const remat_bucket *bucket);

    /* Sums over ranks, in place, the same bits on all: what counts in the loss (before the last micro step's backward
     * pass, if targets are ignored), the loss (after the last bucket), norms of sharded arrays. With the loss every
     * rank tells its number of updates and its learning rate. If these differ, all ranks fail with PEER and a message
     * that names two of them: remat_step before anything is updated (but for fused_update), remat_gradients for the
     * update before. */
    remat_status (*sum)(void *context, double *values, int64_t count);
    /* Before each run of a stage: fails if a rank is gone. Must be cheap. */
    remat_status (*poll)(void *context);
} remat_ranks;

/* ---- Pipeline ------------------------------------------------------------------------------------ */

/* Model parallelism: the layers of one network on several ranks (docs/pipeline.md). All ranks create the session of
 * the same graph with the same config, write the same inputs, and call the same passes. A rank computes its own layers
 * only, and holds only their parameters, gradients, optimizer state and activations. Every rank follows the same plan;
 * where a value or a gradient crosses to another rank, one sends and the other receives, so that the tiles of time
 * overlap. Loss, gradients and parameters have the bits of one rank, for any number of ranks and any plan.
 *
 * Arrays of other ranks have count 0: remat_write ignores them, so that each rank can load a whole file; remat_read
 * refuses them. Losses and norms are the same on all ranks.
 *
 * send and receive move `bytes` bytes to or from another rank, in the order of the calls. They return a status, with
 * its message recorded. send may return before the other rank has received; both may block. Both are NULL with
 * plan_only. They are called by the thread that calls the session. */
typedef struct remat_pipeline {
    size_t struct_bytes; /* sizeof(remat_pipeline) */
    int rank, size;
    const char *cut; /* where the ranks after the first begin: size - 1 beginnings of parameter names, comma separated
                        ("weight_ih_l1": with the first layer that reads such a parameter). NULL: chosen so that the
                        slowest rank's predicted time is shortest */
    void *context;
    remat_status (*send)(void *context, int to, const void *data, uint64_t bytes);
    remat_status (*receive)(void *context, int from, void *data, uint64_t bytes);
} remat_pipeline;

int64_t remat_bucket_count(const remat_session *session); /* also without other ranks; 0: no parameters */
remat_status remat_bucket_info(remat_session *session, int64_t index, remat_bucket *out);

/* What must be equal on all ranks, one setting a line ("momentum 0.9"): optimizer, micro steps, trained parameters,
 * updates made. Not in it: what a rank may choose (plan, threads, batch, seed). Free it with remat_text_free. NULL: out
 * of memory. */
char *remat_settings_text(const remat_session *session);

/* The batch of an update is cut into size * micro_steps shards. Call t of remat_gradients on rank r computes shard
 * r + size * j. This returns j: t, or with deterministic_world t with its log2(micro_steps) bits reversed, so that the
 * tree adds neighbouring calls first and few sums wait. Dropout is drawn by shard: shard 0 of a job of any size drops
 * what a session without ranks drops. */
int64_t remat_micro_shard(int64_t t, int64_t micro_steps, bool deterministic_world);

#ifdef __cplusplus
}
#endif
#endif

/* ranks.h: training on several ranks: how a process joins a job, which samples it sees, what a session asks of other
 * ranks. Part of remat.h. docs/distributed.md has a diagram. */
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
 * Started without a launcher, the same code is a job of one rank. A rank that fails calls remat_leave or exits; the
 * next call of the others returns PEER and names it. Calls marked "collective" must be made by all ranks. */
typedef struct remat_job remat_job;

typedef struct {
    size_t struct_bytes;       /* sizeof(remat_job_config) */
    int64_t rows;              /* rows of this rank's batch: its weight in the mean; 0: all ranks have equally many */
    const char *backend;       /* "local" (one host), "mpi", "gloo"; NULL, "auto": the best that is available */
    const char *init_method;   /* where ranks meet: "env://", "tcp://HOST:PORT", "file:///PATH"; NULL: "env://" */
    int world_size, rank;      /* 0, 0: from the launcher's variables */
    int64_t timeout_ms;        /* longest wait for a rank that is alive but does not arrive; 0: ten minutes */
    const char *grad_compress; /* send gradients as "fp16" or "bf16"; NULL, "none": as fp32 */
    bool deterministic_world;  /* as in remat_config; set both or neither */
    bool shard_optimizer, fused_update;        /* as in remat_ranks */
    uint64_t first_bucket_bytes, bucket_bytes; /* as in remat_ranks */
    int pipeline;              /* ranks that share one network (remat_job_pipeline); 0: 1. remat_job_size is then the
                                  number of replicas, world_size / pipeline, and remat_job_rank is that of a replica */
    int64_t join_timeout_ms; /* longest wait in remat_join; 0: timeout_ms, or five minutes if that is 0 */
    const struct remat_observer *observer; /* gets collectives, messages and waits (observe.h); copied. NULL: none */
} remat_job_config;

/* Collective: returns when all ranks have joined. INVALID: the config cannot work. MISSING: this build lacks the
 * backend. IO, PEER: some ranks did not join. */
remat_status remat_join(const remat_job_config *config, remat_job **out);
void remat_leave(REMAT_OPTIONAL remat_job *job); /* does not wait for other ranks */

int remat_job_rank(const remat_job *job);
int remat_job_size(const remat_job *job);
/* For remat_config.pipeline; NULL without a pipeline. Its rank is world_rank % pipeline. To set `cut`, change a
 * copy. */
const struct remat_pipeline *remat_job_pipeline(const remat_job *job);
const struct remat_ranks *remat_job_ranks(const remat_job *job); /* for remat_config.ranks; NULL if there is one rank */

/* Collective: compares parameters (name, shape, type) and remat_settings_text, then copies rank 0's parameters and
 * buffers to every session. PEER on all ranks if two differ; the message names them and the first difference. */
remat_status remat_job_begin(remat_job *job, remat_session *session);
/* Collective: copies rank 0's buffers to every session. Each rank keeps running statistics of its own batches (`sync`
 * layers: of all batches). Call this before an evaluation that several ranks take part in. */
remat_status remat_job_share_buffers(remat_job *job, remat_session *session);
/* Collective: sums `count` numbers over ranks, in place; the same bits on all. */
remat_status remat_job_sum(remat_job *job, double *values, int64_t count);

/* ---- Samples ------------------------------------------------------------------------------------ */

/* Which samples a rank sees, in which order: PyTorch's DistributedSampler, index for index. `order` is a permutation of
 * 0 .. n-1 drawn from seed + epoch, or without `shuffle` 0 .. n-1 itself. If ranks would get different numbers of
 * samples, it continues with its own start (with drop_last it is cut off). Rank r of W has order[r], order[r + W],
 * order[r + 2 W], .. */
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
void remat_sampler_set_epoch(remat_sampler *sampler, int64_t epoch); /* epoch >= 0; draws a new order */
int64_t remat_sampler_count(const remat_sampler *sampler);           /* samples of this rank in an epoch; may be 0 */
int64_t remat_sampler_at(const remat_sampler *sampler, int64_t k);   /* the k-th sample of this rank, 0 <= k < count */

/* ---- What a session asks of its ranks ------------------------------------------------------------ */

/* A session stores parameters one after the other, in the order in which the backward pass finishes their gradients.
 * That order is a property of the graph, the same for every plan. Gradients are stored in the same order. Both are cut
 * into buckets by PyTorch's rule: a bucket is full as soon as it has reached its limit, first_bucket_bytes for the
 * first and bucket_bytes for the others. A bucket's count is a multiple of 16 * size floats, padded with zeros; rank r
 * owns the r-th of `size` equal parts. All ranks process the same buckets in the same order. */
typedef struct {
    int32_t index;                 /* from 0 */
    float *parameters, *gradients; /* `count` of each, in the session's memory (device memory on a GPU); NULL if nothing
                                      is allocated or an array is external. Parameters written here take effect in the
                                      next pass */
    int64_t count;
    const char *first;     /* name of its first parameter */
    void *ready;           /* a cudaEvent_t that completes when the GPU has finished the bucket; NULL: it is finished */
    uint64_t reserved[10]; /* zeros */
} remat_bucket;

/* All that a session knows about other ranks. remat_join fills it in; so does dist/ddp.
 *
 * Every callback records a message if it fails and returns a status, which the session returns. After a failure in the
 * middle of a step, ranks have made different calls: end the job. Callbacks run in the thread that called the session,
 * only at the points that their comments name. Sessions with plan_only or inference call none. agree, map, unmap,
 * prepare and poll may be NULL; shard_optimizer requires gather and gathered. */
typedef struct remat_ranks {
    size_t struct_bytes; /* sizeof(remat_ranks); also set it in a copy of a library's table */
    void *context;
    int rank, size;
    uint64_t first_bucket_bytes, bucket_bytes; /* 0: 1 MiB, 25 MiB */
    double weight; /* this rank's share of the batch times `size`: 1 if all ranks have equally many rows; 0: 1. Ignored
                      if parts of a batch are weighted by their targets that count (remat_config.loss_mean) */
    bool shard_optimizer;  /* ZeRO stage 1: a rank keeps the optimizer state of its part of each bucket only */
    bool fused_update;     /* remat_step updates each bucket when it arrives, not after the last (without clipping) */
    const char *device;    /* the session's device, whose memory the buckets are in: "cuda"; NULL: host memory */
    bool heeds_events;     /* reduce and gather accept buckets that a GPU has not finished, and read one only after its
                              `ready` event; false: the session waits before it calls them */
    uint64_t device_bytes; /* device memory that collectives use outside the session: part of the budget */
    int wire_bytes; /* bytes of a gradient that is converted before it is sent: 2; 0: not converted. The copies count in
                       workspace_bytes, in whole pages a bucket */

    /* Called in remat_session_create, once each, in this order. agree: `order` has the indices of parameters in the
     * order in which their gradients become final; `used` is 1 for each parameter that the loss depends on. The
     * callback replaces them by rank 0's order and by the maximum of `used` over ranks. map: gets whole pages of
     * gradients (and, with shard_optimizer, of parameters) and may map other, zero-filled memory to their addresses.
     * unmap: for each mapped address, before its memory is freed in remat_session_free or when create fails. prepare:
     * for each bucket in order; allocates the memory that `reduce` needs. */
    remat_status (*agree)(void *context, int32_t *order, uint8_t *used, int64_t n_parameters);
    remat_status (*map)(void *context, void *address, uint64_t bytes);
    void (*unmap)(void *context, void *address);
    remat_status (*prepare)(void *context, const remat_bucket *bucket);

    /* Called in the last micro step of remat_gradients, for each bucket in order. reduce: starts; the gradients are
     * final (with heeds_events: after `ready`) and do not change before wait. wait: when it returns, the gradients are
     * the mean over ranks (with shard_optimizer only this rank's part). */
    remat_status (*reduce)(void *context, const remat_bucket *bucket);
    remat_status (*wait)(void *context, const remat_bucket *bucket);

    /* Called in remat_update with shard_optimizer. gather: this rank has updated its part of the parameters. gathered:
     * when it returns, the bucket has the parts of all ranks. */
    remat_status (*gather)(void *context, const remat_bucket *bucket);
    remat_status (*gathered)(void *context, const remat_bucket *bucket);

    /* Sums over ranks, in place, the same bits on all: numbers of targets that count (before the last micro step's
     * backward pass, if targets are ignored), the loss (after the last bucket), norms of sharded arrays. With the loss
     * each rank sends its number of updates and its learning rate. If these differ, all ranks fail with PEER and a
     * message that names two of them. remat_step then fails before it updates anything (except with fused_update);
     * remat_gradients fails for the update before it. */
    remat_status (*sum)(void *context, double *values, int64_t count);
    /* Before each run of a stage: fails if a rank is gone. Must be cheap. */
    remat_status (*poll)(void *context);
} remat_ranks;

/* ---- Pipeline ------------------------------------------------------------------------------------ */

/* Model parallelism: the layers of one network on several ranks (docs/pipeline.md). All ranks create a session of the
 * same graph with the same config, write the same inputs, and call the same passes. A rank computes its own layers
 * only, and holds only their parameters, gradients, optimizer state and activations. Every rank follows the same plan.
 * Where a layer's result or gradient is needed on another rank, one sends and the other receives; ranks work on
 * different tiles at the same time. Loss, gradients and parameters have the bits of a single rank, for any number of
 * ranks and any plan.
 *
 * Arrays of other ranks have count 0: remat_write ignores them, so that each rank can load a whole file; remat_read
 * refuses them. Losses and norms are the same on all ranks.
 *
 * send and receive move `bytes` bytes of host memory to or from another rank, in the order of the calls. They return a
 * status, with its message recorded. send may return before the other rank has received; both may block. Both are NULL
 * with plan_only. They are called by the thread that calls the session, also in remat_session_create if `cut` is NULL.
 *
 * A session on a GPU sends its layers' results and gradients by give_send and give_receive, and uses send and receive for
 * losses, norms and arrays that the program reads. */
typedef struct remat_pipeline {
    size_t struct_bytes; /* sizeof(remat_pipeline) */
    int rank, size;
    const char *cut; /* size - 1 prefixes of parameter names, comma separated: each rank after the first starts with the
                        first layer that reads such a parameter ("weight_ih_l1"). NULL: chosen to minimise the slowest
                        rank's time (measured if config.calibration is set), of cuts with which all ranks fit the budget */
    void *context;
    remat_status (*send)(void *context, int to, const void *data, uint64_t bytes);
    remat_status (*receive)(void *context, int from, void *data, uint64_t bytes);

    /* For sessions on a GPU; NULL and 0 for others. give_send and give_receive give a message in GPU memory to `stream`, a
     * cudaStream_t, and return without waiting for the other rank. The stream may wait for it: a message is sent or
     * received after all earlier work of the stream, and before all later work. poll is called while the host waits for
     * the stream. It fails if a message cannot be exchanged, and then the stream continues without it. */
    const char *device;    /* whose memory they take: "cuda" */
    uint64_t device_bytes; /* device memory that messages use outside the session: part of the budget */
    remat_status (*give_send)(void *context, void *stream, int to, const void *data, uint64_t bytes);
    remat_status (*give_receive)(void *context, void *stream, int from, void *data, uint64_t bytes);
    remat_status (*poll)(void *context);
} remat_pipeline;

int64_t remat_bucket_count(const remat_session *session); /* works without other ranks, too; 0: no parameters */
remat_status remat_bucket_info(remat_session *session, int64_t index, remat_bucket *out);

/* The settings that must be equal on all ranks, one a line ("momentum 0.9"): optimizer, micro steps, trained
 * parameters, number of updates made. Settings that each rank may choose are left out: plan, threads, batch, seed.
 * Free the text with remat_text_free. NULL: out of memory. */
char *remat_settings_text(const remat_session *session);

/* The batch of an update is cut into size * micro_steps shards. Call t of remat_gradients on rank r computes shard
 * r + size * j. This function returns j. It is t; with deterministic_world it is t with its log2(micro_steps) bits
 * reversed, so that the tree can add the sums of neighbouring calls at once and few sums are kept. Dropout masks are a
 * function of the shard: shard 0 of a job of any size has the masks of a session without ranks. */
int64_t remat_micro_shard(int64_t t, int64_t micro_steps, bool deterministic_world);

#ifdef __cplusplus
}
#endif
#endif

/* group.h: ranks that compute on buffers together. One small table of functions (rm_group_api) has an implementation for
 * each way of reaching the other ranks; the functions rm_group_* in front of it are what DDP calls. Buffers and ranks
 * only: nothing here knows a graph or a plan.
 *
 *   local  ranks of one host, over shared memory: buffers from rm_group_alloc are reduced where they lie
 *   mpi    Open MPI or MPICH                      gloo   Debian's libgloo, over TCP
 *   nccl   NVIDIA's NCCL, between GPUs: every buffer lies on this rank's GPU, and what fills `in` is over before the call,
 *          or when `after` is reached
 *
 * Every rank opens the group and then issues the same collectives in the same order. That is checked: each collective
 * carries a fingerprint (its number, kind, type, count, tag), and if two ranks disagree, that same collective fails on
 * ALL ranks with PEER and a sentence naming two ranks and what differs. There are no wrong sums.
 *
 * What a collective does, with W ranks and `count` elements:
 *
 *   all_reduce       in (count)     out (count)     the sum over ranks, on every rank; in == out allowed
 *   broadcast        -              out (count)     the root's out, on every rank
 *   all_gather       in (count)     out (W, count)  in may be out's own row
 *   reduce_scatter   in (W, count)  out (count)     row r of the sum goes to rank r; out may be in's own row
 *   barrier          -              -               returns when every rank has come
 *
 * Other overlaps of in and out are not allowed. Sums: RM_SUM is x_0 + x_1 + ...; RM_MEAN (f32, f16, bf16) is the sum of
 * fl(x_r * fl32(1/W)), fl being the type's rounding, which is what averaging gradients means elsewhere too. On `local` the
 * order is that of ranks, so bits depend on nothing but the inputs; mpi and gloo choose their own order for f32 and f64.
 * Every rank always gets the same bits. Integers wrap around. RM_TREE (f32, f64; W a power of two) is one order on every
 * engine: with t(r) = x_r, and w = W, halve w and let t(r) = t(r) + t(r + w) for all r < w, until t(0) is the sum. So W
 * ranks that each hold such a sum of their K shards (shard r + W j is the j-th of rank r) get the bits that W K ranks with
 * a shard each would. Sums of f16 and bf16 are made in f32, in the order of ranks on every engine but nccl, and rounded to
 * nearest even once, at the end; a NaN becomes the format's quiet one. nccl sums in an order of its own, rounds 16-bit sums
 * at every step, and takes a mean's 1/W in the type of the data.
 *
 * Queue. rm_group_issue hands a collective over and returns a ticket at once; a thread of the group runs them in the order
 * of issue. in and out belong to the group until rm_group_wait on the ticket (or a later one) has returned. rm_group_run
 * does both, in the calling thread when nothing is queued. One thread at a time may call a group; poll, notice and
 * abort may be called by any thread at any time.
 *
 * Failure. The first failure is final: every later call returns it again. Statuses: PEER (a rank died, hangs, left, or
 * disagrees: the sentence names rank, host and what it was doing), INVALID (the arguments; nothing was sent, the group
 * goes on), MEMORY, IO. */
#ifndef RM_GROUP_H
#define RM_GROUP_H

#include "dist/store/store.h"
#include "engine/status.h"

typedef enum { RM_WIRE_F32, RM_WIRE_I32, RM_WIRE_U8, RM_WIRE_F64, RM_WIRE_F16, RM_WIRE_BF16, RM_WIRES } rm_wire;
typedef enum { RM_BARRIER, RM_ALL_REDUCE, RM_BROADCAST, RM_ALL_GATHER, RM_REDUCE_SCATTER, RM_KINDS } rm_kind;
typedef enum { RM_SUM, RM_MEAN, RM_TREE, RM_REDUCTIONS } rm_reduction;

typedef struct {
    rm_kind kind;
    rm_wire wire;
    rm_reduction reduction; /* of the two that reduce */
    int32_t root;           /* of a broadcast */
    uint32_t tag;           /* the caller's name for it, e.g. the bucket: part of the fingerprint */
    int64_t count;          /* elements, as above; 0 is allowed */
    const void *in;
    void *out;
    void
        *after; /* nccl: a cudaEvent_t of this rank's GPU, recorded, and there until the collective has been waited for:
                    nothing touches in and out before it is reached, which may be any time from now; NULL: it is */
} rm_collective;

typedef struct rm_joining rm_joining; /* joining.h */

typedef struct {
    const char *engine; /* "auto", "local", "mpi", "gloo", "nccl"; NULL: auto */
    int32_t rank, size;
    rm_kv *store; /* borrowed until the group is closed. NULL: only for mpi, which then makes one, or when size is 1 */
    const char *name;   /* tells several groups over one store apart; NULL: "world" */
    int64_t timeout_ms; /* for a rank that lives but does not come; 0: ten minutes */
    int64_t join_ms; /* for ranks that do not come, or not on, while the group opens; 0: timeout_ms, or five minutes */
    int64_t silence_ms; /* for a rank that gives no sign of life; 0: ten seconds */
    const char *join_name,
        *silence_name;    /* what these two are called, for sentences: "--join-timeout=300"; NULL: milliseconds */
    int32_t gpu;          /* 1 + CUDA's number of the GPU that buffers lie on, for nccl; 0: they are host memory */
    uint64_t arena_bytes; /* local: the most this rank can rm_group_alloc. Address space, not memory; 0: 16 GiB */
    /* The words for a tag in a sentence, e.g. "bucket 3, which begins with lstm.weight_hh_l0"; NULL: its number. */
    const char *(*tag_name)(void *context, uint32_t tag);
    /* While the group opens: what people should know, "waiting for ranks 1, 3-7 of 8 since 2 s; up to 300 s", "has refused rank 1 of 2
     * on HOST ...". Mostly on rank 0; from a thread of its own. NULL: nobody listens. */
    void (*say)(void *context, const char *sentence);
    /* Opening has failed, and a library (MPI) does not let go of the thread that opens: the same thread asks. NULL: it stays there. */
    void (*stuck)(void *context, const char *sentence);
    void *context;
    rm_joining *joining; /* rm_group_open's, for engines, and until the group is closed */
} rm_group_config;

typedef struct rm_group rm_group;

/* Collective: returns when all ranks are there. MISSING: this build has no such engine. */
remat_status rm_group_open(const rm_group_config *config, rm_group **out);
void rm_group_close(rm_group *group); /* NULL allowed; finishes what is queued, waits for nobody else */

int32_t rm_group_rank(const rm_group *group);
int32_t rm_group_size(const rm_group *group);
const char *rm_group_engine(const rm_group *group); /* "local", ... */
/* The config's, or the one that the engine has made, which goes with the group. NULL: size 1. */
rm_kv *rm_group_store(const rm_group *group);

/* A zero-filled buffer of this rank, aligned to a page (nccl: memory of the GPU, aligned to 256 bytes), that collectives
 * work on without copying it where the engine can. Not collective. Freed by rm_group_free or with the group. NULL: no
 * memory, with a sentence. */
void *rm_group_alloc(rm_group *group, uint64_t bytes);
void rm_group_free(rm_group *group, void *buffer); /* NULL allowed */

/* Makes whole pages of the caller's memory, which must be anonymous and private, as good as those of rm_group_alloc, in
 * place: on `local` they become pages of the memory that ranks share, zero-filled; elsewhere nothing happens but the zeros
 * (to nccl it stays host memory, which its collectives refuse). Not collective. Before the memory goes, or the
 * group: rm_group_unmap, which leaves plain zero pages there. */
remat_status rm_group_map(rm_group *group, void *address, uint64_t bytes);
void rm_group_unmap(rm_group *group, void *address);

typedef uint64_t rm_ticket; /* the number of the collective, from 1 */

remat_status rm_group_issue(rm_group *group, const rm_collective *what, rm_ticket *ticket);
remat_status rm_group_wait(rm_group *group, rm_ticket ticket);
bool rm_group_done(rm_group *group, rm_ticket ticket);                 /* does not wait; true also after a failure */
remat_status rm_group_run(rm_group *group, const rm_collective *what); /* issue and wait */

/* Memory of the GPU that the group took when it was opened: NCCL's buffers and channels. 0: it works on the host's. */
uint64_t rm_group_device_bytes(const rm_group *group);

/* For how long the group's thread has been busy with collectives so far, waiting for other ranks, and for `after`, included. */
uint64_t rm_group_busy_ns(rm_group *group);

/* What happened behind the caller's back: OK, or the failure that the next call would return. Cheap enough for every
 * layer of a step: a rank that computes while another dies need not wait for its next collective to hear of it. */
remat_status rm_group_poll(rm_group *group);

/* True when a rank has given no sign of life for a second or more, or this rank waits for one that long; `text` names it.
 * Not a failure yet. */
bool rm_group_notice(rm_group *group, char *text, size_t bytes);

/* Ends the group on all ranks that can be reached: whoever waits, or comes, fails with PEER and `reason`. */
void rm_group_abort(rm_group *group, const char *reason);

/* ---- For whoever writes an engine --------------------------------------------------------------------------- */

/* `engine` is what open made. All calls of one engine are made by one thread at a time, but for poll, notice and abort,
 * which must be safe beside any other. group.c checks arguments, numbers calls, queues, and repeats the first failure, so
 * an engine does one collective at a time and needs no state for failing.
 *
 * An engine whose device has queues of its own (NCCL's streams) will fill two more slots, issue and wait, which then
 * replace group.c's thread; until there is one, there are no such slots. */
typedef struct {
    const char *name;
    /* What carries the data, with its version: "Open MPI v4.1.4". MISSING: it is not on this machine. May be called at any time. */
    remat_status (*library)(char *text, size_t bytes);
    remat_status (*open)(const rm_group_config *config, void **engine); /* all fields filled in */
    void (*close)(void *engine);
    void *(*alloc)(void *engine, uint64_t bytes); /* NULL slot: host memory will do */
    void (*free)(void *engine, void *buffer);
    remat_status (*map)(void *engine, void *address, uint64_t bytes); /* NULL slot: zeros are written there */
    void (*unmap)(void *engine, void *address);
    /* Does collective number `call` and returns when out is ready; compares fingerprints first (dist/group/fingerprint.h). */
    remat_status (*run)(void *engine, uint64_t call, const rm_collective *what);
    uint64_t (*device_bytes)(const void *engine);           /* NULL slot: 0 */
    remat_status (*poll)(void *engine);                     /* NULL slot: OK */
    bool (*notice)(void *engine, char *text, size_t bytes); /* NULL slot: never */
    void (*abort)(void *engine, const char *reason);        /* NULL slot: this rank only */
    rm_kv *(*store)(void *engine);                          /* NULL slot: the config's */
} rm_group_api;

extern const rm_group_api rm_group_local; /* mpi and gloo come in files of their own: dist/group/module.h */
extern const rm_group_api rm_group_nccl;  /* where REMAT_HAVE_NCCL */

uint64_t rm_wire_bytes(rm_wire wire);                                     /* of one element */
uint64_t rm_collective_in_bytes(const rm_collective *what, int32_t size); /* as in the table at the top; 0: no in */
uint64_t rm_collective_out_bytes(const rm_collective *what, int32_t size);

#endif

/* group.h: collectives among ranks. Each transport implements a small table of functions (rm_group_api); DDP calls the
 * functions rm_group_* in front of it. This layer knows buffers and ranks, but no graph or plan.
 *
 *   local  ranks of one host, over shared memory: buffers from rm_group_alloc are reduced in place
 *   mpi    Open MPI or MPICH
 *   gloo   Debian's libgloo, over TCP
 *   nccl   NVIDIA's NCCL, between GPUs: every buffer is on this rank's GPU. `in` must be complete before the call, or
 *          when the event `after` is reached.
 *
 * Every rank opens the group and then issues the same collectives in the same order. This is checked: each collective
 * carries a fingerprint (its number, kind, type, count, tag). If two ranks disagree, the collective fails on ALL ranks
 * with PEER, and the message names two ranks and the difference. Nothing wrong is ever summed.
 *
 * With W ranks and `count` elements, the collectives are:
 *
 *   all_reduce       in (count)     out (count)     the sum over ranks, on every rank; in == out allowed
 *   broadcast        -              out (count)     the root's out, on every rank
 *   all_gather       in (count)     out (W, count)  in may be out's own row
 *   reduce_scatter   in (W, count)  out (count)     row r of the sum goes to rank r; out may be in's own row
 *   barrier          -              -               returns when every rank has called it
 *
 * No other overlap of in and out is allowed.
 *
 * Sums. RM_SUM is x_0 + x_1 + ... RM_MEAN (f32, f16, bf16) is the sum of fl(x_r * fl32(1/W)), where fl rounds to the
 * type; other frameworks average gradients in the same way. `local` sums in the order of ranks, so bits depend only on
 * the inputs; mpi and gloo choose their own order for f32 and f64. All ranks always get the same bits. Integers wrap
 * around.
 *
 * RM_TREE (f32, f64; W a power of two) has the same order on every engine. With t(r) = x_r and w = W: halve w and let
 * t(r) = t(r) + t(r + w) for all r < w, until t(0) is the sum. If each of W ranks holds such a sum of its K shards
 * (shard r + W j is the j-th of rank r), the result has the same bits as with W K ranks that have one shard each.
 *
 * f16 and bf16 are summed in f32, in the order of ranks on every engine but nccl, and rounded to nearest even once at
 * the end; a NaN becomes the format's quiet NaN. nccl sums in its own order, rounds 16-bit sums after every addition,
 * and uses 1/W in the type of the data for a mean.
 *
 * Queue. rm_group_issue queues a collective and returns a ticket at once; a thread of the group runs the queue in
 * order. in and out belong to the group until rm_group_wait on the ticket (or a later one) has returned. rm_group_run
 * does both, and uses the calling thread if nothing is queued. One thread at a time may call a group; poll, notice and
 * abort may be called by any thread at any time.
 *
 * Failure. The first failure is final: every later call returns it again. Statuses: PEER (a rank died, hangs, left, or
 * disagrees; the message names rank, host and what it was doing), INVALID (bad arguments; nothing was sent, and the
 * group remains usable), MEMORY, IO. */
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
    rm_reduction reduction; /* for all_reduce and reduce_scatter */
    int32_t root;           /* for broadcast */
    uint32_t tag;           /* a number that the caller chooses, e.g. the bucket; part of the fingerprint */
    int64_t count;          /* number of elements, as above; may be 0 */
    const void *in;
    void *out;
    void *after; /* nccl: a recorded cudaEvent_t of this rank's GPU, which must exist until the collective has been
                 * waited for. in and out are not accessed before the event is reached. NULL: they are ready */
} rm_collective;

typedef struct rm_joining rm_joining; /* joining.h */

typedef struct {
    const char *engine; /* "auto", "local", "mpi", "gloo", "nccl"; NULL: auto */
    int32_t rank, size;
    /* Borrowed until the group is closed. NULL: only if size is 1, or for mpi, which then makes its own */
    rm_kv *store;
    const char *name;      /* distinguishes groups that share a store; NULL: "world" */
    int32_t first, stride; /* in messages, rank r is first + stride r: its number among all ranks; stride 0: r itself */
    const char *part_of;   /* with a stride: the engine of the group of all ranks. "auto" then is local, mpi if that is
                              mpi, or gloo */
    int64_t timeout_ms;    /* time limit for a rank that is alive but does not arrive; 0: ten minutes */
    int64_t join_ms;       /* time limit for each step of opening the group; 0: timeout_ms, or five minutes */
    int64_t silence_ms;    /* time limit for a rank that gives no heartbeat; 0: ten seconds */
    int64_t stopped_ms;    /* local: a shorter one for a rank that a signal or a debugger has stopped; 0: silence_ms */
    const char *join_name,
        *silence_name;    /* names of these two limits in messages: "--join-timeout=300"; NULL: milliseconds */
    int32_t gpu;          /* nccl: 1 + CUDA's index of the GPU with the buffers; 0: host memory */
    bool messages;        /* nccl: ranks will send each other messages. Connects all of them when the group opens */
    uint64_t arena_bytes; /* local: the most address space (not memory) that this rank can rm_group_alloc; 0: 16 GiB */
    /* Describes a tag in messages, e.g. "bucket 3, which begins with lstm.weight_hh_l0"; NULL: uses its number. */
    const char *(*tag_name)(void *context, uint32_t tag);
    /* Reports progress to the user while the group opens: "waiting for ranks 1, 3-7 of 8 since 2 s; up to 300 s", "has
     * refused rank 1 of 2 on HOST ...". Mostly on rank 0, from a separate thread. NULL: no reports. */
    void (*say)(void *context, const char *sentence);
    /* Called when opening has failed, but a library (MPI) still blocks the thread that opens the group. NULL: the
     * thread stays blocked. */
    void (*stuck)(void *context, const char *sentence);
    void *context;
    const remat_observer *observer; /* gets collectives, messages and waits; copied. NULL: none */
    rm_joining *joining; /* set by rm_group_open for engines, until the group is closed */
} rm_group_config;

/* The number of a rank in messages. */
static inline int32_t rm_group_number(const rm_group_config *config, int32_t rank) {
    return config->stride ? config->first + config->stride * rank : rank;
}

typedef struct rm_group rm_group;

/* Collective: returns when all ranks have joined. MISSING: this build does not have the engine. */
remat_status rm_group_open(const rm_group_config *config, rm_group **out);
void rm_group_close(rm_group *group); /* accepts NULL; finishes queued collectives, waits for nothing else */

int32_t rm_group_rank(const rm_group *group);
int32_t rm_group_size(const rm_group *group);
int32_t rm_group_first(const rm_group *group);      /* the number of its rank 0 in messages */
const char *rm_group_engine(const rm_group *group); /* "local", ... */
const remat_observer *rm_group_observer(const rm_group *group);
/* The store of the config, or the one that the engine has made and that is closed with the group. NULL: size 1. */
rm_kv *rm_group_store(const rm_group *group);
/* The numeric address of this host that the group uses, or the name of a network interface. False: none that is known,
 * as on `local`. */
bool rm_group_address(const rm_group *group, char *text, size_t bytes);

/* Allocates a zero-filled buffer of this rank, aligned to a page (nccl: GPU memory, aligned to 256 bytes). Collectives
 * use it without copies where the engine can. Not collective. Freed by rm_group_free or with the group. NULL: out of
 * memory, with a message. */
void *rm_group_alloc(rm_group *group, uint64_t bytes);
void rm_group_free(rm_group *group, void *buffer); /* accepts NULL */

/* Makes whole pages of the caller's memory, which must be anonymous and private, equivalent to memory from
 * rm_group_alloc, in place. On `local` they become pages of shared memory; on other engines they only become zero (for
 * nccl it remains host memory, which its collectives refuse). Not collective. Call rm_group_unmap before the memory or
 * the group is freed; it leaves plain zero pages there. */
remat_status rm_group_map(rm_group *group, void *address, uint64_t bytes);
void rm_group_unmap(rm_group *group, void *address);

typedef uint64_t rm_ticket; /* number of the collective, from 1 */

remat_status rm_group_issue(rm_group *group, const rm_collective *what, rm_ticket *ticket);
remat_status rm_group_wait(rm_group *group, rm_ticket ticket);
bool rm_group_done(rm_group *group, rm_ticket ticket);                 /* does not wait; also true after a failure */
remat_status rm_group_run(rm_group *group, const rm_collective *what); /* issues and waits */

/* Bytes that a rank may send to another before it receives any: an engine's buffer between the two is at most as large. */
#define RM_MESSAGE_ROOM (1u << 20)
#define RM_MESSAGE_PART (RM_MESSAGE_ROOM / 4) /* the most bytes that an engine copies at once */

/* Point to point: messages between two ranks arrive in the order in which they were sent, and the receiver asks for as
 * many bytes. send may return before the other rank has received; both block while they must, on the calling thread,
 * and never beside a collective of this group. nccl: GPU memory, which is complete before the call. PEER as above. */
remat_status rm_group_send(rm_group *group, int32_t to, const void *data, uint64_t bytes);
remat_status rm_group_receive(rm_group *group, int32_t from, void *data, uint64_t bytes);

/* nccl: gives a message in GPU memory to a stream (a cudaStream_t) of the group's GPU and returns without waiting for the
 * other rank. The stream may wait for it, since NCCL need not buffer a message. Ranks whose streams have the messages in
 * one order cannot deadlock: both ranks of the first message that has not been exchanged have reached it. One thread. */
remat_status rm_group_give_send(rm_group *group, void *stream, int32_t to, const void *data, uint64_t bytes);
remat_status rm_group_give_receive(rm_group *group, void *stream, int32_t from, void *data, uint64_t bytes);

/* Call it repeatedly while the host waits for such a stream. PEER if a message cannot be exchanged, or the group has failed:
 * then its messages are given up, and the stream goes on. */
remat_status rm_group_attend(rm_group *group);

/* GPU memory that opening the group took: NCCL's buffers and channels. 0: the engine works in host memory. */
uint64_t rm_group_device_bytes(const rm_group *group);

/* Total time that the group's thread was busy with collectives, including waiting for other ranks and for `after`. */
uint64_t rm_group_busy_ns(rm_group *group);

/* Total time that callers of rm_group_run, wait, send and receive were blocked, whatever the engine. */
uint64_t rm_group_blocked_ns(rm_group *group);

/* OK, or the failure that the next call would return. Cheap enough to call in every layer of a step: a rank that
 * computes while another dies then learns of it before its next collective. */
remat_status rm_group_poll(rm_group *group);

/* A rank that has not responded for a second or more, or for which this rank has waited that long. */
typedef struct {
    int32_t rank;   /* its number in messages */
    bool responds;  /* its heartbeats arrive: it is late */
    char text[512]; /* who it is, and what it did last */
} rm_notice;

/* False: there is none. A notice is not a failure yet. */
bool rm_group_notice(rm_group *group, rm_notice *out);

/* Ends the group on all reachable ranks: their current and later calls fail with PEER and `reason`. */
void rm_group_abort(rm_group *group, const char *reason);

/* ---- For authors of engines --------------------------------------------------------------------------------- */

/* `engine` is the result of open. One thread at a time calls an engine, except for poll, notice and abort, which must
 * be thread-safe. group.c checks arguments, numbers calls, queues them, and repeats the first failure. An engine
 * therefore runs one collective at a time and keeps no state for failures.
 *
 * An engine whose device has queues of its own (NCCL's streams) would need two more functions, issue and wait, which
 * replace group.c's thread. No engine needs them yet. */
typedef struct {
    const char *name;
    /* Describes the library and its version: "Open MPI v4.1.4". MISSING: this machine does not have it. Callable at any
     * time. */
    remat_status (*library)(char *text, size_t bytes);
    remat_status (*open)(const rm_group_config *config, void **engine); /* all fields are set */
    void (*close)(void *engine);
    void *(*alloc)(void *engine, uint64_t bytes); /* optional; NULL: uses host memory */
    void (*free)(void *engine, void *buffer);
    remat_status (*map)(void *engine, void *address, uint64_t bytes); /* optional; NULL: writes zeros */
    void (*unmap)(void *engine, void *address);
    /* Runs collective number `call` and returns when `out` is ready. Compares fingerprints first
     * (dist/group/fingerprint.h). */
    remat_status (*run)(void *engine, uint64_t call, const rm_collective *what);
    remat_status (*send)(void *engine, int32_t to, const void *data, uint64_t bytes); /* optional; NULL: MISSING */
    remat_status (*receive)(void *engine, int32_t from, void *data, uint64_t bytes);
    /* Optional; NULL: MISSING. give: `sending` is false for a message to receive. attend: as rm_group_attend. */
    remat_status (*give)(void *engine, void *stream, int32_t peer, bool sending, void *data, uint64_t bytes);
    remat_status (*attend)(void *engine);
    uint64_t (*device_bytes)(const void *engine);           /* optional; NULL: 0 */
    remat_status (*poll)(void *engine);                     /* optional; NULL: OK */
    bool (*notice)(void *engine, rm_notice *out);           /* optional; NULL: false */
    void (*abort)(void *engine, const char *reason);        /* optional; NULL: affects this rank only */
    rm_kv *(*store)(void *engine);                          /* optional; NULL: the config's */
    const char *(*address)(void *engine);                   /* rm_group_address; optional; NULL: none */
} rm_group_api;

extern const rm_group_api rm_group_local; /* mpi and gloo are modules: dist/group/module.h */
extern const rm_group_api rm_group_nccl;  /* where REMAT_HAVE_NCCL */

uint64_t rm_wire_bytes(rm_wire wire); /* of one element */
/* See the table at the top; 0: the collective has no `in` */
uint64_t rm_collective_in_bytes(const rm_collective *what, int32_t size);
uint64_t rm_collective_out_bytes(const rm_collective *what, int32_t size);

#endif

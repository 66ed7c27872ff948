/* run.h: the executor. It interprets a checked plan: before each step it claims the buffers that begin to live there,
 * at offsets decided by planning; then it makes the kernel calls of the stage's program. It holds no policy and
 * allocates nothing. */
#ifndef RM_RUN_H
#define RM_RUN_H

#include "engine/report/observe.h"
#include "engine/report/trace.h"
#include "engine/session/verify.h"
#include "memory/schedule.h"

typedef struct rm_runner {
    const rm_device_api *api;
    rm_block *block;
    rm_queue *queue;
    const rm_chain *chain;
    char *resident;        /* address of the block's first byte */
    uint64_t arena_offset; /* where activations begin in the block */
    uint64_t own_from, own_shift; /* activations from there on are moved by this many bytes (parts.h) */
    uint64_t furthest;     /* the end of the activations claimed so far, from there */
    char **external;       /* external memory, by slot (chain.h); NULL: not given yet */
    void **piece;          /* by piece: its address while it is alive */
    void **saved;          /* by stage: its private block */
    int8_t *kept;          /* by stage: the option it was last kept in */
    void *scratch;         /* of the running step */
    int64_t *end;          /* by sweep: tiles that begin here or later are not computed (remat_set_sequence_end) */
    uint64_t seed, updates;
    uint32_t shard;                 /* of the batch; selects the dropout mask */
    const remat_pipeline *pipeline; /* called by SEND and RECEIVE; without functions these do nothing */
    void *stream;                   /* the queue's, which gets the messages; NULL: the host exchanges them */
    const remat_ranks *ranks;       /* polled before each run of a stage, to notice lost ranks */
    rm_talk talk;                   /* the collective for kernels; owner NULL: there are no other ranks */
    remat_status talk_status;       /* first failure of a kernel's collective or of a message in this run */
    /* Called for each bucket, in order, once the queue has been given the last instruction of the backward pass that
     * touches its gradients. A failure fails the run. NULL: more micro steps follow. */
    remat_status (*finished)(void *owner, int32_t bucket);
    void *owner;
    int32_t n_finished;     /* buckets, since the run began */
    int64_t line, lifetime; /* next line of the plan, and next of its lifetimes */
    int64_t n_forward;      /* stages that have run forward at least once since the run began */
    bool training, stateful;
    int64_t dropout_sample; /* evaluations draw this sample of dropout; -1: they have no dropout */
    rm_second_tier *tier;  /* NULL: no plan uses it */
    uint64_t tier_shift;   /* copies in the tier are moved by this many bytes (parts.h) */
    uint64_t given_before; /* transfers that the tier was given before this run of the plan */
    rm_trace *trace;       /* records live buffers; NULL: no trace */
    remat_observer observer; /* gets runs and transfers */
    rm_verify *verify;     /* compares states when they are recomputed or read; NULL: no comparison */
    /* For tests: called before and after the program of every RUN, before its results are compared. May be NULL. */
    void (*disturb)(struct rm_runner *, int64_t plan_step, bool after);
    void *disturber;
} rm_runner;

/* Connects the kernels' collectives to runner->ranks. */
void rm_run_connect_ranks(rm_runner *runner);

/* Runs a plan of the training problem or of the evaluation (runner->training): whole, up to the first backward run, or
 * from there. Fails if rm_verify_before, rm_verify_after, the second tier (IO), ranks->poll or `finished` fails. No
 * transfer is pending when it returns, even after a failure. */
typedef enum { RM_WHOLE_PLAN, RM_TO_BACKWARD, RM_FROM_BACKWARD } rm_run_half;
remat_status rm_run(rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule, rm_run_half half);

/* Runs one program of `stage` by itself, on the memory of runner->piece, ->saved and ->scratch: for measuring. */
void rm_run_program(rm_runner *runner, int64_t stage, const rm_program *program);

/* Run the prologue or the epilogue (chain.h, TABLE). The epilogue ends a backward pass: after it, all buckets are
 * finished. */
void rm_run_tables(rm_runner *runner, const rm_program *program);
remat_status rm_run_epilogue(rm_runner *runner);

/* Address of a whole array that stays in memory: RESIDENT or EXTERNAL. */
void *rm_run_address(const rm_runner *runner, const rm_where *where);

/* Floats: y += x; y *= factor. For sums and scalings outside the plan. */
void rm_run_add(const rm_runner *runner, void *y, void *x, int64_t count);
void rm_run_scale(const rm_runner *runner, void *y, double factor, int64_t count);

/* Packs weights again: those of tables, before the tables run, or all others, which may read tables. */
void rm_run_packing(rm_runner *runner, bool of_tables);

/* transfer.c. rm_run_transfer: gives the tier a SAVE or LOAD whose buffers have been claimed. rm_run_wait: waits for
 * the transfers that a line of the plan needs. rm_run_wait_for_all: waits for all transfers. IO if a transfer failed;
 * then no other is pending. */
void rm_run_transfer(const rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule, rm_step step);
remat_status rm_run_wait(const rm_runner *runner, const rm_schedule *schedule, int64_t number);
remat_status rm_run_wait_for_all(const rm_runner *runner);

#endif

/* run.h: the executor. It interprets a checked plan: before each step it claims the buffers that begin to live there, at
 * the offsets that were decided beforehand; then it makes the kernel calls of the stage's program. It holds no policy and
 * allocates nothing. */
#ifndef RM_RUN_H
#define RM_RUN_H

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
    char **external;       /* the program's own memory, by slot (chain.h) */
    void **piece;          /* by piece: its address while it is alive */
    void **saved;          /* by stage: its private block */
    int8_t *kept;          /* by stage: the option it was last kept in */
    void *scratch;         /* of the step that is running */
    int64_t *end;          /* by sweep: tiles that begin there or later are not computed, remat_set_sequence_end */
    uint64_t seed, updates;
    uint32_t shard;           /* of the batch: draws its own dropout */
    const remat_ranks *ranks; /* asked before each run of a stage whether all are there (poll) */
    rm_talk talk;             /* what kernels talk to other ranks by; owner NULL: there are none */
    remat_status talk_status; /* of this run's talk */
    /* Called, in their order, when the backward pass has given the queue the last instruction that touches a bucket's gradients; what it
     * fails with fails the run. NULL: this run's gradients are not the last. */
    remat_status (*finished)(void *owner, int32_t bucket);
    void *owner;
    int32_t n_finished;     /* buckets, since the run began */
    int64_t line, lifetime; /* of the plan's lines, and of its lifetimes: where the run goes on */
    int64_t n_forward;      /* stages that have been run forward at least once, since it began */
    bool training, stateful;
    rm_second_tier *tier;  /* the second tier; NULL: no plan uses it */
    uint64_t given_before; /* transfers it was given before this run of the plan */
    rm_trace *trace;       /* writes down what is alive; NULL: nobody asked */
    rm_verify *verify;     /* compares states as they are made again and read; NULL: nothing is compared */
    /* For tests: called before and after the program of every RUN (before what it made is compared); NULL: not. */
    void (*disturb)(struct rm_runner *, int64_t plan_step, bool after);
    void *disturber;
} rm_runner;

/* Lets kernels talk to runner->ranks. */
void rm_run_talks(rm_runner *runner);

/* Runs a whole plan: of the training problem, or of the evaluation (runner->training). Fails where rm_verify_before or
 * rm_verify_after does, where the second tier does (IO), and where ranks->poll or `finished` does. However it ends, no
 * transfer is under way any more. Or in two halves: up to the first backward run, and from there. */
typedef enum { RM_WHOLE_PLAN, RM_TO_BACKWARD, RM_FROM_BACKWARD } rm_run_half;
remat_status rm_run(rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule, rm_run_half half);

/* Runs one program of `stage` by itself, on what runner->piece, ->saved and ->scratch point to: for measuring. */
void rm_run_program(rm_runner *runner, int64_t stage, const rm_program *program);

/* Runs the prologue or the epilogue (chain.h, TABLE). The second is the end of a backward pass: all buckets are finished
 * after it. */
void rm_run_tables(rm_runner *runner, const rm_program *program);
remat_status rm_run_epilogue(rm_runner *runner);

/* Floats: y += x; y *= factor; for what lies beside the plan. */
void rm_run_add(const rm_runner *runner, void *y, void *x, int64_t count);
void rm_run_scale(const rm_runner *runner, void *y, double factor, int64_t count);

/* Makes the packed weights anew: of tables' nodes, before these run; or of all others, which may read tables. */
void rm_run_packing(rm_runner *runner, bool of_tables);

/* In transfer.c. Gives the tier a SAVE or LOAD, after its buffers were claimed. Waits for what a line of the plan needs; IO
 * when a transfer failed: then none is under way any more. Waits for all that was given. */
void rm_run_transfer(const rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule, rm_step step);
remat_status rm_run_wait(const rm_runner *runner, const rm_schedule *schedule, int64_t number);
remat_status rm_run_wait_for_all(const rm_runner *runner);

#endif

/* run.h: the executor. It interprets a checked plan: before each step it claims the buffers that begin to live there, at
 * the offsets that were decided beforehand; then it makes the kernel calls of the stage's program. It holds no policy and
 * allocates nothing. */
#ifndef RM_RUN_H
#define RM_RUN_H

#include "engine/chain.h"
#include "engine/trace.h"
#include "memory/schedule.h"

typedef struct {
    const rm_device_api *api;
    rm_block *block;
    rm_queue *queue;
    const rm_chain *chain;
    char *resident;          /* address of the block's first byte */
    uint64_t arena_offset;   /* where activations begin in the block */
    void **piece;            /* by piece: its address while it is alive */
    void **saved;            /* by stage: its private block */
    int8_t *kept;            /* by stage: the option it was last kept in */
    void *scratch;           /* of the step that is running */
    uint64_t seed, updates;
    bool training, stateful;
    rm_trace *trace;         /* writes down what is alive; NULL: nobody asked */
} rm_runner;

/* Runs a whole plan: of the training problem, or of the evaluation (runner->training). */
void rm_run(rm_runner *runner, const rm_problem *problem, const rm_schedule *schedule);

/* Runs the prologue or the epilogue (chain.h, TABLE). */
void rm_run_tables(rm_runner *runner, const rm_program *program);

/* Makes every node's packed weights anew. */
void rm_run_packing(rm_runner *runner);

#endif
